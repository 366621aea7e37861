"""From the rows of one family to its fit: every form tried, the one that sees unknown shapes best taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np

from treeopt.cost.fit import checks
from treeopt.cost.fit.attention import prefill_arithmetic, with_arithmetic
from treeopt.cost.fit.families import FAMILIES, sample_of
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Mask, Sample, Seen
from treeopt.cost.fit.solve import Trial, between, judge, solve, tile
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.family import FLAGS, SIZES, Family, FitError
from treeopt.cost.kernels.fit import Form, KernelFit, Limit, Share
from treeopt.cost.kernels.roofline import Roofline, Tiling

# A form with tiles has to earn its parameters.
_WORTH: Final = 0.97
# More bytes or keys take longer: nothing but a broken run can spike.
_NEVER_SPIKE: Final = (Family.ALL_REDUCE, Family.LATENT, Family.SCALES)
_SKEWS: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)


@dataclass(frozen=True, kw_only=True)
class Datasheet:
    """The rates of a data sheet, to say what they would have predicted."""

    bandwidth_bytes_per_s: float
    peak_flops: float


@dataclass(frozen=True, kw_only=True)
class FittedFamily:
    """A family's fit with all that was tried, and what a reader of the rows must know.

    `seen` is every row beside what the form alone says of it: what rows add (`fit.share`) is not in it.
    """

    WRITTEN: ClassVar = ("family", "dtype", "fit", "trials", "warnings")

    family: Family
    dtype: Dtype
    fit: KernelFit
    trials: tuple[Trial, ...]
    warnings: tuple[str, ...]
    seen: Seen = field(compare=False, repr=False)


def fit_family(
    given: Rows, *, processors: int | None = None, datasheet: Datasheet | None = None, peak_flops: float = math.inf
) -> FittedFamily:
    """Fit the rows of one family and number format.

    Args:
        processors: multiprocessors of the GPU; without them the form with tiles is not tried.
        datasheet: what a data sheet would have predicted is reported beside the forms.
        peak_flops: for attention without prefill rows or trees, the rate that arithmetic is assumed to run at.

    Raises:
        FileFormatError: a row that no measurement gives, that contradicts another, or in another unit.
        InputError: too few rows or shapes.
    """
    if given.family is Family.ATTENTION:  # prompts count there too
        checks.refuse_impossible(given)
    used = given.where(FAMILIES[given.family].kept(given))
    checks.refuse_impossible(used)
    rows, doubles = checks.without_duplicates(used)
    swept = FAMILIES[given.family].swept
    lonely = checks.spikes(rows, sample_of(rows)) if len(rows) else np.zeros(0, dtype=np.bool_)
    warnings = _spike_warnings(rows, lonely)
    if given.family in _NEVER_SPIKE:
        rows = rows.where(~lonely)
    checks.refuse_too_few(rows, _shapes(rows), swept=swept)
    skew = _skew(rows) if rows.family is Family.EXPERTS else 0.0
    sample = sample_of(rows, skew)
    tiling = tile(sample, processors) if processors and rows.family is Family.GEMM else None
    trials = _trials(sample, rows.family, tiling, datasheet)
    best = _best(trials)
    tiling = tiling if best.form is Form.TILED else None
    roofline = solve(sample, sample.judged, best.form, tiling)
    if rows.family is Family.ATTENTION and not math.isfinite(roofline.peak_flops):
        roofline = prefill_arithmetic(roofline, given, peak_flops)
        sample = with_arithmetic(sample, rows)
    ratio = sample.log_ratio(roofline, tiling)
    checks.refuse_other_units(rows, ratio)
    error = between(sample, ratio)
    fit = KernelFit(
        form=best.form,
        share=best.share,
        roofline=roofline,
        tiling=tiling,
        skew=skew,
        residuals=replace(
            sample.residuals(ratio, np.ones(len(rows), dtype=np.bool_), best.reach),
            lends=best.share is not Share.NOTHING,
        ),
        error=error if swept else best.error,
        between=error,
        limits=_limits(rows),
        rows=len(rows),
        shapes=_shapes(rows),
    )
    warnings += _warnings(rows, sample, doubles)
    return FittedFamily(
        family=rows.family,
        dtype=rows.dtype,
        fit=fit,
        trials=tuple(trials),
        warnings=warnings,
        seen=Seen(f"{rows.family} {rows.dtype}", sample.time_s, sample.time_s / np.exp(ratio)),
    )


def _shapes(rows: Rows) -> int:
    return len(np.unique(sample_of(rows).shape)) if len(rows) else 0


def _trials(sample: Sample, family: Family, tiling: Tiling | None, datasheet: Datasheet | None) -> list[Trial]:
    if len(np.unique(sample.shape)) < 2:  # nothing to leave out
        none = FitError(median=0.0, p90=0.0)
        return [
            Trial(form=Form.HARD, share=Share.NEAR, reach=FAMILIES[family].reaches[0], mean=0.0, error=none, rows=0)
        ]
    trials = []
    if datasheet is not None:
        sheet = Roofline(bandwidth_bytes_per_s=datasheet.bandwidth_bytes_per_s, peak_flops=datasheet.peak_flops)
        trials += judge(sample, Form.DATASHEET, (), None, known=sheet)[:1]
    forms = [Form.HARD]
    if sample.work(None).flops.any():
        forms += [Form.SMOOTH]
    if tiling is not None:
        forms += [Form.TILED]
    for form in forms:
        trials += judge(sample, form, FAMILIES[family].reaches, tiling if form is Form.TILED else None)
    return trials


def _best(trials: list[Trial]) -> Trial:
    able = [trial for trial in trials if trial.form is not Form.DATASHEET]
    plain = min((trial for trial in able if trial.form is not Form.TILED), key=lambda trial: trial.mean)
    tiled = [trial for trial in able if trial.form is Form.TILED and trial.mean < _WORTH * plain.mean]
    return min([plain, *tiled], key=lambda trial: trial.mean)


def _skew(rows: Rows) -> float:
    """The popularity exponent under which skewed and balanced rows share one form best."""
    if not rows.column("skewed").any():
        return 0.0

    def cost(skew: float) -> float:
        sample = sample_of(rows, skew)
        ratio = sample.log_ratio(solve(sample, sample.judged, Form.SMOOTH), None)
        return float(np.abs(ratio[sample.judged]).mean())

    return min(_SKEWS, key=cost)


def _limits(rows: Rows) -> tuple[Limit, ...]:
    return tuple(
        Limit(size=size, low=float(values.min()), high=float(values.max()))
        for size, values in zip(SIZES[rows.family], rows.sizes.T, strict=True)
        if size not in FLAGS
    )


def _spike_warnings(rows: Rows, lonely: Mask) -> tuple[str, ...]:
    if not lonely.any():
        return ()
    worst = int(np.argmax(np.where(lonely, rows.time_s, 0.0)))
    dropped = rows.family in _NEVER_SPIKE
    fate = "left out, priced from their neighbours" if dropped else "kept; measure them again if they are not real"
    return (
        f"{rows.family} {rows.dtype}: {lonely.sum()} of {len(rows)} rows take over twice as long as both neighbours "
        f"({fate}); the longest: {rows.place(worst)} ({rows.describe(worst)})",
    )


def _warnings(rows: Rows, sample: Sample, doubles: int) -> tuple[str, ...]:
    found = []
    if doubles:
        found.append(f"{rows.family} {rows.dtype}: {doubles} rows repeat another's sizes; the median of each is used")
    falls = checks.falls(rows, sample)
    if falls:
        found.append(
            f"{rows.family} {rows.dtype}: {falls.rows} of {len(rows)} rows take over 5 % longer than a larger one of "
            f"the same shape (kept, kernels do that); the worst {falls.worst:.2f} times: {falls.where}"
        )
    return tuple(found)
