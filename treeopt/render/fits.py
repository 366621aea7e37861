"""What `treeopt profile fit` found, as tables."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.cost.fit.choose import FittedFamily
from treeopt.cost.fit.profile import FittedProfile
from treeopt.cost.fit.solve import Trial
from treeopt.cost.kernels.fit import KernelFit


def fit_report(fitted: FittedProfile) -> RenderableType:
    """The fits that were taken, then every form that was tried with its error on shapes left out."""
    hardware = fitted.hardware
    engine = hardware.measurement.engine if hardware.measurement else "unknown"
    heading = Text().append(hardware.name, style="bold").append(f": {hardware.device}, {engine}")
    return Group(
        heading, Text(), _taken(fitted), Text(), _rates(fitted), Text(), _errors(fitted), Text(), _tried(fitted)
    )


def _taken(fitted: FittedProfile) -> Table:
    table = _table("taken", left=("family", "form", "rows add", "range"), right=("rows", "shapes"))
    for found in fitted.families:
        fit = found.fit
        table.add_row(_name(found), str(fit.form), str(fit.share), _range(fit), f"{fit.rows:,}", str(fit.shapes))
    return table


def _rates(fitted: FittedProfile) -> Table:
    columns = ("TB/s", "TFLOP/s", "launch us", "per unit ns", "exponent", "skew")
    table = _table("fitted", left=("family",), right=columns)
    for found in fitted.families:
        fit, form = found.fit, found.fit.roofline
        table.add_row(
            _name(found),
            f"{form.bandwidth_bytes_per_s / 1e12:.2f}",
            _number(form.peak_flops / 1e12, ".0f"),
            f"{form.launch_s * 1e6:.2f}",
            _number(form.unit_s * 1e9 or math.inf, ".1f"),
            _number(form.sharpness, ".1f"),
            _number(fit.skew or math.inf, ".1f"),
        )
    return table


def _errors(fitted: FittedProfile) -> Table:
    columns = ("shapes: median", "p90", "sizes of known shapes: median", "p90")
    table = _table("error of what was left out", left=("family",), right=columns)
    for found in fitted.families:
        errors = (found.fit.error, found.fit.between)
        table.add_row(_name(found), *(f"{share:.1%}" for e in errors for share in (e.median, e.p90)))
    return table


def _tried(fitted: FittedProfile) -> Table:
    title = "tried: error on shapes left out (all-reduce: numbers of GPUs)"
    table = _table(title, left=("family", "form", "rows add"), right=("mean", "median", "p90", "rows"))
    for found in fitted.families:
        for trial in best_trials(found):
            table.add_row(
                _name(found),
                str(trial.form),
                str(trial.share),
                f"{trial.mean:.1%}",
                f"{trial.error.median:.1%}",
                f"{trial.error.p90:.1%}",
                f"{trial.rows:,}",
            )
    return table


def best_trials(found: FittedFamily) -> list[Trial]:
    """One trial for each form and what rows add to it: that with the best reach."""
    best: dict[tuple[str, str], Trial] = {}
    for trial in found.trials:
        key = (trial.form, trial.share)
        if key not in best or trial.mean < best[key].mean:
            best[key] = trial
    return list(best.values())


def _name(found: FittedFamily) -> str:
    return f"{found.family} {found.dtype}"


def _range(fit: KernelFit) -> str:
    swept = fit.limits[0]
    unit = "B" if swept.size.endswith("bytes") else swept.size
    return f"{swept.low:,.0f}-{swept.high:,.0f} {unit}"


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


def _table(title: str, *, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table
