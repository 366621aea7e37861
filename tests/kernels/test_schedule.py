"""How prefixes are cut: every token once, on the device as on the host, and by what it costs."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import kernel_model  # noqa: E402 (needs torch)
from attention_cases import chain  # noqa: E402

from treeopt.kernels.cache import SharedPrefixes  # noqa: E402
from treeopt.kernels.chip import CHIPS, Chip  # noqa: E402
from treeopt.kernels.config import HeadShape, attention_config  # noqa: E402
from treeopt.kernels.pieces import WorkList, entries_of, schedule_reference  # noqa: E402
from treeopt.kernels.schedule import schedule  # noqa: E402
from treeopt.kernels.slicing import Slicing, slicing  # noqa: E402
from treeopt.kernels.trees import NodeTrees  # noqa: E402

I32 = torch.int32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CUT = Slicing(
    items=40,
    processors=12,
    min_piece=64,
    block_n=32,
    block_m=16,
    group=4,
    kv_heads=2,
    window=0,
    token_cost=16 << 10,
    dram_cost=1 << 10,
    row_cost=300,
    start_cost=512 << 10,
    merge_cost=900 << 10,
    merge_rows=8,
)


def trees_of(nodes: list[int]) -> NodeTrees:
    return NodeTrees.from_parents([chain(n) for n in nodes], device=DEVICE)


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=I32, device=DEVICE)


def assert_covers(plan: WorkList, lengths: list[int], nodes: list[int], cut: Slicing, shared: SharedPrefixes | None):
    """Every request reads what it sees once and in order, its tree last; partial rows lie apart; tasks cover them."""
    spans, work = plan.spans.tolist(), plan.work.tolist()
    offsets = [sum(nodes[:i]) for i in range(len(nodes) + 1)]
    taken: set[int] = set()
    arrivals, split_rows = 0, 0
    for at, (first, pieces, _, first_node, count, *_) in enumerate(spans):
        for item in range(first, first + pieces):
            request, start, stop, last, row_node, row_count, split, base, padding, length = work[item][:10]
            assert (row_node, row_count, padding) == (first_node, count, offsets[-1])
            assert start % cut.block_n == 0
            assert length >= stop >= start
            assert last == (at < len(nodes) and item == first + pieces - 1)
            if split:
                mine = set(range(base, base + count * cut.group))
                assert not mine & taken
                taken |= mine
                arrivals += cut.kv_heads * -(-count * cut.group // cut.block_m)
            assert request == (at if at < len(nodes) else shared.offsets.tolist()[at - len(nodes)])
    tasks = {(entry, row) for entry, row in plan.tasks[: int(plan.counters[3])].tolist()}
    for request, (length, count) in enumerate(zip(lengths, nodes, strict=True)):
        first, pieces, group, first_node, *_ = spans[request]
        if not count:
            assert pieces == 0
            continue
        parts = [(spans[group][0], spans[group][1])] if group >= 0 else []
        items = [work[i] for start, n in [*parts, (first, pieces)] for i in range(start, start + n)]
        assert all(row[4] <= offsets[request] < row[4] + row[5] for row in items)
        visible = max(length + 1 - cut.window, 0) // cut.block_n * cut.block_n if cut.window else 0
        assert items[0][1] == visible
        assert items[-1][2] == length == items[-1][9]
        assert all(a[2] == b[1] for a, b in pairwise(items))
        assert all((row[6] == 1) == (len(items) > 1) for row in items)
        rows = range(0, count * cut.group, cut.merge_rows) if len(items) > 1 else range(0)
        assert {row for entry, row in tasks if entry == request} == set(rows)
        split_rows += len(rows)
        assert first_node == offsets[request]
    assert len(tasks) == split_rows == int(plan.counters[3]) <= plan.tasks.shape[0]
    assert plan.counters.tolist()[:3] == [0, 0, arrivals]
    used = sum(span[1] for span in spans)
    assert plan.work.shape[0] == cut.items >= used
    assert not plan.work[used:, 5].any()
    assert (plan.work[:, 8] == offsets[-1]).all()
    most = max(nodes) * cut.group
    assert len(taken) <= cut.partial_rows(most, 0 if shared is None else offsets[-1] * cut.group, len(nodes))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_pieces_cover_the_prefixes_on_the_device_as_on_the_host(data: st.DataObject) -> None:
    draw = data.draw
    requests = draw(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 9)), min_size=1, max_size=40))
    lengths, nodes = [r[0] for r in requests], [r[1] for r in requests]
    kind = draw(st.sampled_from(["plain", "window", "shared"]))
    cut = replace(
        CUT,
        items=len(requests) + draw(st.integers(0, 60)),
        processors=draw(st.sampled_from([1, 4, 132])),
        block_m=draw(st.sampled_from([16, 128])),
        kv_heads=draw(st.sampled_from([1, 8])),
        window=draw(st.integers(1, 2000)) if kind == "window" else 0,
    )
    shared = None
    if kind == "shared":
        offsets = [0, *sorted(draw(st.sets(st.integers(1, len(requests)))) - {len(requests)}), len(requests)]
        tokens = [draw(st.integers(0, min(lengths[a:b]))) for a, b in pairwise(offsets)]
        shared = SharedPrefixes(offsets=ints(offsets), tokens=ints(tokens))
        shared.check(lengths)
        cut = replace(cut, items=cut.items + len(tokens))
    trees, tokens = trees_of(nodes), ints(lengths)
    found = schedule(trees, tokens, cut, shared=shared, impl="triton")
    assert found.impl == "triton"
    assert_covers(found, lengths, nodes, cut, shared)
    expected = schedule_reference(trees, entries_of(trees, tokens, shared, cut.block_n), cut)
    used = int(expected.spans[:, 1].sum())
    assert torch.equal(found.spans[:, :5], expected.spans[:, :5])
    assert torch.equal(found.work[:used, :10], expected.work[:used, :10])
    assert torch.equal(found.counters, expected.counters)
    tasks = int(expected.counters[3])
    assert torch.equal(found.tasks[:tasks], expected.tasks[:tasks])


def ends_at(plan: WorkList, cut: Slicing) -> int:
    """When the last program ends if programs start in order, each on the processor that is free first."""
    free = [0] * cut.processors
    for row in plan.work[: int(plan.spans[:, 1].sum())].tolist():
        for _ in range(cut.kv_heads * -(-row[5] * cut.group // cut.block_m)):
            heapq.heappush(free, heapq.heappop(free) + (row[2] - row[1]) * cut.token_cost + cut.start_cost)
    return max(free)


def planned(lengths: list[int], nodes: list[int], cut: Slicing) -> WorkList:
    trees = trees_of(nodes)
    return schedule_reference(trees, entries_of(trees, ints(lengths), None, cut.block_n), cut)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 90), st.sampled_from([1, 10, 100])), min_size=1, max_size=16))
def test_cutting_ends_no_later_than_leaving_whole_and_near_the_mean_load(sizes: list[tuple[int, int]]) -> None:
    lengths = [100 * n * scale for n, scale in sizes]
    cut = replace(CUT, items=len(lengths) + 24, row_cost=0, dram_cost=0, merge_cost=0)
    nodes = [1] * len(lengths)
    end = ends_at(planned(lengths, nodes, cut), cut)
    whole = ends_at(planned(lengths, nodes, replace(cut, items=len(lengths))), cut)
    assert end <= 2 * whole  # Graham's rule is itself within a factor of two of the best order
    mean = cut.kv_heads * sum(lengths) * cut.token_cost // cut.processors
    longest = max(lengths) * cut.token_cost // 12  # 24 more pieces, two heads: a twelfth of the longest at least
    assert end <= 2 * (mean + longest) + 30 * cut.start_cost + cut.block_n * cut.token_cost


def test_equal_prefixes_fill_whole_waves() -> None:
    """16 requests of 8192 tokens x 8 heads on 132 processors are one wave: more pieces would open a second."""
    cut = replace(CUT, items=16 + 66, processors=132, kv_heads=8, block_n=64, dram_cost=0)
    assert planned([8192] * 16, [1] * 16, cut).spans[:, 1].tolist() == [1] * 16
    assert planned([8192] * 8, [1] * 8, cut).spans[:, 1].tolist() == [2] * 8


def test_a_long_prefix_among_short_ones_is_cut_alone() -> None:
    cut = replace(CUT, items=8 + 66, processors=132, kv_heads=4, block_n=64, dram_cost=0)
    pieces = planned([100_000, *[1000] * 7], [1] * 8, cut).spans[:, 1].tolist()
    assert pieces[0] >= 16
    assert max(pieces[1:]) <= 2


def shape_of(
    nodes: int, *, capacity: int, kv_heads: int = 8, requests: int = 1, chip: Chip = CHIPS["sm_90"]
) -> Slicing:
    shape = HeadShape(128, 128)
    config = attention_config(shape=shape, element_bytes=2, rows=4 * nodes, chip=chip)
    return slicing(
        config=config,
        chip=chip,
        shape=shape,
        element_bytes=2,
        kv_bytes=2,
        requests=requests,
        rows=4 * nodes,
        group=4,
        kv_heads=kv_heads,
        capacity=capacity,
    )


def test_costs_of_a_token_by_hand() -> None:
    """128 + 128 sixteen-bit values, 64 rows, 0.46 of 4096 operations per clock, memory's 2457 bytes."""
    cut = shape_of(16, capacity=16384)
    assert cut.token_cost == round(1024 * 2 * 64 * 256 / (0.46 * 4096))  # products take longer than 512 / 34 clocks
    assert shape_of(1, capacity=8192).token_cost == round(1024 * 512 / 34)
    assert cut.dram_cost == round(1024 * 512 / 2457)
    assert cut.row_cost == round(1024 * 1024 / 2457)  # 128 float32 values written and read
    assert cut.items == 1 + 2 * (132 * 2 // 8)
    assert shape_of(16, capacity=300).items == 3  # at least 128 tokens a piece


def test_a_small_tree_in_a_graph_for_large_ones_is_cut_as_what_it_is() -> None:
    """Prepared for 64 nodes, a tree of 4 has one row tile of the two, and twice as many pieces."""
    large = shape_of(64, capacity=8192)
    programs = [8 * -(-4 * n // large.block_m) * int(planned([8192], [n], large).spans[0, 1]) for n in (4, 64)]
    assert programs == [128, 128]


def test_few_programs_merge_so_that_pieces_find_room() -> None:
    assert shape_of(64, capacity=8192).workers(nodes=64, requests=1) == 66
    assert shape_of(1, capacity=8192, kv_heads=1).workers(nodes=1, requests=1) == 2
    assert replace(CUT, processors=1).workers(nodes=1, requests=1) == 1
    assert shape_of(1, capacity=100).workers(nodes=1, requests=1) == 0  # nothing can be cut, nothing is launched


def test_the_model_of_a_launch_holds_its_targets() -> None:
    """As fast as pieces of 128 tokens without the second launch; 60 % of the floor where a tile holds the rows."""
    for case in kernel_model.CASES:
        old, short, new = (
            kernel_model.before(case, least=None),
            kernel_model.before(case, least=128),
            kernel_model.now(case),
        )
        merged = 0.0 if case.requests * case.kv_heads * -(-4 * case.nodes // 128) == short.programs else 2.5e-6
        assert new.time_s <= min(old.time_s, short.time_s - merged) + 1e-12, case
        if case.nodes * case.group <= 64 and new.floor_s > 8e-6:
            assert new.of_floor >= 0.6, case
        if case.requests >= 16 and case.length >= 8192 and case.nodes <= 16 and case.kv_heads == 8:
            assert new.of_floor >= 0.94, case
