"""Hardware files: the ridge, and what broken files say."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treeopt.cost import (
    Dtype,
    EngineSteps,
    Hardware,
    ModelShape,
    ModelStep,
    Ngram,
    break_even_batch,
    load_hardware,
)
from treeopt.cost.hardware import save_hardware
from treeopt.cost.kernels.gemm import Gemm
from treeopt.errors import FileFormatError, InputError
from treeopt.files.shipped import locate, shipped_names

PROFILE = """\
format: treeopt.hardware/1
name: tiny
device: a GPU
source: measured
bandwidth_bytes_per_s: 1e12
peak_flops: {bf16: 2e14}
memory_bytes: 1e10
link_bandwidth_bytes_per_s: 1e11
launch_s: 1e-6
sources:
  launch_s: a stopwatch
"""

Shipped = Callable[[str], Hardware]


@pytest.mark.parametrize(
    ("name", "dtype", "ridge"),
    [
        ("h100-sxm", "bf16", 295.2),  # 989e12 / 3.35e12
        ("h100-sxm", "fp8", 295.4),  # 1979e12 / (2 * 3.35e12)
        ("h200-sxm", "bf16", 206.0),  # 989e12 / 4.8e12
        ("a100-sxm", "fp16", 153.0),  # 312e12 / 2.039e12
        ("l40s", "bf16", 419.0),  # 362.05e12 / 864e9
        ("b200", "bf16", 281.25),  # 2250e12 / 8e12
    ],
)
def test_ridge(name: str, dtype: str, ridge: float, shipped_hardware: Shipped) -> None:
    assert shipped_hardware(name).kernel_times().ridge_tokens(Dtype(dtype)) == pytest.approx(ridge, abs=0.05)


@pytest.mark.parametrize(("ridge", "nodes", "batch"), [(295.2, 10, 29), (295.2, 5, 59), (300.0, 10, 30), (9.9, 10, 0)])
def test_break_even_batch_is_the_last_within_the_ridge(ridge: float, nodes: int, batch: int) -> None:
    assert break_even_batch(ridge, nodes) == batch
    assert batch * nodes <= ridge < (batch + 1) * nodes


def test_a_missing_dtype_lists_what_there_is(shipped_hardware: Shipped) -> None:
    with pytest.raises(InputError, match="a100-sxm has no fp8 arithmetic") as caught:
        shipped_hardware("a100-sxm").kernel_times().ridge_tokens(Dtype.FP8)
    assert caught.value.hint == "it has: bf16, fp16"


def test_a_profile_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(PROFILE)
    assert load_hardware(path) == Hardware(
        name="tiny",
        device="a GPU",
        source="measured",
        bandwidth_bytes_per_s=1e12,
        peak_flops={"bf16": 2e14},  # type: ignore[dict-item]
        memory_bytes=1e10,
        link_bandwidth_bytes_per_s=1e11,
        launch_s=1e-6,
        sources={"launch_s": "a stopwatch"},
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("hardware/1", "model/1", 1, "format: this is 'treeopt.model/1', expected 'treeopt.hardware/1'"),
        ("source: measured", "source: guessed", 4, "source: unknown source 'guessed'"),
        ("bandwidth_bytes_per_s: 1e12", "bandwidth: 1e12", 5, "bandwidth: unknown key"),
        ("{bf16: 2e14}", "{int4: 2e14}", 6, "peak_flops.int4: unknown key"),
        ("{bf16: 2e14}", "{}", 6, "peak_flops: no dtype at all"),
        ("{bf16: 2e14}", "{bf16: -1}", 6, "peak_flops.bf16: -1 FLOP/s is out of range"),
        ("memory_bytes: 1e10", "memory_bytes: lots", 7, "memory_bytes: expected a number, found str"),
        ("1e-6\n", "3.7\n", 9, "launch_s: 3.7 is out of range"),
        ("  launch_s: a stopwatch", "  lunch_s: a stopwatch", 11, "sources.lunch_s: unknown key"),
    ],
)
def test_a_broken_profile_names_the_line(old: str, new: str, line: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    text = PROFILE.replace(old, new)
    assert text != PROFILE
    path.write_text(text)
    with pytest.raises(FileFormatError) as caught:
        load_hardware(path)
    assert str(caught.value).startswith(f"{path}:{line}: {message}")
    assert caught.value.hint


def test_rates_without_fits_are_a_roofline_and_come_back_from_their_file(tmp_path: Path) -> None:
    path, again = tmp_path / "tiny.yaml", tmp_path / "again.yaml"
    path.write_text(PROFILE + "engine_steps: {step_s: 0.001, draft_pass_s: 0.0002, capture_tokens: [1, 2, 4]}\n")
    hardware = load_hardware(path)
    assert hardware.kernel_times().gemm_s(np.array(1.0), Gemm(1000, 500), Dtype.BF16) == pytest.approx(2.003e-6)
    assert hardware.engine_steps == EngineSteps(step_s=0.001, draft_pass_s=0.0002, capture_tokens=(1, 2, 4))
    save_hardware(again, hardware)
    assert load_hardware(again) == hardware
    assert not again.with_suffix(".npz").exists()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("measurement: {engine: e}\n", "measurement: 'date' is missing"),
        ("engine_steps: {step: 1}\n", "engine_steps.step: unknown key"),
        ("fits: {}\nrows: {file: none.npz, sha256: x}\n", "'measurement' is missing"),
    ],
)
def test_half_a_measured_profile_is_refused(section: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(PROFILE + section)
    with pytest.raises(FileFormatError) as caught:
        load_hardware(path)
    assert message in str(caught.value)


MEASURED = [name for name in shipped_names("hardware") if load_hardware(locate("hardware", name).path).fits]


def test_measured_profiles_are_shipped() -> None:
    assert {"h100-sxm-vllm-0.24", "h100-sxm-sglang-0.5.14", "h100-sxm-trtllm-1.3", "a100-sxm-vllm-0.14"} <= {*MEASURED}


@pytest.mark.parametrize("name", MEASURED)
def test_a_shipped_measured_profile_is_small_and_says_where_it_is_from(name: str) -> None:
    path = locate("hardware", name).path
    assert path.with_suffix(".npz").stat().st_size < 165_000
    hardware = load_hardware(path)
    assert hardware.measurement is not None
    assert hardware.measurement.licence == "Apache-2.0"
    assert "aiconfigurator-core 0.12.0" in hardware.measurement.numbers
    assert hardware.measurement.command.startswith("treeopt profile fit --rows ")
    assert "/tmp" not in path.read_text()


@pytest.mark.parametrize("name", [name for name in MEASURED if name.startswith("h100")])
def test_an_h100_is_an_h100(name: str, shipped_model: Callable[[str], ModelShape]) -> None:
    """A Llama-3.1-8B step of one token streams 15 GB of weights: 5 to 8 ms, at twice the tokens hardly more."""
    hardware = load_hardware(locate("hardware", name).path)
    assert 2.7e12 <= hardware.bandwidth_bytes_per_s <= 2.95e12
    assert 740e12 <= hardware.peak_flops[Dtype.BF16] <= 870e12
    assert 3e-6 <= hardware.launch_s <= 4.5e-6
    step = ModelStep(model=shipped_model("llama-3.1-8b"), times=hardware.kernel_times(), drafter=Ngram())
    one, two, many = (
        step.terms(batch=batch, nodes=1, depth=0, widths=[0], context=1024).total_s for batch in (1, 2, 512)
    )
    assert 5e-3 < one < 8e-3
    assert two < 1.1 * one
    assert many > 3 * one


SPOILT: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("falling sizes", lambda curves: curves.update({"gemm.bf16.sweep": curves["gemm.bf16.sweep"][::-1]})),
    ("NaN", lambda curves: curves.update({"gemm.bf16.sweep": curves["gemm.bf16.sweep"] * np.nan})),
    ("a weight of no size", lambda curves: curves.update({"gemm.bf16.points": curves["gemm.bf16.points"] * 0})),
    ("nothing measured", lambda curves: curves["gemm.bf16.values"].fill(np.iinfo(np.int16).min)),
    ("text", lambda curves: curves.update({"gemm.bf16.values": np.array(["x"])})),
    ("a missing curve", lambda curves: curves.pop("gemm.bf16.points")),
]


@pytest.mark.parametrize(("_what", "spoil"), SPOILT, ids=[what for what, _ in SPOILT])
def test_curves_that_no_measurement_gives_are_refused(
    _what: str, spoil: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    source = locate("hardware", "a100-sxm-vllm-0.14").path
    with np.load(source.with_suffix(".npz")) as archive:
        curves = dict(archive)
    spoil(curves)
    spoilt = tmp_path / source.with_suffix(".npz").name
    np.savez(spoilt, allow_pickle=False, **curves)
    with pytest.raises(FileFormatError, match=r"rows file|curves"):
        load_hardware(signed(source, spoilt))


def test_a_rows_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    source = locate("hardware", "a100-sxm-vllm-0.14").path
    cut = tmp_path / source.with_suffix(".npz").name
    cut.write_bytes(source.with_suffix(".npz").read_bytes()[:9000])
    with pytest.raises(FileFormatError, match="not an NPZ file"):
        load_hardware(signed(source, cut))


def signed(source: Path, rows: Path) -> Path:
    """The profile `source` beside `rows`, with the checksum of that file."""
    path = rows.with_suffix(".yaml")
    checksum = hashlib.sha256(rows.read_bytes()).hexdigest()
    path.write_text(re.sub(r"sha256: \w{64}", f"sha256: {checksum}", source.read_text()))
    return path
