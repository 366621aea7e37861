"""Operators against arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest

from treeopt.cost import Dtype, GroupedAttention, LatentAttention
from treeopt.cost.kernels.attention import attention_work, latent_work
from treeopt.cost.kernels.experts import experts_work
from treeopt.cost.kernels.gemm import Gemm, gemm_work


def test_a_gemm_streams_its_weight_once_and_its_activations_per_token() -> None:
    work = gemm_work(np.array([1.0, 300.0]), np.array(3000.0), np.array(1000.0), 2)
    assert work.traffic_bytes.tolist() == [2 * 3_000_000 + 2 * 4000, 2 * 3_000_000 + 2 * 300 * 4000]
    assert work.flops.tolist() == [2 * 3_000_000, 2 * 300 * 3_000_000]
    assert gemm_work(np.array(1.0), np.array(3000.0), np.array(1000.0), 1).traffic_bytes == 3_000_000 + 2 * 4000
    # four bits a weight, two bytes of scale for every 128 of them
    int4 = gemm_work(np.array(1.0), np.array(1280.0), np.array(1000.0), Dtype.INT4.bytes_per_value)
    assert int4.traffic_bytes == 1_280_000 / 2 + 2 * 10_000 + 2 * 2280


def test_attention_reads_each_request_once_whatever_its_queries() -> None:
    heads = (np.array(8.0), np.array(2.0), np.array(64.0))
    work = attention_work(np.array(3.0), np.array([1.0, 7.0]), np.array([101.0, 107.0]), *heads)
    # 3 requests, k and v of 2 heads of 64 in 2 bytes, once per key
    assert work.traffic_bytes.tolist() == [3 * 101 * 2 * 2 * 64 * 2, 3 * 107 * 2 * 2 * 64 * 2]
    assert work.flops.tolist() == [4 * 3 * 1 * 8 * 64 * 101, 4 * 3 * 7 * 8 * 64 * 107]


def test_latent_attention_reads_one_latent_for_all_heads() -> None:
    work = latent_work(np.array(3.0), np.array(7.0), np.array(107.0), np.array(16.0), 32, 8)
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
    work = experts_work(np.array(3.0), hidden=100, intermediate=50, count=4, per_token=2, skew=0.0, bytes_per_value=2)
    weights = 3 * 100 * 50
    visited = 4 * (1 - 0.5**3)
    activations = 3 * 2 * (100 + 2 * 50 + 50 + 100)
    assert work.traffic_bytes == pytest.approx(2 * weights * visited + 2 * activations)
    assert work.flops == 2 * 3 * 2 * weights
    assert work.units == pytest.approx(visited)
