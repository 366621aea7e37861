"""Kernels against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from attention_cases import Case, assert_within_budget, chain, make, path_by_path, random_tree, star, unequal  # noqa: E402

from treeopt.errors import InputError, TreeError  # noqa: E402
from treeopt.kernels import attention  # noqa: E402
from treeopt.kernels.attention import tree_attention, tree_attention_reference  # noqa: E402
from treeopt.kernels.cache import Cache, ContiguousCache  # noqa: E402
from treeopt.kernels.step import prepare_step  # noqa: E402
from treeopt.tree import DraftTree  # noqa: E402

F16, BF16 = torch.float16, torch.bfloat16
CASES = [
    Case(trees=(random_tree(7),), lengths=(70,), processors=40),
    Case(trees=([-1],), lengths=(300,), group=1, kv_heads=1, processors=40),
    Case(trees=(chain(16),), lengths=(0,)),
    Case(trees=(star(9), chain(4), unequal(12), [], [-1]), lengths=(33, 0, 64, 10, 200), page=1, dtype=F16),
    Case(trees=(random_tree(63, 1),), lengths=(5,), kv_heads=1, page=0),
    Case(trees=(random_tree(64, 2), star(3)), lengths=(64, 1), kv_heads=1, page=64, dtype=BF16),
    Case(trees=(random_tree(65, 3),), lengths=(17,), kv_heads=1),
    Case(trees=(random_tree(200, 4), [-1, 0]), lengths=(40, 500), kv_heads=1, group=1, page=64, processors=40),
    Case(trees=(random_tree(8), unequal(5)), lengths=(700, 129), group=1, page=64, processors=64),
    Case(trees=(random_tree(8), unequal(5)), lengths=(700, 129), group=1, page=64, processors=64, dtype=BF16),
    Case(trees=(random_tree(8), [], [-1]), lengths=(513, 300, 0), group=1, page=0, dtype=F16, processors=64),
    Case(trees=(unequal(6), [-1, 0]), lengths=(129, 40), group=3, page=1, in_cache=True),
    Case(trees=(random_tree(70, 5),), lengths=(31,), kv_heads=1, group=1, page=16, in_cache=True),
    Case(trees=(random_tree(20),), lengths=(64,), page=0, in_cache=True, dtype=BF16),
    Case(trees=(random_tree(6), chain(3)), lengths=(40, 70), page=0, odd_strides=True),
    Case(trees=(random_tree(6), chain(3)), lengths=(40, 70), page=16, odd_strides=True, processors=40),
    *(Case(trees=(random_tree(5),), lengths=(40,), group=g, kv_heads=1, dtype=F16) for g in (4, 5, 6, 7, 8)),
    Case(trees=(random_tree(5),), lengths=(40,), kv_heads=5, group=1, dtype=BF16),
    *(
        Case(trees=(random_tree(5),), lengths=(70,), kv_heads=1, dim=d, dim_v=d, dtype=BF16)
        for d in (96, 128, 192, 256)
    ),
    *(Case(trees=(random_tree(5),), lengths=(70,), kv_heads=1, dim=d, dim_v=d) for d in (192, 256)),
    Case(trees=(random_tree(5),), lengths=(70,), kv_heads=1, dim=192, dim_v=128, dtype=F16, page=64),
    Case(trees=(random_tree(3),), lengths=(70,), kv_heads=1, group=8, dim=576, dim_v=512, v_in_k=True, dtype=BF16),
    Case(trees=(random_tree(5),), lengths=(530,), kv_heads=1, group=1, dim=96, dim_v=96, processors=40),
    Case(trees=(random_tree(9), [-1]), lengths=(1500, 7), kv_heads=1, page=64, processors=64),
    Case(trees=(chain(7), random_tree(5)), lengths=(300, 20), page=64, processors=64, window=100),
    Case(trees=(chain(40),), lengths=(90,), kv_heads=1, group=1, window=20, in_cache=True),
    Case(trees=(random_tree(6),), lengths=(200,), softcap=20.0, dtype=F16, processors=64),
    Case(trees=(random_tree(6), [-1]), lengths=(400, 3), sinks=True, processors=64),
    Case(trees=(random_tree(6), star(3)), lengths=(300, 70), fp8="heads", dtype=BF16, processors=64),
    Case(trees=(random_tree(6),), lengths=(70,), fp8="tensor", dtype=F16, in_cache=True, page=64),
    Case(
        trees=(random_tree(3),),
        lengths=(70,),
        kv_heads=1,
        group=8,
        dim=576,
        dim_v=512,
        v_in_k=True,
        fp8="tensor",
        dtype=BF16,
    ),
    Case(
        trees=(random_tree(4), chain(3), [-1], random_tree(5), [], star(3)),
        lengths=(300, 290, 400, 50, 7, 130),
        shared=((3, 270), (1, 0), (2, 5)),
        processors=32,
    ),
    Case(trees=(chain(4), [-1]), lengths=(150, 129), shared=((2, 128),), kv_heads=1, window=None, sinks=True, page=64),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_within_the_error_budget_of_its_dtype(case: Case, device: str) -> None:
    inputs = make(case, device)
    step = inputs.step(processors=case.processors)
    found = tree_attention(*inputs.arguments[:4], step, **inputs.options, impl="triton", debug=True)
    assert found.impl == "triton"
    assert_within_budget(found, inputs, path_by_path(inputs))


def test_the_cases_cut_prefixes_and_leave_others_whole(device: str) -> None:
    def most_pieces(case: Case) -> int:
        inputs = make(case, device)
        step = prepare_step(inputs.q, inputs.cache, inputs.trees, impl="triton", processors=case.processors)
        return int(step.plan.schedule.spans[:, 1].max())

    pieces = [most_pieces(case) for case in CASES if case.processors > 4]
    assert min(pieces) == 1
    assert max(pieces) > 8  # more than the merge reads at once
    assert sum(n > 1 for n in pieces) >= 5


def test_a_chain_is_causal_attention(device: str) -> None:
    inputs = make(Case(trees=(chain(9),), lengths=(30,), group=1, page=0), device).double()
    found = tree_attention(*inputs.arguments, impl="torch")
    k, v = (torch.cat([c[0, :30], t]) for c, t in ((inputs.cache.k, inputs.k), (inputs.cache.v, inputs.v)))
    mask = torch.arange(39, device=device) <= torch.arange(30, 39, device=device)[:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(
        inputs.q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=mask
    )
    torch.testing.assert_close(found.out, expected.transpose(0, 1))


def test_the_reference_is_masked_attention_with_the_masks_of_draft_trees(device: str) -> None:
    tree = DraftTree(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 2)))
    inputs = make(Case(trees=(tree.parents.tolist(),), lengths=(11,), page=0), device).double()
    found = tree_attention_reference(*inputs.arguments)
    k, v = (torch.cat([c[0, :11], t]) for c, t in ((inputs.cache.k, inputs.k), (inputs.cache.v, inputs.v)))
    mask = torch.from_numpy(np.ascontiguousarray(tree.step_mask(11))).to(device)
    expected = torch.nn.functional.scaled_dot_product_attention(
        inputs.q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=mask, enable_gqa=True
    )
    torch.testing.assert_close(found.out, expected.transpose(0, 1))


def test_scale_and_step_of_one_call(device: str) -> None:
    inputs = make(Case(trees=(random_tree(4),), lengths=(20,), kv_heads=1), device)
    found = tree_attention(*inputs.arguments, scale=0.7, impl="triton")
    gold = tree_attention_reference(*inputs.double().arguments, scale=0.7)
    torch.testing.assert_close(found.out.double(), gold.out, rtol=0, atol=1e-5)


def test_rows_behind_the_prefix_are_never_read(device: str) -> None:
    inputs = make(Case(trees=(random_tree(4),), lengths=(37,), kv_heads=1, page=64, room=60), device)
    page = int(inputs.cache.table[0, 0])
    inputs.cache.k[page, 37:], inputs.cache.v[page, 37:] = torch.nan, torch.nan
    found = tree_attention(*inputs.arguments, impl="triton")
    assert torch.isfinite(found.out).all()


def test_auto_says_what_it_took(device: str) -> None:
    inputs = make(Case(trees=([-1],), lengths=(3,), kv_heads=1), device)
    assert tree_attention(*inputs.arguments).impl == ("triton" if device == "cuda" else "torch")


def test_wrong_arguments_are_named(device: str) -> None:
    inputs = make(Case(trees=(random_tree(4), chain(3)), lengths=(20, 5)), device)
    q, k, v, cache, trees = inputs.arguments

    def refused(pattern: str, *arguments: object, **settings: object) -> None:
        with pytest.raises((InputError, TreeError), match=pattern):
            tree_attention(*arguments, **{"impl": "triton", **settings})

    refused("argument q: its shape", q[:-1], k, v, cache, trees)
    refused("argument q: its shape", q[..., :32], k, v, cache, trees)
    refused("argument q: 3 query heads", q[:, :3], k, v, cache, trees)
    refused("argument q: its dtype", q.half(), k, v, cache, trees)
    refused("argument q: the stride", q.mT.contiguous().mT, k, v, cache, trees)
    refused("argument q: list is not a tensor", q.tolist(), k, v, cache, trees)
    refused("argument k: its shape", q, k[:, :1], v, cache, trees)
    refused("argument k: only one", q, None, v, cache, trees)
    refused("argument v: its dtype", q, k, v.half(), cache, trees)
    refused("argument cache:", q, k, v, None, trees)
    refused("argument impl:", q, k, v, cache, trees, impl="cuda")
    refused("argument trees:", q, k, v, cache, prepare_step(q, cache, trees, impl="torch"))
    refused(
        "argument trees: the step was prepared", q, k, v, cache, prepare_step(q[:, :2], cache, trees, impl="triton")
    )
    one = ContiguousCache(k=cache.k[:1], v=cache.v[:1], lengths=cache.lengths[:1])
    refused("argument trees: 2 trees", q, k, v, one, trees)


def test_latent_values_have_to_be_views_of_the_keys(device: str) -> None:
    case = Case(trees=([-1],), lengths=(3,), dim=576, dim_v=512, v_in_k=True, dtype=BF16)
    q, k, v, cache, trees = make(case, device).arguments
    with pytest.raises(InputError, match="argument v: it is not a part of k"):
        tree_attention(q, k, v.clone(), cache, trees, impl="triton")


def test_other_dtypes_are_refused_by_the_kernels_only(device: str) -> None:
    inputs = make(Case(trees=([-1],), lengths=(3,)), device).double()
    with pytest.raises(InputError, match=r"argument q: its dtype is torch\.float64"):
        tree_attention(*inputs.arguments, impl="triton")
    assert tree_attention(*inputs.arguments, impl="torch").out.dtype == torch.float64


def test_no_nodes_at_all(device: str) -> None:
    inputs = make(Case(trees=([], []), lengths=(3, 0)), device)
    found = tree_attention(*inputs.arguments, impl="triton")
    assert (found.out.shape, found.lse.shape) == ((0, 4, 64), (0, 4))


def test_descriptors_only_where_layout_and_pages_allow(device: str) -> None:
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs a tensor memory accelerator")

    def described(cache: Cache, keys: int) -> bool:
        return attention._descriptors(cache, cache.k, cache.v, keys) is not None

    def used(case: Case, keys: int = 32) -> bool:
        return described(make(case, device).cache, keys)

    plain = Case(trees=([-1],), lengths=(100,), page=64)
    assert used(plain)
    assert used(replace(plain, page=0))
    assert not used(plain, keys=128)
    assert not used(replace(plain, page=16))
    assert not used(replace(plain, odd_strides=True))
    assert not used(replace(plain, page=0, odd_strides=True))


def test_head_dimensions_without_a_configuration_are_refused(device: str) -> None:
    inputs = make(Case(trees=([-1],), lengths=(3,), dim=80, dim_v=80), device)
    with pytest.raises(InputError, match="head dimension 80") as refused:
        tree_attention(*inputs.arguments, impl="triton")
    assert "128" in refused.value.hint
    assert tree_attention(*inputs.arguments, impl="torch").out.shape == (1, 4, 80)


def test_debug_reads_what_shapes_do_not_show(device: str) -> None:
    inputs = make(Case(trees=(random_tree(4), chain(3)), lengths=(20, 5)), device)
    q, k, v, cache, trees = inputs.arguments

    def refused(pattern: str, **changes: object) -> None:
        changed = {"cache": cache, "trees": trees, "k": k, "v": v, **changes}
        with pytest.raises((InputError, TreeError), match=pattern):
            tree_attention(q, changed["k"], changed["v"], changed["cache"], changed["trees"], impl="torch", debug=True)

    late = trees.parents.clone()
    late[1] = 2
    refused("argument trees.parents: node 1 of request 0 has parent 2", trees=replace(trees, parents=late))
    refused("argument trees.max_nodes: request 0 has 4 nodes", trees=replace(trees, max_nodes=3))
    refused("argument trees.offsets", trees=replace(trees, offsets=trees.offsets + 1))
    missing = cache.table.clone()
    missing[1, 0] = 99
    refused("argument cache.table: request 1 has pages 99", cache=replace(cache, table=missing))
    refused("argument cache.lengths: request 0 needs 33", cache=replace(cache, lengths=cache.lengths + 13))
    refused(
        "argument cache.lengths: request 0 needs 34", cache=replace(cache, lengths=cache.lengths + 10), k=None, v=None
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cpu_tensors_without_the_interpreter_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    inputs = make(Case(trees=([-1],), lengths=(3,)), "cpu")
    with pytest.raises(InputError, match="argument impl: 'triton' needs CUDA tensors"):
        tree_attention(*inputs.arguments, impl="triton")
