"""What `treeopt profile fit` found, as tables: of kernels from timing rows, or of an engine from served steps."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.cost.fit.choose import FittedFamily
from treeopt.cost.fit.engine_profile import FittedSteps
from treeopt.cost.fit.engine_steps import CONSTANTS, Candidate, EngineFit
from treeopt.cost.fit.profile import FittedProfile
from treeopt.cost.fit.solve import Trial
from treeopt.cost.kernels.fit import KernelFit
from treeopt.cost.served.step import Payoff

_UNITS = {
    "step_s": ("per step", 1e3, "ms"),
    "speculative_step_s": ("per speculative step", 1e3, "ms"),
    "speculative_request_s": ("per speculative request", 1e3, "ms"),
    "draft_pass_s": ("per draft pass", 1e3, "ms"),
    "verified_token_s": ("per verified token", 1e6, "us"),
}


def report(fitted: FittedProfile | FittedSteps, width: int) -> RenderableType:
    """All of it, one table below the other."""
    return _of_steps(fitted) if isinstance(fitted, FittedSteps) else _of_rows(fitted)


def _of_rows(fitted: FittedProfile) -> RenderableType:
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


def _of_steps(fitted: FittedSteps) -> RenderableType:
    """The constants, the sets that were tried, and what each measured tree must accept to pay."""
    fit = fitted.fit
    batches = len({row.batch for row in fit.rows})
    heading = Text().append(fitted.hardware.name, style="bold")
    heading.append(f": engine constants from {len(fit.rows)} step times at {batches} batch sizes")
    parts: list[RenderableType] = [heading, Text(), _constants(fit), Text(), _candidates(fit), Text(), _judgement(fit)]
    if fitted.payoffs:
        parts += [Text(), _payoffs(fitted.payoffs)]
    return Group(*parts)


def _constants(fit: EngineFit) -> Table:
    table = _table("beyond the kernels", left=("",), right=("time", "unit"))
    for name, value in zip(CONSTANTS, fit.values, strict=True):
        what, scale, unit = _UNITS[name]
        table.add_row(what, f"{value * scale:.3g}", unit)
    if fit.eager:
        table.add_row(f"past {fit.eager.captured_tokens} tokens (eager)", f"{fit.eager_s * 1e3:.3g}", "ms")
    return table


def _candidates(fit: EngineFit) -> Table:
    table = _table("error at batch sizes left out", left=("constants",), right=("mean", "median", "p90", "max", ""))
    for candidate in fit.candidates:
        names = " + ".join(_UNITS[name][0].removeprefix("per ") for name in candidate.constants) or "kernels alone"
        taken = "taken" if candidate is fit.chosen else ""
        table.add_row(names, *_shares(candidate), taken)
    return table


def _judgement(fit: EngineFit) -> Text:
    return Text(
        f"mean error of the rows that were fitted {fit.in_sample:.1%}; at a batch size left out, with the set chosen "
        f"without it too, {fit.reselected.mean:.1%}"
    )


def _payoffs(payoffs: tuple[Payoff, ...]) -> Table:
    table = _table("beside plain decoding", left=("step",), right=("ms", "break-even E", "accepted", "speedup", ""))
    for payoff in payoffs:
        tokens, speedup = payoff.step.tokens_per_step, payoff.speedup
        table.add_row(
            payoff.step.named(),
            f"{payoff.step.step_time_s * 1e3:.2f}",
            f"{payoff.break_even_length:.2f}",
            "-" if tokens is None else f"{tokens:.2f}",
            "-" if speedup is None else f"{speedup:.2f}",
            "" if payoff.pays else "does not pay" if speedup else "cannot pay",
        )
    return table


def _shares(candidate: Candidate) -> list[str]:
    held_out = candidate.held_out
    return [f"{share:.1%}" for share in (held_out.mean, held_out.median, held_out.p90, held_out.max)]


def _table(title: str, *, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="left" if column in ("", "unit") else "right")
    return table
