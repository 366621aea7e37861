"""Operators against arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest

from treeopt.cost import Dtype, Experts, GroupedAttention, LatentAttention, operators
from treeopt.cost.gemm import Gemm


def test_a_gemm_streams_its_weight_once_and_its_activations_per_token() -> None:
    work = operators.gemm(np.array([1.0, 300.0]), Gemm(outputs=3000, inputs=1000), Dtype.BF16)
    assert work.traffic_bytes.tolist() == [2 * 3_000_000 + 2 * 4000, 2 * 3_000_000 + 2 * 300 * 4000]
    assert work.flops.tolist() == [2 * 3_000_000, 2 * 300 * 3_000_000]
    fp8 = operators.gemm(np.array(1.0), Gemm(outputs=3000, inputs=1000), Dtype.FP8)
    assert fp8.traffic_bytes == 3_000_000 + 2 * 4000
    # four bits a weight, two bytes of scale for every 128 of them
    int4 = operators.gemm(np.array(1.0), Gemm(outputs=1280, inputs=1000), Dtype.INT4)
    assert int4.traffic_bytes == 1_280_000 / 2 + 2 * 10_000 + 2 * 2280


def test_a_grouped_gemm_is_that_many_small_ones() -> None:
    work = operators.gemm(np.array(5.0), Gemm(outputs=30, inputs=10, groups=4), Dtype.BF16)
    assert work.traffic_bytes == 4 * (2 * 300 + 2 * 5 * 40)
    assert work.flops == 4 * 2 * 5 * 300


def test_attention_reads_each_request_once_whatever_its_queries() -> None:
    shape = GroupedAttention(heads=8, kv_heads=2, head_dim=64)
    work = operators.attention(np.array(3.0), np.array([1.0, 7.0]), np.array([101.0, 107.0]), shape)
    # 3 requests, k and v of 2 heads of 64 in 2 bytes, once per key
    assert work.traffic_bytes.tolist() == [3 * 101 * 2 * 2 * 64 * 2, 3 * 107 * 2 * 2 * 64 * 2]
    assert work.flops.tolist() == [4 * 3 * 1 * 8 * 64 * 101, 4 * 3 * 7 * 8 * 64 * 107]
    assert work.launches == 1


def test_latent_attention_reads_one_latent_for_all_heads() -> None:
    shape = LatentAttention(
        heads=16, q_lora_rank=96, kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=20
    )
    work = operators.attention(np.array(3.0), np.array(7.0), np.array(107.0), shape)
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


def test_projections_may_read_more_than_the_hidden_channels() -> None:
    shape = GroupedAttention(heads=8, kv_heads=2, head_dim=64)
    assert shape.projections(512, 1024) == (Gemm(8 * 64 + 2 * 2 * 64, 1024), Gemm(512, 8 * 64))


def test_experts_stream_what_is_visited_and_compute_what_is_routed() -> None:
    experts = Experts(count=4, per_token=2, intermediate=50, shared_intermediate=0, dense_layers=0)
    work = operators.expert_ffn(np.array(3.0), experts, hidden=100, dtype=Dtype.BF16)
    weights = 3 * 100 * 50
    visited = 4 * (1 - 0.5**3)
    activations = 3 * 2 * (100 + 2 * 50 + 50 + 100)
    assert work.traffic_bytes == pytest.approx(2 * weights * visited + 2 * activations)
    assert work.flops == 2 * 3 * 2 * weights
    assert work.launches == 2
