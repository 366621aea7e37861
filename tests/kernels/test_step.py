"""The kernels that run once per step: ancestor bits, depths, and the cutting of prefixes."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from attention_cases import Case, chain, make, random_tree, star, unequal  # noqa: E402

from treeopt.errors import InputError  # noqa: E402
from treeopt.kernels.config import HeadShape, attention_config  # noqa: E402
from treeopt.kernels.step import (  # noqa: E402
    Schedule,
    Slicing,
    ancestors,
    prepare_step,
    schedule,
    schedule_reference,
    slicing,
)
from treeopt.kernels.trees import NodeTrees  # noqa: E402
from treeopt.tree import DraftTree  # noqa: E402

CUT = Slicing(items=40, slots=12, min_chunk=64, overhead=20, splits=16, keys=32)


@pytest.mark.parametrize("impl", ["triton", "torch"])
def test_ancestors_are_those_of_draft_trees(impl: str, device: str) -> None:
    trees = [DraftTree.from_parents(random_tree(n, n)) for n in (1, 5, 64, 65, 130)]
    found = ancestors(NodeTrees.from_parents([t.parents.tolist() for t in trees], device=device), impl=impl)
    assert found.impl == impl
    assert found.bits.shape == (265, 3)
    start = 0
    for tree in trees:
        mine = slice(start, start := start + len(tree))
        words = torch.from_numpy(tree.ancestor_bits.view("int64"))
        assert torch.equal(found.bits[mine, : words.shape[1]].cpu(), words)
        assert not found.bits[mine, words.shape[1] :].any()
        assert found.depths[mine].tolist() == tree.depths.tolist()


@pytest.mark.parametrize("tree", [chain(64), star(64), unequal(63), [-1], []], ids=len)
def test_bits_by_hand(tree: list[int], device: str) -> None:
    found = ancestors(NodeTrees.from_parents([tree, [-1]], device=device), impl="triton")
    seen = []
    for node in range(len(tree)):
        mask, at = 0, node
        while at >= 0:
            mask, at = mask | 1 << at, tree[at]
        seen.append(mask - (mask >> 63 << 64))
    assert found.bits[:, 0].tolist() == [*seen, 1]


def test_a_parent_behind_its_child_ends_the_walk(device: str) -> None:
    circle = torch.tensor([-1, 2, 1], dtype=torch.int32, device=device)
    offsets = torch.tensor([0, 3], dtype=torch.int32, device=device)
    found = ancestors(NodeTrees(parents=circle, offsets=offsets, max_nodes=3), impl="triton")
    assert found.bits[:, 0].tolist() == [1, 2, 6]


def trees_of(nodes: list[int], device: str = "cpu") -> NodeTrees:
    return NodeTrees.from_parents([chain(n) for n in nodes], device=device)


def assert_covers(plan: Schedule, lengths: list[int], nodes: list[int], cut: Slicing) -> None:
    """Every prefix token once, pieces in order, the tree with the last piece, unused items without rows."""
    used = 0
    for request, (length, count) in enumerate(zip(lengths, nodes, strict=True)):
        first, pieces = plan.spans[request].tolist()
        assert first == used
        used += pieces
        end = 0
        for piece, row in enumerate(plan.work[first:used].tolist()):
            assert row[:2] == [request, end]
            end = row[2]
            assert row[3:7] == [piece == pieces - 1, sum(nodes[:request]), count, pieces]
            assert end == length or end % cut.keys == 0
        assert end == length
    assert plan.work.shape[0] == cut.items
    assert not plan.work[used:, 5].any()


@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 9)), min_size=1, max_size=20))
def test_pieces_cover_the_prefixes_on_the_device_as_on_the_host(requests: list[tuple[int, int]]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths, nodes = [r[0] for r in requests], [r[1] for r in requests]
    tokens = torch.tensor(lengths, dtype=torch.int32, device=device)
    found = schedule(trees_of(nodes, device), tokens, CUT, impl="triton")
    assert_covers(found, lengths, nodes, CUT)
    expected = schedule_reference(trees_of(nodes, device), tokens, CUT)
    assert torch.equal(found.spans, expected.spans)
    used = int(expected.spans[-1].sum())
    assert torch.equal(found.work[:used, :7], expected.work[:used, :7])


def ends_at(plan: Schedule, cut: Slicing) -> int:
    """When the last piece ends if pieces start in order, each where a slot is free."""
    slots = [0] * cut.slots
    for _, start, stop, _, _, _, pieces, _ in plan.work[: int(plan.spans[-1].sum())].tolist():
        heapq.heappush(slots, heapq.heappop(slots) + stop - start + (cut.overhead if pieces > 1 else 0))
    return max(slots)


def test_cutting_ends_no_later_than_leaving_whole_and_near_the_mean_load() -> None:
    draw = random.Random(0)
    for _ in range(100):
        lengths = [draw.choice([100, 1000, 10_000]) * draw.randint(1, 9) for _ in range(draw.randint(1, 16))]
        tokens, trees = torch.tensor(lengths, dtype=torch.int32), trees_of([1] * len(lengths))
        cut = Slicing(items=len(lengths) + 24, slots=12, min_chunk=64, overhead=20, splits=64, keys=32)
        end = ends_at(schedule_reference(trees, tokens, cut), cut)
        whole = Slicing(items=cut.items, slots=12, min_chunk=64, overhead=20, splits=1, keys=32)
        assert end <= ends_at(schedule_reference(trees, tokens, whole), whole)
        assert end <= 2 * max(sum(lengths) / cut.slots, cut.min_chunk) + cut.keys + 5 * cut.overhead


def test_equal_prefixes_fill_whole_waves() -> None:
    """16 requests of 8192 tokens on 33 slots: two pieces each, since a third would open a second wave."""
    cut = Slicing(items=16 + 66, slots=33, min_chunk=128, overhead=96, splits=64, keys=64)
    plan = schedule_reference(trees_of([1] * 16), torch.full((16,), 8192, dtype=torch.int32), cut)
    assert plan.spans[:, 1].tolist() == [2] * 16


def test_a_long_prefix_among_short_ones_is_cut_alone() -> None:
    cut = Slicing(items=8 + 66, slots=33, min_chunk=128, overhead=96, splits=64, keys=64)
    lengths = torch.tensor([100_000, *[1000] * 7], dtype=torch.int32)
    pieces = schedule_reference(trees_of([1] * 8), lengths, cut).spans[:, 1].tolist()
    assert pieces[0] >= 16
    assert pieces[1:] == [1] * 7


def test_slicing_follows_from_static_shapes() -> None:
    """132 processors, 8 KV heads, 16 nodes x 4 query heads: one row tile, at least 8 x 64 tokens a piece."""
    config = attention_config(shape=HeadShape(128, 128), element_bytes=2, rows=64)
    cut = slicing(config=config, requests=4, rows=64, kv_heads=8, capacity=8192, processors=132)
    assert cut.slots == 132 * config.programs // 8
    assert cut.min_chunk == 512
    assert cut.splits == 16
    assert cut.items == 64
    wide = slicing(config=config, requests=1, rows=1024, kv_heads=8, capacity=8192, processors=132)
    assert wide.min_chunk == 2048
    assert wide.slots == max(1, cut.slots // -(-1024 // config.block_m))


def test_steps_say_what_does_not_share_out(device: str) -> None:
    inputs = make(Case(trees=([-1],), lengths=(3,), kv_heads=2), device)
    with pytest.raises(InputError, match="argument q: 3 query heads"):
        prepare_step(inputs.q[:, :3], inputs.cache, inputs.trees)
