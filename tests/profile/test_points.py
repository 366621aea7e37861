"""What a point moves and computes, its floor, and the order of points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.attention import GroupedAttention
from treeopt.cost.kernels.gemm import Gemm
from treeopt.profile.points import Ceilings, coarse_to_fine, compaction, gemm, interleaved, stream, tree_attention

CEILINGS = Ceilings(bandwidth_bytes_per_s=1e9, flops_per_s=1e11)
HEADS = GroupedAttention(heads=8, kv_heads=2, head_dim=16)


def test_a_gemm_streams_its_weight_and_both_activations() -> None:
    point = gemm(3, Gemm(100, 50), Dtype.FP32)
    assert (point.traffic_bytes, point.flops) == (4 * (100 * 50 + 3 * 150), 2 * 3 * 100 * 50)
    assert point.floor_s(CEILINGS) == pytest.approx(21_800 / 1e9)  # 30,000 operations take 0.3 us only
    assert gemm(3000, Gemm(100, 50), Dtype.FP32).floor_s(CEILINGS) == pytest.approx(1.82e-3)  # 1.82 MB
    assert gemm(512, Gemm(4096, 4096), Dtype.BF16).floor_s(CEILINGS) == pytest.approx(2 * 512 * 4096**2 / 1e11)


def test_attention_reads_keys_values_queries_and_writes_results() -> None:
    point = tree_attention(3, 4, 100, HEADS, Dtype.BF16)
    assert point.traffic_bytes == 2 * (3 * 100 * 2 * 2 * 16 + 2 * 3 * 4 * 8 * 16)
    assert point.flops == 3 * 4 * 100 * 4 * 8 * 16
    assert (point.size("keys"), point.size("queries")) == (100, 4)


def test_compaction_reads_and_writes_the_rows_of_all_layers() -> None:
    point = compaction(3, 4, 5, HEADS, Dtype.FP16)
    assert point.traffic_bytes == 2 * 2 * 3 * 4 * 5 * (2 * 2 * 16)
    assert point.size("traffic_bytes") == point.traffic_bytes


def test_eight_points_come_in_bit_reversed_order() -> None:
    points = [stream(size, Dtype.FP32) for size in range(8)]
    assert [p.traffic_bytes for p in coarse_to_fine(points)] == [0, 4, 2, 6, 1, 5, 3, 7]


@given(st.integers(0, 70), st.integers(1, 70))
def test_every_beginning_covers_the_range(count: int, taken: int) -> None:
    order = [p.traffic_bytes for p in coarse_to_fine([stream(size, Dtype.FP32) for size in range(count)])]
    assert sorted(order) == list(range(count))
    seen = sorted(order[:taken])
    gaps = [b - a for a, b in zip(seen, [*seen[1:], count], strict=True)] if seen else []
    # k points leave no gap above that of the largest power of two not above k.
    full = 1 << max(1, (count - 1).bit_length())
    assert all(gap <= max(1, full >> (len(seen).bit_length() - 1)) for gap in gaps)


def test_groups_take_turns() -> None:
    groups = [[stream(g * 10 + i, Dtype.FP32) for i in range(n)] for g, n in enumerate((3, 0, 1))]
    assert [p.traffic_bytes for p in interleaved(groups)] == [0, 20, 2, 1]
