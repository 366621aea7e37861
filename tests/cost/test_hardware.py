"""Hardware files: the ridge, and what broken files say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from treeopt.cost import Hardware, break_even_batch, load_hardware
from treeopt.errors import FileFormatError, InputError

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
    assert shipped_hardware(name).ridge_tokens(dtype) == pytest.approx(ridge, abs=0.05)


@pytest.mark.parametrize(("ridge", "nodes", "batch"), [(295.2, 10, 29), (295.2, 5, 59), (300.0, 10, 30), (9.9, 10, 0)])
def test_break_even_batch_is_the_last_within_the_ridge(ridge: float, nodes: int, batch: int) -> None:
    assert break_even_batch(ridge, nodes) == batch
    assert batch * nodes <= ridge < (batch + 1) * nodes


def test_a_missing_dtype_lists_what_there_is(shipped_hardware: Shipped) -> None:
    with pytest.raises(InputError, match="a100-sxm has no fp8 arithmetic") as caught:
        shipped_hardware("a100-sxm").ridge_tokens("fp8")
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
        ("hardware/1", "model/1", 1, "format: 'treeopt.model/1' is not a hardware file"),
        ("source: measured", "source: guessed", 4, "source: unknown source 'guessed'"),
        ("bandwidth_bytes_per_s: 1e12", "bandwidth: 1e12", 5, "bandwidth: unknown key"),
        ("{bf16: 2e14}", "{int4: 2e14}", 6, "peak_flops.int4: unknown key"),
        ("{bf16: 2e14}", "{}", 6, "peak_flops: no dtype at all"),
        ("{bf16: 2e14}", "{bf16: -1}", 6, "peak_flops.bf16: -1 is out of range"),
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
