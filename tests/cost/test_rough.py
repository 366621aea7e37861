"""A profile that is far off its own held-out points says so wherever it is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from treeopt.cost.formats import Dtype
from treeopt.cost.hardware import Hardware, load_hardware, save_hardware
from treeopt.cost.kernels.family import Family, FitError
from treeopt.cost.kernels.fits import FitEntry, KernelFits
from treeopt.cost.kernels.rough import rough_prices
from treeopt.files.shipped import locate
from treeopt.planner.compare import compare
from treeopt.planner.search import search

H100 = load_hardware(locate("hardware", "h100-sxm-vllm-0.24").path)
GEMMS = ((Family.GEMM, Dtype.BF16), (Family.ATTENTION, Dtype.BF16))


def with_gemm_error(median: float) -> Hardware:
    assert H100.fits is not None
    off = FitError(median=median, p90=0.9)
    entries = [
        replace_fit(entry, off) if (entry.family, entry.dtype) == GEMMS[0] else entry for entry in H100.fits.entries
    ]
    return replace(H100, name="busy", fits=KernelFits(entries=tuple(entries)))


def replace_fit(entry: FitEntry, off: FitError) -> FitEntry:
    return entry._replace(fit=replace(entry.fit, between=off))


def test_the_worst_family_is_told_with_what_to_do() -> None:
    said = rough_prices(with_gemm_error(0.78).kernel_times(), GEMMS)
    assert said is not None
    assert "the fit of busy is off by 78% at the median on gemm points that it was not fitted to" in said
    assert "treeopt measure" in said
    assert rough_prices(with_gemm_error(0.29).kernel_times(), GEMMS) is None


def test_no_shipped_profile_is_rough() -> None:
    for path in locate("hardware", "h100-sxm").path.parent.glob("*.yaml"):
        hardware = load_hardware(path)
        fitted = [] if hardware.fits is None else [(entry.family, entry.dtype) for entry in hardware.fits.entries]
        assert not fitted or rough_prices(hardware.kernel_times(), fitted) is None, path.name


def test_search_and_compare_warn_of_it(tmp_path: Path) -> None:
    save_hardware(tmp_path / "busy.yaml", with_gemm_error(0.78))
    plan = search([8], hardware=str(tmp_path / "busy.yaml"))
    warned = [note for note in plan.notes if "off by 78%" in note.text]
    assert [note.level.value for note in warned] == ["warning"]
    assert warned[0] in compare(plan, "none").notes


@pytest.mark.parametrize(("kept", "expected"), [((Dtype.FP32,), "fp32"), ((Dtype.FP16,), "bf16"), ((), "bf16")])
def test_a_profile_without_the_models_format_prices_the_one_that_it_has(
    kept: tuple[Dtype, ...], expected: str, tmp_path: Path
) -> None:
    """A processor's profile has rows of fp32 alone; 16-bit formats stand in for one another."""
    assert H100.fits is not None
    entries = [e for e in H100.fits.entries if e.family is Family.GEMM and e.dtype is Dtype.BF16]
    other = tuple(FitEntry(Family.GEMM, dtype, entries[0].fit) for dtype in kept) or tuple(entries)
    save_hardware(tmp_path / "own.yaml", replace(H100, name="own", fits=KernelFits(entries=other)))
    assert search([8], hardware=str(tmp_path / "own.yaml")).sources.model.dtype == expected
