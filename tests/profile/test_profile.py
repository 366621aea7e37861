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
from treeopt.cost.kernels.gemm import Gemm
from treeopt.errors import InputError
from treeopt.profile.grid import ceiling_points
from treeopt.profile.measure import KernelBench
from treeopt.profile.points import COMPACTION, KernelPoint
from treeopt.profile.profile import compaction_price, over_floor, profile_of

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
    price = compaction_price(profiled.fitted.hardware, profiled.times)
    assert price is not None
    assert 1.0 < price.median <= price.worst < 3.0  # three times the bytes, but the launch only once
    assert compaction_price(profiled.fitted.hardware, []) is None


def test_too_few_rows_are_kept_for_another_run(tmp_path: Path) -> None:
    found = filled(tmp_path / "r.jsonl", count=8)
    with pytest.raises(InputError, match="too few to fit") as caught:
        profile_of(found, name="toy", command="test", noise=None)
    assert "r.jsonl keeps what was timed: run again with more time" in caught.value.hint


def test_what_has_no_kernel_is_refused(tmp_path: Path) -> None:
    found = bench(tmp_path / "r.jsonl")
    with pytest.raises(InputError, match="fp8 kernels are not timed"):
        replace(found, questions=questions(dtype=Dtype.FP8))


def test_noise_needs_the_row(tmp_path: Path) -> None:
    assert bench(tmp_path / "none.jsonl").noise() is None


def test_rows_say_on_what_they_were_timed(tmp_path: Path) -> None:
    filled(tmp_path / "r.jsonl", count=1)
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert {json.loads(line)["device"] for line in lines} == {"paper, 1 thread, torch 2"}
