"""Measured times in use: against the rows they came from, by hand elsewhere, and honest beyond them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timing_rows import TOKENS, WEIGHTS, decode_lines, gemm_lines, gemm_time_s

from treeopt.cost import Dtype, Experts, GroupedAttention, LatentAttention
from treeopt.cost.fit.choose import fit_family
from treeopt.cost.fit.kinds import rows_of
from treeopt.cost.fit.rows import joined
from treeopt.cost.fit.tables import read_table
from treeopt.cost.kernels.family import Family, Use
from treeopt.cost.kernels.fits import FitEntry, KernelFits, rates
from treeopt.cost.kernels.gemm import Gemm
from treeopt.cost.kernels.times import KernelTimes
from treeopt.errors import InputError

MOE = Experts(count=16, per_token=2, intermediate=512, shared_intermediate=0, dense_layers=0, skew=0.0)


def expert_lines() -> list[str]:
    """Three layers of experts, 30 us and 2 TB/s, at balanced and at skewed routing that visits half as many."""
    lines = ["moe_dtype,hidden_size,inter_size,topk,num_experts,moe_tp_size,distribution,num_tokens,latency_us"]
    for width in (512, 1024, 2048):
        for kind, share in (("balanced", 1.0), ("power_law_1.2", 0.5)):
            for tokens in (1, 2, 4, 8, 16, 64, 256):
                visited = share * 16 * (1 - (1 - 2 / 16) ** tokens)
                time_us = 30 + (2 * 3 * 1024 * width * visited + 4 * tokens * (2048 + 3 * width)) / 2e6
                lines.append(f"bfloat16,1024,{width},2,16,1,{kind},{tokens},{time_us:.9g}")
    return lines


def reduce_lines() -> list[str]:
    return [
        "kernel_source,num_gpus,elements_bf16,latency_us",
        *(f"x_graph,{tp},{2**e},{5 + 2**e * 2 * 2 * (tp - 1) / tp / 2e5:.9g}" for tp in (2, 4) for e in range(8, 22)),
    ]


def gemm_with_spike() -> list[str]:
    lines = gemm_lines()
    at = next(i for i, line in enumerate(lines) if line.startswith("toy,engine-1,192,8192,6144,"))
    lines[at] = f"toy,engine-1,192,8192,6144,{1.5e6 * gemm_time_s(192, 8192, 6144):.9g}"
    return lines


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> KernelTimes:
    folder = tmp_path_factory.mktemp("rows")
    entries = []
    for name, lines in (
        ("gemm", gemm_with_spike()),
        ("decode", decode_lines()),
        ("experts", expert_lines()),
        ("reduce", reduce_lines()),
    ):
        path = folder / f"{name}.csv"
        path.write_text("\n".join(lines) + "\n")
        for rows in joined(rows_of(read_table(path))):
            entries.append(FitEntry(rows.family, rows.dtype, fit_family(rows, peak_flops=4e14).fit))
    return KernelTimes(name="toy", fits=KernelFits(entries=tuple(entries)), link_bandwidth_bytes_per_s=1e11)


@pytest.fixture(scope="module")
def gemms_only(times: KernelTimes) -> KernelTimes:
    kept = tuple(entry for entry in times.fits.entries if entry.family is Family.GEMM)
    return KernelTimes(name="bare", fits=KernelFits(entries=kept), link_bandwidth_bytes_per_s=1e11)


@pytest.mark.parametrize(("n", "k"), WEIGHTS)
def test_measured_weights_take_their_measured_times(n: int, k: int, times: KernelTimes) -> None:
    found = times.gemm_s(np.array(TOKENS, dtype=float), Gemm(n, k), Dtype.BF16)
    spiked = [1.5 if (m, n, k) == (192, 8192, 6144) else 1.0 for m in TOKENS]
    measured = [spike * gemm_time_s(m, n, k) for m, spike in zip(TOKENS, spiked, strict=True)]
    # A size takes no longer than a larger one: of the spike stays what 256 tokens take.
    assert found.tolist() == pytest.approx([min(measured[at:]) for at in range(len(TOKENS))], rel=1e-9)


def test_a_weight_that_was_not_measured_is_near_the_truth(times: KernelTimes) -> None:
    found = times.gemm_s(np.array([1.0, 64.0, 512.0]), Gemm(12288, 5120), Dtype.BF16)
    assert found.tolist() == pytest.approx([gemm_time_s(m, 12288, 5120) for m in (1, 64, 512)], rel=0.02)


def test_grouped_weights_are_one_launch(times: KernelTimes) -> None:
    form = rates(times.fits)
    found = times.gemm_s(np.array(1.0), Gemm(128, 512, groups=64), Dtype.BF16)
    traffic = 64 * (2 * 128 * 512 + 2 * (128 + 512))
    memory_s, math_s = traffic / form.bandwidth_bytes_per_s, 64 * 2 * 128 * 512 / form.peak_flops
    soft = (memory_s**form.sharpness + math_s**form.sharpness) ** (1 / form.sharpness)
    assert float(found) == pytest.approx(form.launch_s + soft)


def test_decode_attention_takes_its_measured_times(times: KernelTimes) -> None:
    shape = GroupedAttention(heads=32, kv_heads=8, head_dim=128)
    found = times.attention_s(np.array([[1.0], [16.0]]), np.array(1.0), np.array([128.0, 8192.0]), shape)
    memory_s = [[2 * b * keys * 2 * 8 * 128 / 3e12 for keys in (128, 8192)] for b in (1, 16)]
    expected = 10e-6 + 0.02e-6 * 8 * np.array([[1], [16]]) + np.array(memory_s)
    assert np.allclose(found, expected, rtol=0.02)  # the rate of arithmetic softens the maximum a little
    assert found.shape == (2, 2)


def test_queries_share_the_memory_and_add_arithmetic(times: KernelTimes) -> None:
    shape = GroupedAttention(heads=32, kv_heads=8, head_dim=128)
    one, few, many = times.attention_s(np.array(16.0), np.array([1.0, 4.0, 640.0]), np.array(8192.0), shape)
    assert few < 1.05 * one  # 16 queries on a key: far below the ridge
    math_s = 4 * 16 * 640 * 8192 * 32 * 128 / 4e14
    assert many == pytest.approx(math_s, rel=0.05)


def test_latent_attention_reads_one_latent(times: KernelTimes) -> None:
    shape = LatentAttention(
        heads=16, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    found = float(times.attention_s(np.array(4.0), np.array(1.0), np.array(65536.0), shape))
    assert found == pytest.approx(10e-6 + 2 * 4 * 65536 * 576 / 3e12, rel=0.03)


def test_experts_at_both_routings(times: KernelTimes) -> None:
    tokens = np.array([1.0, 4.0, 64.0])
    for skew, share in ((0.0, 1.0), (8.0, 0.5)):
        visited = share * 16 * (1 - (1 - 2 / 16) ** tokens)
        expected = 30e-6 + (2 * 3 * 1024 * 512 * visited + 4 * tokens * (2048 + 3 * 512)) / 2e12
        fit = next(entry.fit for entry in times.fits.entries if entry.family is Family.EXPERTS)
        experts = MOE if skew == 0 else Experts(**{**vars(MOE), "skew": fit.skew})
        assert times.experts_s(tokens, experts, 1024, Dtype.BF16).tolist() == pytest.approx(expected.tolist(), rel=1e-3)


def test_all_reduce_takes_its_measured_times(times: KernelTimes) -> None:
    sent = np.array([2.0**12, 2.0**20])
    assert times.all_reduce_s(sent, 4).tolist() == pytest.approx((5e-6 + sent * 1.5 / 2e11).tolist(), rel=1e-6)
    assert times.all_reduce_s(sent, 1).tolist() == [0.0, 0.0]
    assert np.isfinite(times.all_reduce_s(np.array(0.0), 2))


def test_without_rows_a_family_stands_on_gemms_and_says_so(gemms_only: KernelTimes) -> None:
    form = rates(gemms_only.fits)
    assert float(gemms_only.stream_s(np.array(1e6))) == pytest.approx(form.launch_s + 1e6 / form.bandwidth_bytes_per_s)
    assert float(gemms_only.all_reduce_s(np.array(1e6), 2)) == pytest.approx(form.launch_s + 1e6 / 1e11)
    assert float(gemms_only.experts_s(np.array(1.0), MOE, 1024, Dtype.BF16)) > 2 * form.launch_s
    shape = GroupedAttention(heads=8, kv_heads=1, head_dim=128)
    assert float(gemms_only.attention_s(np.array(1.0), np.array(1.0), np.array(64.0), shape)) > form.launch_s
    for family in (Family.STREAM, Family.ALL_REDUCE, Family.EXPERTS, Family.ATTENTION):
        assert gemms_only.error(family, Dtype.BF16) is None
        sentence = gemms_only.beyond(family, Dtype.BF16, Use(tokens=1))
        assert sentence is not None
        assert "measured" in sentence


def test_beyond_the_range_it_speaks(times: KernelTimes) -> None:
    assert times.beyond(Family.GEMM, Dtype.BF16, Use(tokens=1024)) is None
    assert times.beyond(Family.GEMM, Dtype.BF16, Use(tokens=1025)) == (
        "toy: gemm was measured up to 1,024 tokens, asked for 1,025"
    )
    sentence = times.beyond(Family.ATTENTION, Dtype.BF16, Use(keys=9000, requests=16, queries=8)) or ""
    assert "up to 8,192 keys, asked for 9,000" in sentence
    assert "several queries per request was not measured" in sentence
    assert times.beyond(Family.ATTENTION, Dtype.BF16, Use(keys=8192, requests=16, queries=1)) is None
    assert "up to 4 tp, asked for 8" in (times.beyond(Family.ALL_REDUCE, Dtype.BF16, Use(tp=8)) or "")


def test_formats_that_others_stand_in_for(times: KernelTimes) -> None:
    weight = Gemm(8192, 8192)
    assert times.gemm_s(np.array(1.0), weight, Dtype.FP16) == times.gemm_s(np.array(1.0), weight, Dtype.BF16)
    form = rates(times.fits)
    quarter = float(times.gemm_s(np.array(1.0), weight, Dtype.INT4)) - form.launch_s
    assert quarter == pytest.approx((8192 * 8192 * (0.5 + 2 / 128) + 4 * 8192) / form.bandwidth_bytes_per_s, rel=1e-3)
    assert "no int4 GEMM was measured" in (times.beyond(Family.GEMM, Dtype.INT4, Use(tokens=1)) or "")
    with pytest.raises(InputError, match="toy has no fp8 arithmetic") as caught:
        times.ridge_tokens(Dtype.FP8)
    assert caught.value.hint == "it has: bf16"


def test_the_ridge_is_that_of_the_fitted_rates(times: KernelTimes) -> None:
    assert times.ridge_tokens(Dtype.BF16) == pytest.approx(7e14 * 2 / (2 * 2.5e12), rel=1e-2)
    error = times.error(Family.GEMM, Dtype.BF16)
    assert error is not None
    assert 0 <= error.median <= error.p90


@given(tokens=st.floats(1, 1e6), n=st.integers(1, 200_000), k=st.integers(1, 50_000))
def test_every_time_is_finite_and_positive(tokens: float, n: int, k: int, times: KernelTimes) -> None:
    found = float(times.gemm_s(np.array(tokens), Gemm(n, k), Dtype.BF16))
    assert math.isfinite(found)
    assert found > 0


def test_an_archive_is_the_same_every_time(times: KernelTimes, tmp_path: Path) -> None:
    assert times.fits.archive() == times.fits.archive()
