"""What `treeopt profile fit` found, as tables."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.cost.fits.choose import Fitted
from treeopt.cost.fits.fit import Fit
from treeopt.cost.fits.profile import FittedProfile
from treeopt.cost.fits.solve import Trial


def fit_report(fitted: FittedProfile) -> RenderableType:
    """The fits that were taken, then every form that was tried with its error on shapes left out."""
    hardware = fitted.hardware
    engine = hardware.measurement.engine if hardware.measurement else "unknown"
    heading = Text().append(hardware.name, style="bold").append(f": {hardware.device}, {engine}")
    return Group(heading, Text(), _taken(fitted), Text(), _tried(fitted))


def _taken(fitted: FittedProfile) -> Table:
    table = Table(box=None, pad_edge=False, title="taken", title_justify="left", title_style="bold")
    for column in ("family", "form", "TB/s", "TFLOP/s", "launch us", "per unit ns", "exponent", "skew"):
        table.add_column(column, justify="left" if column in ("family", "form") else "right")
    for column in ("range", "rows", "shapes", "held out: median", "p90", "between points: median", "p90"):
        table.add_column(column, justify="left" if column == "range" else "right")
    for found in fitted.families:
        table.add_row(*_taken_row(found))
    return table


def _taken_row(found: Fitted) -> list[str]:
    fit, form = found.fit, found.fit.roofline
    return [
        f"{found.family} {found.dtype}",
        f"{fit.form}, {fit.share}",
        f"{form.bandwidth_bytes_per_s / 1e12:.2f}",
        _number(form.peak_flops / 1e12, ".0f"),
        f"{form.launch_s * 1e6:.2f}",
        _number(form.unit_s * 1e9 or math.inf, ".1f"),
        _number(form.sharpness, ".1f"),
        _number(fit.skew or math.inf, ".1f"),
        _range(fit),
        f"{fit.rows:,}",
        str(fit.shapes),
        f"{fit.error.median:.1%}",
        f"{fit.error.p90:.1%}",
        f"{fit.between.median:.1%}",
        f"{fit.between.p90:.1%}",
    ]


def _tried(fitted: FittedProfile) -> Table:
    title = "error on shapes left out (all-reduce: numbers of GPUs; its taken fit is judged between message sizes)"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for column in ("family", "form", "rows add"):
        table.add_column(column)
    for column in ("mean", "median", "p90", "judged rows"):
        table.add_column(column, justify="right")
    for found in fitted.families:
        for trial in best_trials(found):
            table.add_row(
                f"{found.family} {found.dtype}",
                str(trial.form),
                str(trial.share),
                f"{trial.mean:.1%}",
                f"{trial.error.median:.1%}",
                f"{trial.error.p90:.1%}",
                f"{trial.rows:,}",
            )
    return table


def best_trials(found: Fitted) -> list[Trial]:
    """One trial for each form and what rows add to it: that with the best reach."""
    best: dict[tuple[str, str], Trial] = {}
    for trial in found.trials:
        key = (trial.form, trial.share)
        if key not in best or trial.mean < best[key].mean:
            best[key] = trial
    return list(best.values())


def _range(fit: Fit) -> str:
    swept = fit.limits[0]
    return f"{swept.size.replace('_', ' ')} {swept.low:g}-{swept.high:,.0f}"


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"
