"""What a caller may get wrong, or a model may put into the kernels, and what stays right all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from attention_cases import Case, assert_within_budget, chain, make, random_tree, sparse  # noqa: E402

from treeopt.errors import InputError  # noqa: E402
from treeopt.kernels import attention, compaction, schedule, step, tensors  # noqa: E402
from treeopt.kernels.attention import tree_attention, tree_attention_reference  # noqa: E402
from treeopt.kernels.cache import ContiguousCache, PagedCache  # noqa: E402
from treeopt.kernels.compaction import TokenStore, compact_kv  # noqa: E402
from treeopt.kernels.step import prepare_step  # noqa: E402
from treeopt.kernels.trees import NodeTrees  # noqa: E402

I32, F16 = torch.int32, torch.float16


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's NumPy
@pytest.mark.parametrize("impl", ["triton", "torch"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("in_cache", "part"), [(False, "v"), (True, "v"), (False, "k"), (False, "q")])
def test_what_is_no_number_stays_in_its_subtree(bad: float, in_cache: bool, part: str, impl: str, device: str) -> None:
    """Node 1 of 0 - (1 - (3, 4), 2): it and what hangs below it, whatever the pieces of the prefix."""
    case = Case(trees=([-1, 0, 0, 1, 1], chain(2)), lengths=(300, 4), page=64, in_cache=in_cache, processors=64)
    inputs = make(case, device)
    clean = tree_attention_reference(*inputs.double().arguments)
    if part == "q":
        inputs.q[1] = bad
    elif in_cache:
        values = inputs.cache.v
        values[inputs.cache.table[0, 301 // 64], 301 % 64] = bad
    else:
        getattr(inputs, part)[1] = bad
    at = prepare_step(inputs.q, inputs.cache, inputs.trees, impl=impl, processors=64)
    found = tree_attention(*inputs.arguments[:4], at, impl=impl)
    finite = found.out.isfinite().all(-1).all(-1).tolist()
    below = [1] if part == "q" else [1, 3, 4]
    if part == "k" and bad != float("nan"):  # a score of -inf is a weight of 0: half of the heads may be right
        assert [row for row in range(7) if row not in below and not finite[row]] == []
    else:
        assert [row for row in range(7) if not finite[row]] == below
    others = [row for row in range(7) if row not in below]
    torch.testing.assert_close(found.out[others].double(), clean.out[others], rtol=0, atol=1e-5)


@pytest.mark.parametrize("impl", ["triton", "torch"])
@pytest.mark.parametrize("lengths", [(90, 33), (700, 600)])
def test_rows_of_no_tree_are_zero(lengths: tuple[int, int], impl: str, device: str) -> None:
    """A captured graph: T and the bound on the nodes are static, fewer nodes are real."""
    inputs = make(Case(trees=([-1, 0, 0], [-1, 0, 1, 1], chain(13)), lengths=(*lengths, 1), page=0), device)
    cache = ContiguousCache(k=inputs.cache.k[:2], v=inputs.cache.v[:2], lengths=inputs.cache.lengths[:2])
    parents = inputs.trees.parents.clone()
    parents[7:] = -7
    trees = NodeTrees(parents=parents, offsets=torch.tensor([0, 3, 7], dtype=I32, device=device), max_nodes=64)
    with_garbage = torch.full_like(inputs.q, torch.nan)
    del with_garbage  # the allocator hands it out again
    found = tree_attention(inputs.q, inputs.k, inputs.v, cache, trees, impl=impl)
    assert not found.out[7:].any()
    assert (found.lse[7:] == -torch.inf).all()
    real = NodeTrees(parents=parents[:7], offsets=trees.offsets, max_nodes=4)
    exact = tree_attention_reference(inputs.q[:7], inputs.k[:7], inputs.v[:7], cache, real)
    torch.testing.assert_close(found.out[:7], exact.out, rtol=0, atol=1e-5)


def test_a_step_is_for_its_cache(device: str) -> None:
    inputs = make(Case(trees=([-1, 0],), lengths=(90,), page=0), device)
    q, k, v, cache, trees = inputs.arguments
    prepared = prepare_step(q, cache, trees, impl="triton")
    tree_attention(q, k, v, replace(cache, k=cache.k.clone()), prepared, impl="triton", debug=True)  # another layer
    shorter = replace(cache, lengths=cache.lengths - 80)
    with pytest.raises(InputError, match="argument trees: the step was prepared for a cache of other lengths"):
        tree_attention(q, k, v, shorter, prepared, impl="triton")
    cache.lengths.sub_(1)  # the next step, without preparing one
    with pytest.raises(InputError, match="prepared for a prefix of 90 tokens of request 0") as stale:
        tree_attention(q, k, v, cache, prepared, impl="triton", debug=True)
    assert "the cache has 89" in stale.value.hint


def test_heads_may_lie_outermost_in_a_cache_of_more_than_32_bits(device: str) -> None:
    """18 heads of 2,097,152 tokens x 64: the last one begins behind 2^31 elements, though the stride is below."""
    heads, tokens, dim, length = 18, 1 << 21, 64, 5
    k = sparse(heads * tokens * dim, device).view(heads, 1, tokens, dim).permute(1, 2, 0, 3)
    draw = torch.Generator().manual_seed(0)
    k[0, :length] = torch.randn(length, heads, dim, generator=draw).to(device, F16)
    cache = ContiguousCache(k=k, v=k, lengths=torch.tensor([length], dtype=I32, device=device))
    q, tree_k = (torch.randn(1, heads, dim, generator=draw).to(device, F16) for _ in range(2))
    trees = NodeTrees.from_parents([[-1]], device=device)
    exact = tree_attention_reference(q, tree_k, tree_k, cache, trees).out
    found = tree_attention(q, tree_k, tree_k, cache, trees, impl="triton").out
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-3)


def test_pages_may_lie_behind_32_bits(device: str) -> None:
    """Attention over the first and the last page of 4 GB, then compaction from one to the other."""
    pages, page_size, dim = (1 << 21) + 1, 16, 64
    k = sparse(pages * page_size * dim, device).view(pages, page_size, 1, dim)
    draw = torch.Generator().manual_seed(0)
    k[[pages - 1, 0]] = torch.randn(2, page_size, 1, dim, generator=draw).to(device, F16)
    table = torch.tensor([[pages - 1, 0]], dtype=I32, device=device)
    lengths = torch.tensor([14], dtype=I32, device=device)
    cache = PagedCache(k=k, v=k, table=table, lengths=lengths)
    q = torch.randn(3, 1, dim, generator=draw).to(device, F16)
    trees = NodeTrees.from_parents([[-1, 0, 0]], device=device)
    exact = tree_attention_reference(q, None, None, cache, trees).out
    found = tree_attention(q, None, None, cache, trees, impl="triton").out
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-3)
    moved, kept = k[0, 0].clone(), k[pages - 1, :15].clone()
    path = torch.tensor([[0, 2]], dtype=I32, device=device)
    compact_kv(TokenStore.of([k]), lengths, path, table=table, impl="triton")
    assert torch.equal(k[pages - 1, 15], moved)
    assert torch.equal(k[pages - 1, :15], kept)


@pytest.mark.parametrize("group", [16, 64])
def test_a_row_tile_may_end_within_a_node(group: int, device: str) -> None:
    """More query heads per KV head than a row tile has rows: the last node's own key belongs to every tile of it."""
    case = Case(trees=(random_tree(17),), lengths=(9,), kv_heads=1, group=group)  # keys come in tiles of 16
    inputs = make(case, device)
    assert_within_budget(tree_attention(*inputs.arguments, impl="triton"), inputs)


