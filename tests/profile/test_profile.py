"""From rows to a profile: rates that were put in are found again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy_device import CEILINGS, MODEL, at, bench, questions

from treeopt.cost import load_hardware
from treeopt.cost.formats import Dtype
from treeopt.cost.hardware import save_hardware
from treeopt.cost.kernels.attention import GroupedAttention
from treeopt.cost.kernels.gemm import Gemm
from treeopt.errors import InputError
from treeopt.profile.beside import AS_LAYER, AS_STREAM, AS_TREE, beside
from treeopt.profile.grid import ceiling_points
from treeopt.profile.measure import KernelBench
from treeopt.profile.points import (
    COMPACTION,
    CONTIGUOUS,
    PAGES_16,
    SCHEDULE,
    KernelPoint,
    sampling,
    schedule,
    tree_attention,
)
from treeopt.profile.profile import over_floor, profile_of

LAUNCH_S = 2e-6


def true_s(point: KernelPoint) -> float:
    factor = 3.0 if point.operator == COMPACTION else 1.0
    return LAUNCH_S + factor * point.floor_s(CEILINGS)


def filled(path: Path, count: int | None = None) -> KernelBench:
    found = bench(path, max_tokens=64)
    ceilings = ceiling_points(Dtype.FP32, device="cpu", memory_bytes=found.device.input_bytes)
    for point in (*ceilings, *found.points[:count]):
        time_s = point.floor_s(CEILINGS) if point in ceilings else true_s(point)
        found.rows.append(at(point, time_s))
    return found


def test_the_profile_prices_what_was_measured(tmp_path: Path) -> None:
    profiled = profile_of(filled(tmp_path / "r.jsonl"), name="toy", command="treeopt profile", noise=0.01)
    assert profiled.ceilings.bandwidth_bytes_per_s == pytest.approx(10e9, rel=1e-5)
    assert profiled.ceilings.flops_per_s == pytest.approx(100e9, rel=1e-5)
    out = tmp_path / "toy.yaml"
    save_hardware(out, profiled.fitted.hardware)
    hardware = load_hardware(out)
    assert (hardware.source, hardware.device) == ("measured", "paper, 1 thread")
    assert hardware.memory_bytes == 6 << 30
    assert hardware.sources["link_bandwidth_bytes_per_s"].startswith("assumed, not measured")
    assert hardware.measurement is not None
    assert (hardware.measurement.engine, hardware.measurement.command) == ("torch-2", "treeopt profile")
    times = hardware.kernel_times()
    # A measured weight at a measured number of tokens: 4 x (512 x 64 + 64 x 576) bytes at 10 GB/s, and the launch
    found = float(times.gemm_s(np.array(64.0), Gemm(512, 64), Dtype.FP32))
    assert found == pytest.approx(LAUNCH_S + max(4 * (512 * 64 + 64 * 576) / 10e9, 2 * 64 * 512 * 64 / 100e9), rel=2e-3)
    one_mb = float(times.stream_s(np.array(float(1 << 20))))
    assert one_mb == pytest.approx(LAUNCH_S + (1 << 20) / 10e9, rel=2e-3)
    # 4 requests with 8 queries each over 512 keys
    attention = float(times.attention_s(np.array(4.0), np.array(8.0), np.array(512.0), MODEL.attention))
    traffic = 4 * (4 * 512 * 2 * 2 * 32 + 2 * 4 * 8 * 4 * 32)
    assert attention == pytest.approx(LAUNCH_S + max(traffic / 10e9, 4 * 8 * 512 * 4 * 4 * 32 / 100e9), rel=2e-3)


def test_ratios_to_the_floor_and_to_the_price(tmp_path: Path) -> None:
    profiled = profile_of(filled(tmp_path / "r.jsonl"), name="toy", command="test", noise=None)
    rows = {row.operator: row for row in over_floor(profiled.times)}
    assert rows["stream"].points == 16
    assert rows["stream"].worst.point.traffic_bytes == 4096
    assert rows["stream"].worst.over_floor == pytest.approx((LAUNCH_S + 4096 / 10e9) / (4096 / 10e9), rel=1e-4)
    found = {row.operator: row for row in profiled.beside}
    assert 1.0 < found[COMPACTION].median <= found[COMPACTION].worst < 3.0  # three times the bytes, but one launch
    assert found["norm"].median == pytest.approx(1.0, rel=0.01)
    assert {row.other for row in profiled.beside} == {AS_STREAM}
    assert beside({}, profiled.fitted.hardware.kernel_times()) == []


def test_what_is_set_beside_what_by_hand(tmp_path: Path) -> None:
    """Other layouts beside pages of 64, a step's schedule beside one layer, sampling as two streams."""
    profiled = profile_of(filled(tmp_path / "r.jsonl"), name="toy", command="test", noise=None)
    prices = profiled.fitted.hardware.kernel_times()
    heads = MODEL.attention
    assert isinstance(heads, GroupedAttention)
    sizes = (1, 4, 512, heads, Dtype.BF16)
    logits = sampling(4, 100_000, Dtype.BF16)
    times = {
        tree_attention(*sizes): 10e-6,
        tree_attention(*sizes, operator=PAGES_16): 12e-6,
        tree_attention(*sizes, operator=CONTIGUOUS): 9e-6,
        tree_attention(1, 4, 128, heads, Dtype.BF16, operator=CONTIGUOUS): 9e-6,  # the other was not timed
        schedule(*sizes): 5e-6,
        logits: 2 * (2 * LAUNCH_S + 10 * 400_000 / 10e9),
    }
    found = {row.operator: row for row in beside(times, prices)}
    assert (found[PAGES_16].other, found[PAGES_16].points, found[PAGES_16].median) == (AS_TREE, 1, pytest.approx(1.2))
    assert (found[CONTIGUOUS].points, found[CONTIGUOUS].worst) == (1, pytest.approx(0.9))
    assert (found[SCHEDULE].other, found[SCHEDULE].median) == (AS_LAYER, pytest.approx(0.5))
    assert found["sampling"].median == pytest.approx(2.0, rel=0.01)


def test_too_few_rows_are_kept_for_another_run(tmp_path: Path) -> None:
    found = filled(tmp_path / "r.jsonl", count=8)
    with pytest.raises(InputError, match="too few to fit") as caught:
        profile_of(found, name="toy", command="test", noise=None)
    assert "r.jsonl keeps what was timed: run again with more time" in caught.value.hint


def test_what_has_no_kernel_is_refused(tmp_path: Path) -> None:
    found = bench(tmp_path / "r.jsonl")
    with pytest.raises(InputError, match="int4 kernels are not timed"):
        replace(found, questions=questions(dtype=Dtype.INT4))


def test_noise_needs_the_row(tmp_path: Path) -> None:
    assert bench(tmp_path / "none.jsonl").noise() is None


def test_rows_say_on_what_they_were_timed(tmp_path: Path) -> None:
    filled(tmp_path / "r.jsonl", count=1)
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert {json.loads(line)["device"] for line in lines} == {"paper, 1 thread, torch 2"}
