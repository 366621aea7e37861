"""Bugs that were planted: each must be found by a check that the kernels as they are pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from attention_cases import Case, assert_within_budget, chain, make, path_by_path, random_tree, sparse  # noqa: E402
from planted import plant, within_bounds  # noqa: E402
from triton.runtime.errors import InterpreterError  # noqa: E402

from treeopt.errors import InputError  # noqa: E402
from treeopt.kernels import attention, compaction  # noqa: E402

I32 = torch.int32
# The smallest inputs on which a line matters.
PLAIN = Case(trees=(random_tree(7),), lengths=(40,), kv_heads=1)
CUT = Case(trees=(random_tree(4),), lengths=(300,), kv_heads=1, group=1, page=64, processors=64)
LONG = replace(CUT, lengths=(1200,))
TWO = Case(trees=(random_tree(4), chain(3)), lengths=(300, 260), processors=64)
WIDE = Case(trees=(random_tree(70),), lengths=(1,), kv_heads=1, group=1)
WINDOW = Case(trees=(chain(8),), lengths=(70,), kv_heads=1, group=1, window=6)
IN_CACHE = replace(PLAIN, in_cache=True)
FP8 = Case(trees=(random_tree(5),), lengths=(70,), fp8="heads", dtype=torch.float16)
SINKS = replace(CUT, sinks=True)
SHARED = Case(trees=(random_tree(4), chain(3)), lengths=(300, 290), shared=((2, 256),), kv_heads=1, processors=32)
OWN_KEY = Case(trees=(random_tree(17),), lengths=(9,), kv_heads=1, group=16)


def right(case: Case) -> None:
    """Attention of a case within its budget, no address outside of a tensor, counters as they were, twice."""
    inputs = make(case, "cpu")
    given = [t for t in (inputs.q, inputs.k, inputs.v, inputs.options["sinks"]) if t is not None]
    cache, trees = inputs.cache, inputs.trees
    given += [t for t in (cache.k, cache.v, cache.lengths, cache.k_scale, cache.v_scale) if t is not None]
    given += [trees.parents, trees.offsets, *([cache.table] if case.page else [])]
    with within_bounds(given):
        at = inputs.step(processors=case.processors)
        plan = at.plan
        found = [attention.tree_attention(*inputs.arguments[:4], at, **inputs.options, impl="triton") for _ in range(2)]
    assert plan.schedule.counters[:2].tolist() == [0, 0]
    gold = path_by_path(inputs)
    for one in found:
        assert_within_budget(one, inputs, gold)


A, T, M, S, W, C = (f"_{name}_triton" for name in ("attention", "tiles", "merge", "step", "softmax", "compaction"))
ATTENTION: dict[str, tuple[str, str, str, Case]] = {
    "causal mask": (
        A,
        "seen = _sees(words[:, None], (first % 64 + offs_n)[None, :])",
        "seen = (offs_m // GROUP_SIZE)[:, None] >= (first + offs_n)[None, :]",
        PLAIN,
    ),
    "all nodes see each other": (W, "return (words >> bit) & 1 == 1", "return words >= bit - 64", PLAIN),
    "missing self": (
        A,
        "qk = tl.where(seen, qk + broken[None, :], UNSEEN)",
        "qk = tl.where(seen & ((offs_m // GROUP_SIZE)[:, None] != (first + offs_n)[None]), qk, UNSEEN)",
        PLAIN,
    ),
    "dropped prefix token": (
        A,
        "num_stages=2):\n        mask_n = pos + offs_n < stop",
        "num_stages=2):\n        mask_n = pos + offs_n < stop - 1",
        PLAIN,
    ),
    "tree in every piece": (A, "tl.range(0, is_last * behind, TAIL", "tl.range(0, behind, TAIL", CUT),
    "wrong query head": (A, "(head * GROUP_SIZE + offs_m % GROUP_SIZE)", "(head * GROUP_SIZE + offs_m * 0)", PLAIN),
    "only the first 64 ancestors": (A, "num_words + first // 64", "num_words + first // 6400", WIDE),
    "own key behind the last tile of keys": (A, "// GROUP_SIZE + 1)", "// GROUP_SIZE)", OWN_KEY),
    "slot of another page": (T, "slot = offs_n % PAGE_SIZE", "slot = offs_n % PAGE_SIZE * 0", PLAIN),
    "descriptor ignores the slot": (T, "* PAGE_SIZE + pos % PAGE_SIZE", "* PAGE_SIZE", CUT),
    "tree rows without their mask": (T, "offs, mask, DIM_0, DIM_1, True)", "offs, mask, DIM_0, DIM_1, False)", PLAIN),
    "tree in the cache one position too far": (
        A,
        "stop + first,",
        "stop + first + 1,",
        IN_CACHE,
    ),
    "no rescaling": (W, "acc_0 = acc_0 * alpha[:, None] +", "acc_0 = acc_0 +", CUT),
    "cap without its base": (W, "(2.0 * LOG2_E / SOFTCAP)", "(2.0 / SOFTCAP)", replace(PLAIN, softcap=5.0)),
    "partials of heads collide": (A, ".to(tl.int64) * NUM_KV_HEADS + head", ".to(tl.int64) * NUM_KV_HEADS", TWO),
    "unweighted merge": (M, "tl.exp2(sums - new_max[None, :])", "tl.exp2(sums * 0)", CUT),
    "first pieces only": (M, "range(0, pieces, PIECES)", "range(0, 1, PIECES)", LONG),
    "pieces of the next request": (
        M,
        "item_ptrs = work_ptr + (first_item +",
        "item_ptrs = work_ptr + (1 + first_item +",
        TWO,
    ),
    "sum in base 2": (M, "tl.log2(running_sum)) * LN2", "tl.log2(running_sum))", CUT),
    "counters left behind": (M, "tl.atomic_xchg(counters_ptr, 0, ", "tl.atomic_xchg(counters_ptr, 1, ", CUT),
    "rows of a shared piece": (M, "other=0)) * GROUP_SIZE", "other=0)) * 0", SHARED),
    "shared pieces left out": (M, "tl.where(shared >= 0, tl.load(shared_span + 1), 0)", "shared * 0", SHARED),
    "window one too long": (A, "depth_m - (WINDOW - 1)", "depth_m - WINDOW", WINDOW),
    "window of ancestors": (A, "depth_n[None, :] < WINDOW", "depth_n[None, :] <= WINDOW", WINDOW),
    "a sink in base e": (A, "mask=mask_m, other=0.0) * LOG2_E", "mask=mask_m, other=0.0)", SINKS),
    "scale of values on the tree": (A, 'if FP8 != "" and not TREE_IN_CACHE:', 'if FP8 == "no":', FP8),
    "scale of keys on the tree": (
        A,
        "    if TREE_IN_CACHE:\n        tree_scale",
        "    if True:\n        tree_scale",
        FP8,
    ),
    "sign of FP8": (T, "((bits & 0x80) << 8)", "((bits & 0x80) << 7)", FP8),
    "unused work keeps its rows": (
        S,
        "tl.store(work_ptr + item * WORK + 5, 0, mask=(item >= next_item)",
        "tl.store(work_ptr + item * WORK + 5, 3, mask=(item >= next_item)",
        replace(PLAIN, room=600, processors=64),
    ),
    "pieces between tiles": (S, "(size + block_n - 1) // block_n * block_n, block_n", "size + 1, block_n", LONG),
    "ancestors modulo 32": (S, "(at % 64).to(tl.int64)", "(at % 32).to(tl.int64)", WIDE),
}


@pytest.mark.parametrize("case", {str(case): case for *_, case in ATTENTION.values()}.values(), ids=str)
def test_the_kernels_pass_their_own_check(case: Case) -> None:
    right(case)


@pytest.mark.parametrize("name", ATTENTION)
def test_a_bug_in_attention_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, line, other, case = ATTENTION[name]
    plant(module, line, other, tmp_path, monkeypatch)
    with pytest.raises((AssertionError, InterpreterError)):  # a wrong result, or an address outside of every tensor
        right(case)


def poisoned() -> None:
    """What is no number in a leaf stays there."""
    inputs = make(replace(PLAIN, trees=([-1, 0, 0],)), "cpu")
    inputs.v[1] = torch.nan
    out = attention.tree_attention(*inputs.arguments, impl="triton").out
    assert out.isfinite().all(-1).all(-1).tolist() == [True, False, True]


def padded() -> None:
    """Rows of no tree are 0, whatever the memory held."""
    inputs = make(replace(PLAIN, trees=([-1, 0, 0], chain(6)), lengths=(40, 3)), "cpu")
    cache = replace(inputs.cache, table=inputs.cache.table[:1], lengths=inputs.cache.lengths[:1])
    trees = replace(inputs.trees, offsets=inputs.trees.offsets[:2])
    empty = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(7))
        found = attention.tree_attention(inputs.q, inputs.k, inputs.v, cache, trees, impl="triton")
    assert not found.out[3:].any()


def moved() -> None:
    """A path longer than what moves at once, in a store of a tensor, a view of it, and one in a page far away."""
    pages = (1 << 17) + 1  # of 16 rows of 512 values: the last begins behind 2 GB
    far = sparse(pages * 16 * 512).view(pages, 16, 512)
    far[[5, pages - 1]] = torch.arange(32.0, dtype=torch.float16).view(2, 16, 1)
    table = torch.tensor([[5, pages - 1]], dtype=I32)
    path = [0, *range(2, 30, 2), 29, 30]
    lengths, accepted = torch.tensor([1], dtype=I32), torch.tensor([path], dtype=I32)
    store = compaction.TokenStore.of([far, far[..., :256]])
    with within_bounds([far, store.strips, table, lengths, accepted]):
        compaction.compact_kv(store, lengths, accepted, table=table, impl="triton")
    rows = far[[5, pages - 1]].view(32, 512)
    expected = torch.tensor([1.0 + node for node in path], dtype=torch.float16)
    for column in (0, 255, 256, 511):
        assert torch.equal(rows[1 : 1 + len(path), column], expected)


def aligned() -> None:
    """Keys that begin between two 16-byte words are read without descriptors."""
    inputs = make(replace(CUT, dtype=torch.float16), "cpu")
    shifted = torch.empty(inputs.cache.k.numel() + 1, dtype=torch.float16)[1:].view(inputs.cache.k.shape)
    shifted.copy_(inputs.cache.k)
    cache = replace(inputs.cache, k=shifted)
    assert attention._descriptors(cache, cache.k, cache.v, 32) is None


def refused() -> None:
    """A step of another layout, and one of another cache."""
    inputs = make(PLAIN, "cpu")
    at = inputs.step()
    half = replace(inputs.cache, k=inputs.cache.k.half(), v=inputs.cache.v.half())
    with pytest.raises(InputError):
        attention.tree_attention(inputs.q.half(), None, None, half, at, impl="triton")
    other = replace(inputs.cache, lengths=inputs.cache.lengths.clone())
    with pytest.raises(InputError):
        attention.tree_attention(*inputs.arguments[:3], other, at, impl="triton")


def launched() -> None:
    """The options of a launch are those that its line says, and that are compiled for the table."""
    seen: list[dict[str, object]] = []

    class Kernel:
        def __getitem__(self, grid: object) -> object:
            return lambda *arguments, **options: seen.append(options)

    inputs = make(CUT, "cpu")
    at = inputs.step(processors=64)
    with pytest.MonkeyPatch.context() as patch:
        fake = type("M", (), {"attention_kernel": Kernel()})
        patch.setitem(attention._launch.__globals__, "jitted", lambda name: fake)
        attention.tree_attention(*inputs.arguments[:4], at, impl="triton")
    line = at.plan.config
    expected = {"num_warps": line.num_warps, "num_stages": line.stages(paged=True), "maxnreg": line.maxnreg}
    assert {name: seen[0].get(name) for name in expected} == expected
    assert line.maxnreg is not None


HOST = {
    "0 times NaN": (A, "v_0 = tl.where((broken == 0.0)[:, None], v_0, tl.zeros_like(v_0))", "v_0 = v_0", poisoned),
    "NaN that nobody sees": (A, "qk + broken[None, :], UNSEEN)", "qk, UNSEEN)", poisoned),
    "padding that is left": (A, "first_row = tl.load(work + 8) + item", "first_row = num_tokens", padded),
    "only the first rows move": (C, "range(0, path_length, BLOCK_ROWS)", "range(0, 1, BLOCK_ROWS)", moved),
    "32-bit pages": (C, "return pages * page_bytes +", "return (pages * page_bytes).to(tl.int32) +", moved),
    "shared memory twice": (
        "strips",
        "merged[max(len(merged) - 1, 0) :] = [",
        "merged[len(merged) :] = [strip, ",
        moved,
    ),
    "descriptors without alignment": ("cache", "% 16 or tensor.data_ptr() % 16 or", "% 16 or", aligned),
    "any layout": ("attention", "if step.layout != layout:", "if False:", refused),
    "any cache": ("attention", "cache.lengths.data_ptr() != step.lengths.data_ptr()", "False", refused),
    "no limit on registers": ("attention", 'else {"maxnreg": config.maxnreg}', "else {}", launched),
}


@pytest.mark.parametrize("check", list(dict.fromkeys(check for *_, check in HOST.values())), ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_rest_passes_its_checks(check: object) -> None:
    check()  # type: ignore[operator]


@pytest.mark.parametrize("name", HOST)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_another_bug_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, line, other, check = HOST[name]
    plant(module, line, other, tmp_path, monkeypatch)
    with pytest.raises((AssertionError, InterpreterError, InputError, pytest.fail.Exception)):
        check()
