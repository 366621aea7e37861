"""The roofline, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from treeopt.cost import Dtype, Experts, GroupedAttention, Hardware, KernelTimes
from treeopt.cost.kernels.family import Family, Use
from treeopt.cost.kernels.gemm import Gemm
from treeopt.errors import InputError


@pytest.fixture
def times(round_gpu: Hardware) -> KernelTimes:
    return round_gpu.kernel_times()


def test_a_gemm_takes_the_longer_of_memory_and_arithmetic_and_a_launch(times: KernelTimes) -> None:
    # 1000 x 500 weights: 1e6 B at 1e12 B/s and 3 kB per token; 1e6 operations per token at 2e14/s are 2 us for 400
    found = times.gemm_s(np.array([1.0, 400.0]), Gemm(1000, 500), Dtype.BF16)
    assert found == pytest.approx([2.003e-6, 3.2e-6])
    many = times.gemm_s(np.array(1e5), Gemm(10_000, 5_000), Dtype.BF16)
    assert many == pytest.approx(1e5 * 1e8 / 2e14 + 1e-6)
    assert times.gemm_s(np.array(1e5), Gemm(10_000, 5_000), Dtype.FP8) == pytest.approx(1e5 * 1e8 / 4e14 + 1e-6)


def test_int4_streams_a_quarter_and_computes_in_16_bit(times: KernelTimes) -> None:
    weight = Gemm(12_800, 10_000)
    assert times.gemm_s(np.array(0.0), weight, Dtype.INT4) == pytest.approx((0.5 + 2 / 128) * 1.28e8 / 1e12 + 1e-6)
    assert times.gemm_s(np.array(1e5), weight, Dtype.INT4) == pytest.approx(1e5 * 2.56e8 / 2e14 + 1e-6)
    assert times.ridge_tokens(Dtype.INT4) == pytest.approx(2e14 * (0.5 + 2 / 128) / (2 * 1e12))


def test_experts_are_two_launches(times: KernelTimes) -> None:
    experts = Experts(count=4, per_token=2, intermediate=50, shared_intermediate=0, dense_layers=0)
    # one token: two experts of 3 * 100 * 50 weights, and its activations through both
    moved_bytes = 2 * (2 * 15_000 + 2 * (100 + 100 + 50 + 100))
    assert times.experts_s(np.array(1.0), experts, 100, Dtype.BF16) == pytest.approx(moved_bytes / 1e12 + 2e-6)


def test_attention_and_copies_and_messages(times: KernelTimes) -> None:
    shape = GroupedAttention(heads=8, kv_heads=2, head_dim=64)
    # memory-bound: 3 requests, 100 keys, 2 * 2 * 64 values in 2 bytes
    assert times.attention_s(np.array(3.0), np.array(1.0), np.array(100.0), shape) == pytest.approx(
        3 * 100 * 512 / 1e12 + 1e-6
    )
    # arithmetic-bound: 300 queries of 8 heads, four operations per channel
    assert times.attention_s(np.array(3.0), np.array(300.0), np.array(1e4), shape) == pytest.approx(
        3 * 300 * 1e4 * 4 * 8 * 64 / 2e14 + 1e-6
    )
    assert times.stream_s(np.array([0.0, 3e6])) == pytest.approx([1e-6, 4e-6])
    # four GPUs: each sends 2 * 3/4 of 1 MB at 0.1 TB/s: 15 us
    assert times.all_reduce_s(np.array([0.0, 1e6]), 4) == pytest.approx([1e-6, 16e-6])
    assert times.all_reduce_s(np.array([0.0, 1e6]), 1).tolist() == [0.0, 0.0]


def test_the_ridge_is_that_of_the_hardware(times: KernelTimes) -> None:
    assert times.ridge_tokens(Dtype.BF16) == times.ridge_tokens(Dtype.FP16) == 200.0
    with pytest.raises(InputError, match="round has no fp32 arithmetic") as caught:
        times.ridge_tokens(Dtype.FP32)
    assert caught.value.hint == "it has: bf16, fp8"


def test_attention_needs_no_bf16(round_gpu: Hardware) -> None:
    old = replace(round_gpu, peak_flops={Dtype.FP16: 1e14}).kernel_times()
    shape = GroupedAttention(heads=8, kv_heads=2, head_dim=64)
    time_s = old.attention_s(np.array(3.0), np.array(300.0), np.array(1e4), shape)
    assert time_s == pytest.approx(3 * 300 * 1e4 * 4 * 8 * 64 / 1e14 + 1e-6)


def test_a_datasheet_has_no_error_and_says_so(times: KernelTimes, shipped_hardware: Callable[[str], Hardware]) -> None:
    sheet = shipped_hardware("h100-sxm").kernel_times()
    assert {sheet.error(family, Dtype.BF16) for family in Family} == {None}
    said = {sheet.beyond(family, Dtype.BF16, Use(tokens=1 << 20)) for family in Family}
    assert said == {"step times are a datasheet roofline, not measured: trust the shape more than the number"}
    assert times.beyond(Family.GEMM, Dtype.BF16, Use()) is None  # rates that somebody measured