def test_descriptors_need_aligned_addresses(device: str) -> None:
    inputs = make(Case(trees=([-1],), lengths=(100,), page=64, dtype=F16), device)
    shifted = torch.empty(inputs.cache.k.numel() + 1, dtype=F16, device=device)[1:].view(inputs.cache.k.shape)
    shifted.copy_(inputs.cache.k)
    cache = replace(inputs.cache, k=shifted)
    found = tree_attention(inputs.q, inputs.k, inputs.v, cache, inputs.trees, impl="triton")
    assert_within_budget(found, inputs)


def test_launches_are_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tensors on cuda:1 and cuda:0 current, every kernel runs with cuda:1 as the current one."""
    current: list[object] = [0]

    @contextlib.contextmanager
    def on_device(tensor: object) -> Iterator[None]:
        current.append(1)
        yield
        current.pop()

    launched = []

    class Recorded:
        def __init__(self, kernel: object, name: str) -> None:
            self.kernel, self.name = kernel, name

        def __getitem__(self, grid: object) -> object:
            launched.append((self.name, current[-1]))
            return self.kernel[grid]  # type: ignore[index]

    class Module:
        def __init__(self, module: object) -> None:
            self.module = module

        def __getattr__(self, name: str) -> Recorded:
            return Recorded(getattr(self.module, name), name)

    real = tensors.jitted
    for module in (attention, compaction, schedule, step):
        monkeypatch.setattr(module, "jitted", lambda name: Module(real(name)))
        monkeypatch.setattr(module, "on_device", on_device)
    inputs = make(Case(trees=(random_tree(4),), lengths=(300,), page=64, processors=64), "cpu")
    at = prepare_step(inputs.q, inputs.cache, inputs.trees, impl="triton", processors=64)
    tree_attention(*inputs.arguments[:4], at, impl="triton")
    store, path = TokenStore.of([inputs.cache.k]), torch.zeros(1, 2, dtype=I32)
    compact_kv(store, inputs.cache.lengths, path, table=inputs.cache.table, impl="triton")
    assert {name for name, _ in launched} >= {"ancestors_kernel", "schedule_kernel", "attention_kernel"}
    assert [name for name, device in launched if device != 1] == []


def test_the_current_device_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext(device))
    with tensors.on_device(SimpleNamespace(is_cuda=True, device="cuda:1")) as current:
        assert current == "cuda:1"
    with tensors.on_device(SimpleNamespace(is_cuda=False, device="cpu")) as current:
        assert current is None
