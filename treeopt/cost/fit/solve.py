"""Fitting a form to rows, and judging it on shapes that it has not seen; only `profile` imports it (scipy.optimize)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from treeopt.arrays import FloatArray
from treeopt.cost.fit.sample import Mask, Sample
from treeopt.cost.kernels.family import FitError
from treeopt.cost.kernels.fit import Form, Share
from treeopt.cost.kernels.roofline import Roofline, Tiling, Work

# Errors beyond this many log units count linearly: a spike must not bend the curve.
_SOFT: Final = 0.1
_FOLDS: Final = 20
_MOST_ROWS: Final = 6000
# Where a parameter ends, in logs, if not 20 times its start: an exponent of 20 is a maximum, an expert may take 10 us.
_MOST: Final = {"sharpness": math.log(20.0), "unit_s": math.log(1e-5)}
_EFFICIENCIES: Final = (0.65, 0.75, 0.85, 0.95)
# An e-fold over a distance that no two shapes are apart: all shapes count the same.
FAR: Final = 1e6


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One form and what rows add to it, with its error on shapes left out: shares, all of `rows`."""

    form: Form
    share: Share
    reach: tuple[float, ...]
    mean: float
    error: FitError
    rows: int

    WRITTEN: ClassVar = ("form", "share", "reach", "mean", "median", "p90", "rows")

    @property
    def median(self) -> float:
        """Of the absolute errors."""
        return self.error.median

    @property
    def p90(self) -> float:
        """Of the absolute errors."""
        return self.error.p90


def solve(sample: Sample, rows: Mask, form: Form, tiling: Tiling | None = None) -> Roofline:
    """The parameters of `form` through the judged ones of `rows`, by soft-L1 least squares on log time."""
    used = np.flatnonzero(rows & sample.judged)
    used = used[:: max(1, len(used) // _MOST_ROWS)]
    work = Work(*(part[used] for part in sample.work(tiling)))
    time_s = sample.time_s[used]
    start = _start(work, time_s, form)
    names = [name for name, value in vars(start).items() if math.isfinite(value) and value > 0]

    def roofline(logs: FloatArray) -> Roofline:
        return replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def misses(logs: FloatArray) -> FloatArray:
        return np.asarray(np.log(roofline(logs).time_s(work) / time_s))

    first = np.log([getattr(start, name) for name in names])
    low = np.array([0.0 if name == "sharpness" else value - 7.0 for name, value in zip(names, first, strict=True)])
    high = [_MOST.get(name, v + 3.0) for name, v in zip(names, first, strict=True)]
    found = least_squares(misses, first, bounds=(low, np.array(high)), loss="soft_l1", f_scale=_SOFT, x_scale=1.0)
    return roofline(found.x)


def tile(sample: Sample, processors: int) -> Tiling:
    """The tiling whose form fits the judged rows best."""

    def cost(tiling: Tiling) -> float:
        ratio = sample.log_ratio(solve(sample, sample.judged, Form.TILED, tiling), tiling)
        return float(np.abs(ratio[sample.judged]).mean())

    return min((Tiling(processors=processors, efficiency=e) for e in _EFFICIENCIES), key=cost)


def judge(
    sample: Sample,
    form: Form,
    reaches: Sequence[tuple[float, ...]],
    tiling: Tiling | None,
    known: Roofline | None = None,
) -> list[Trial]:
    """The error of `form` on shapes left out: alone, with one shared residual, and with near shapes at every reach.

    Shapes are left out in up to 20 groups; whatever is fitted, fitted parameters and curves, sees the others only.
    `known` is a form with nothing to fit.
    """
    common = (FAR,) * sample.points.shape[1]
    options = [common, *reaches]
    missed: list[list[FloatArray]] = [[] for _ in range(len(options) + 1)]
    points, point_of, _, _ = sample.cells
    groups = _groups(sample)
    for group in range(int(groups.max()) + 1):
        out = (groups == group) & sample.judged
        if not out.any() or (groups == group).all():
            continue
        ratio = sample.log_ratio(known or solve(sample, groups != group, form, tiling), tiling)
        missed[0].append(ratio[out])
        for at, reach in enumerate(options, start=1):
            curves = sample.residuals(ratio, groups != group, reach)
            missed[at].append(ratio[out] - curves.at(points, point_of[out], sample.sweep[out]))
    shares = (Share.NOTHING, Share.COMMON, *(Share.NEAR for _ in reaches))
    return [
        _trial(form, share, reach, np.concatenate(ratios))
        for share, reach, ratios in zip(shares, (common, *options), missed, strict=True)
        if ratios
    ]


def between(sample: Sample, log_ratio: FloatArray) -> FitError:
    """The error at sweep points left out one by one, read off the line between their neighbours on the same curve."""
    curves = sample.residuals(log_ratio, np.ones(len(log_ratio), dtype=np.bool_), (FAR,) * sample.points.shape[1])
    judged = np.zeros(curves.values.shape, dtype=np.bool_)
    _, point_of, _, sweep_of = sample.cells
    judged[point_of[sample.judged], sweep_of[sample.judged]] = True
    missed = [_line_misses(curves.sweep, row, mask) for row, mask in zip(curves.values, judged, strict=True)]
    return error_of(np.concatenate(missed))


def error_of(log_ratio: FloatArray) -> FitError:
    """Median and 90th percentile of `|predicted / measured - 1|`, from logs of measured over predicted."""
    if not len(log_ratio):
        return FitError(median=0.0, p90=0.0)
    share = np.abs(np.expm1(-log_ratio))
    return FitError(median=float(np.median(share)), p90=float(np.quantile(share, 0.9)))


def _line_misses(sweep: FloatArray, values: FloatArray, judged: Mask) -> FloatArray:
    at = np.flatnonzero(~np.isnan(values))
    if len(at) < 3:
        return np.zeros(0)
    x, y = sweep[at], values[at]
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    missed: FloatArray = y[1:-1] - (y[:-2] * (1 - share) + y[2:] * share)
    return missed[judged[at][1:-1]]


def _trial(form: Form, share: Share, reach: tuple[float, ...], log_ratio: FloatArray) -> Trial:
    mean = float(np.abs(np.expm1(-log_ratio)).mean())
    return Trial(form=form, share=share, reach=reach, mean=mean, error=error_of(log_ratio), rows=len(log_ratio))


def _groups(sample: Sample) -> npt.NDArray[np.intp]:
    # Neighbours in the list of shapes are neighbours in size: dealing them out keeps some of them in every fit.
    _, order = np.unique(sample.shape, return_inverse=True)
    dealt: npt.NDArray[np.intp] = order % min(_FOLDS, int(order.max()) + 1)
    return dealt


def _start(work: Work, time_s: FloatArray, form: Form) -> Roofline:
    """Where the solver starts: the fastest rows' rates, the shortest row's time."""
    rate = float(np.quantile(work.traffic_bytes / time_s, 0.95))
    peak = float(np.quantile(work.flops / time_s, 0.95))
    return Roofline(
        bandwidth_bytes_per_s=rate,
        peak_flops=peak if peak > 0 else math.inf,
        launch_s=float(time_s.min()) * 0.8,
        unit_s=1e-8 if work.units.any() else 0.0,
        sharpness=3.0 if peak > 0 and form is not Form.HARD else math.inf,
    )
