"""A fit written and read back, and what a broken one says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from treeopt.cost.kernels.curves import Residuals
from treeopt.cost.kernels.family import FitError
from treeopt.cost.kernels.fit import Form, KernelFit, Limit, Share
from treeopt.cost.kernels.roofline import Roofline, Tiling, Work
from treeopt.errors import FileFormatError
from treeopt.files.documents import dump_yaml, parse_document

FIT = KernelFit(
    form=Form.TILED,
    share=Share.NEAR,
    roofline=Roofline(bandwidth_bytes_per_s=1e12, peak_flops=1e14, launch_s=1e-6),
    tiling=Tiling(processors=8, efficiency=0.75),
    residuals=Residuals(
        points=np.log([[64.0, 32.0], [128.0, 32.0]]),
        sweep=np.log([1.0, 16.0, 17.0]),
        values=np.array([[0.1, -0.2, np.nan], [0.0, 0.3, 1.5]]),
        reach=(0.05, 0.3),
    ),
    error=FitError(median=0.03, p90=0.1),
    between=FitError(median=0.02, p90=0.08),
    limits=(Limit(size="tokens", low=1, high=17),),
    rows=5,
    shapes=2,
)


def written(fit: KernelFit) -> str:
    return dump_yaml(fit.document())


def test_a_fit_comes_back() -> None:
    field = parse_document(written(FIT), name="p.yaml", what="fit").root
    again = KernelFit.from_field(field, FIT.arrays("gemm.bf16"), "gemm.bf16")
    for name in ("form", "share", "roofline", "tiling", "error", "between", "limits", "rows", "shapes"):
        assert getattr(again, name) == getattr(FIT, name)
    assert np.allclose(again.residuals.values, FIT.residuals.values, atol=5e-4, equal_nan=True)
    assert np.allclose(again.residuals.points, FIT.residuals.points, atol=1e-6)
    assert again.residuals.reach == FIT.residuals.reach


def test_a_measured_time_is_the_form_times_its_residual() -> None:
    def work_of(tokens: np.ndarray) -> Work:
        nothing = np.zeros(np.shape(tokens))
        return Work(2e6 + nothing, nothing, nothing)

    assert FIT.residuals is not None
    curve = FIT.curve(work_of, FIT.residuals.at_knots(np.log([[128.0, 32.0]])))
    assert curve.time_s(np.array([16.0, 17.0, 40.0])) == pytest.approx(3e-6 * np.exp([0.3, 1.5, 1.5]))
    assert FIT.curve(work_of).time_s(np.array([16.0])) == pytest.approx(3e-6)


def test_a_form_that_lends_nothing_says_so_in_its_file() -> None:
    alone = replace(FIT, share=Share.NOTHING, residuals=replace(FIT.residuals, lends=False))
    field = parse_document(written(alone), name="p.yaml", what="fit").root
    assert not KernelFit.from_field(field, alone.arrays("x"), "x").residuals.lends


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("form: t0+tiles", "form: t0+magic", "p.yaml:1: form: unknown 't0+magic'"),
        ("rows: 5", "rowz: 5", "rowz: unknown key"),
        ("tokens: [1, 17]", "tokens: [17, 1]", "range.tokens: not a range"),
        ("efficiency: 0.75", "efficiency: 7.5", "tiling.efficiency: 7.5 is out of range"),
        ("reach: [0.05, 0.3]", "reach: [0.05]", "the rows file does not fit this profile"),
    ],
)
def test_a_broken_fit_names_the_line(old: str, new: str, message: str) -> None:
    text = written(FIT)
    assert old in text
    field = parse_document(text.replace(old, new), name="p.yaml", what="fit").root
    with pytest.raises(FileFormatError) as caught:
        KernelFit.from_field(field, FIT.arrays("a"), "a")
    assert message in str(caught.value)


def test_missing_curves_are_named() -> None:
    field = parse_document(written(FIT), name="p.yaml", what="fit").root
    with pytest.raises(FileFormatError, match=r"the rows file has no gemm\.fp8\.points"):
        KernelFit.from_field(field, FIT.arrays("gemm.bf16"), "gemm.fp8")
