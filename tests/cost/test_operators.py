"""Operators against arithmetic by hand, and expert coverage against every possible routing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from treeopt.cost import Dtype, Experts, GroupedAttention, Hardware, LatentAttention, operators
from treeopt.cost.gemm import Gemm, gated_ffn


def test_a_gemm_streams_its_weight_once_and_its_activations_per_token() -> None:
    work = operators.gemm(np.array([1.0, 300.0]), Gemm(outputs=3000, inputs=1000), Dtype.BF16)
    assert work.traffic_bytes.tolist() == [2 * 3_000_000 + 2 * 4000, 2 * 3_000_000 + 2 * 300 * 4000]
    assert work.flops.tolist() == [2 * 3_000_000, 2 * 300 * 3_000_000]
    fp8 = operators.gemm(np.array(1.0), Gemm(outputs=3000, inputs=1000), Dtype.FP8)
    assert fp8.traffic_bytes == 3_000_000 + 2 * 4000


def test_a_grouped_gemm_is_that_many_small_ones() -> None:
    work = operators.gemm(np.array(5.0), Gemm(outputs=30, inputs=10, groups=4), Dtype.BF16)
    assert work.traffic_bytes == 4 * (2 * 300 + 2 * 5 * 40)
    assert work.flops == 4 * 2 * 5 * 300


def test_time_is_the_longer_of_memory_and_arithmetic_plus_launches(round_gpu: Hardware) -> None:
    work = operators.Operator(traffic_bytes=np.array([1e6, 1e6]), flops=np.array([1e8, 1e9]), launches=3)
    # 1e6 B at 1e12 B/s is 1 us; 1e8 and 1e9 operations at 2e14/s are 0.5 and 5 us; three launches of 1 us
    assert work.time_s(round_gpu, Dtype.BF16) == pytest.approx([4e-6, 8e-6])
    assert work.time_s(round_gpu, Dtype.FP8) == pytest.approx([4e-6, 5.5e-6])


def test_attention_reads_each_request_once_whatever_its_queries() -> None:
    shape = GroupedAttention(heads=8, kv_heads=2, head_dim=64)
    work = operators.attention(np.array(3.0), np.array([1.0, 7.0]), np.array([101.0, 107.0]), shape, 5)
    # 5 layers, 3 requests, k and v of 2 heads of 64 in 2 bytes, once per key
    assert work.traffic_bytes.tolist() == [5 * 3 * 101 * 2 * 2 * 64 * 2, 5 * 3 * 107 * 2 * 2 * 64 * 2]
    assert work.flops.tolist() == [5 * 4 * 3 * 1 * 8 * 64 * 101, 5 * 4 * 3 * 7 * 8 * 64 * 107]
    assert work.launches == 5


def test_latent_attention_reads_one_latent_for_all_heads() -> None:
    shape = LatentAttention(
        heads=16, q_lora_rank=96, kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=20
    )
    work = operators.attention(np.array(3.0), np.array(7.0), np.array(107.0), shape, 1)
    assert work.traffic_bytes == 3 * 107 * (32 + 8) * 2
    # scores over 32 + 8 channels, values over 32, two operations each
    assert work.flops == 3 * 7 * 107 * 16 * (2 * 40 + 2 * 32)


def test_absorbed_projections_have_the_weights_of_the_unabsorbed_layer() -> None:
    shape = LatentAttention(
        heads=16, q_lora_rank=96, kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=20
    )
    hidden = 128
    # DeepSeek-V2, appendix C: W_DQ, W_UQ and W_QR, W_DKV and W_KR, W_UK, W_UV, W_O
    expected = hidden * 96 + 96 * 16 * (24 + 8) + hidden * (32 + 8) + 32 * 16 * 24 + 32 * 16 * 20 + 16 * 20 * hidden
    assert sum(gemm.weights for gemm in shape.projections(hidden)) == expected


@pytest.mark.parametrize(("count", "per_token", "tokens"), [(4, 2, 3), (5, 1, 4), (6, 3, 2), (3, 3, 2)])
def test_visited_experts_is_the_mean_over_every_routing(count: int, per_token: int, tokens: int) -> None:
    choices = list(itertools.combinations(range(count), per_token))
    routings = list(itertools.product(choices, repeat=tokens))
    mean = np.mean([len(set().union(*routing)) for routing in routings])
    experts = Experts(count=count, per_token=per_token, intermediate=1, shared_intermediate=0, dense_layers=0)
    assert operators.visited_experts(np.array(float(tokens)), experts) == pytest.approx(mean, rel=1e-12)


def test_one_token_visits_its_own_experts_and_many_visit_all() -> None:
    experts = Experts(count=128, per_token=8, intermediate=1, shared_intermediate=0, dense_layers=0)
    assert operators.visited_experts(np.array([1.0, 1e4]), experts) == pytest.approx([8, 128])


def test_experts_stream_what_is_visited_and_compute_what_is_routed() -> None:
    experts = Experts(count=4, per_token=2, intermediate=50, shared_intermediate=0, dense_layers=0)
    work = operators.expert_ffn(np.array(3.0), experts, gated_ffn(hidden=100, intermediate=50), Dtype.BF16)
    weights = 3 * 100 * 50
    visited = 4 * (1 - 0.5**3)
    activations = 3 * 2 * (100 + 2 * 50 + 50 + 100)
    assert work.traffic_bytes == pytest.approx(2 * weights * visited + 2 * activations)
    assert work.flops == 2 * 3 * 2 * weights
    assert work.launches == 2


def test_a_ring_all_reduce_by_hand(round_gpu: Hardware) -> None:
    message_bytes = np.array([0.0, 1e6])
    # four GPUs: each sends 2 * 3/4 of 1 MB at 0.1 TB/s: 15 us, and one launch
    assert operators.all_reduce_s(message_bytes, round_gpu, tp=4) == pytest.approx([1e-6, 16e-6])
    assert operators.all_reduce_s(message_bytes, round_gpu, tp=1).tolist() == [0.0, 0.0]


def test_compaction_reads_and_writes_every_moved_token(round_gpu: Hardware) -> None:
    work = operators.compaction(np.array(5.0), np.array(3.0), kv_bytes_per_token=1_000_000)
    assert work.time_s(round_gpu, Dtype.BF16) == pytest.approx(5 * 3 * 2 * 1e6 / 1e12 + 1e-6)
