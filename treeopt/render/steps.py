"""What `treeopt profile fit --steps` found, as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.cost.fit.engine_profile import FittedSteps
from treeopt.cost.fit.engine_steps import CONSTANTS, Candidate, EngineFit
from treeopt.cost.served.step import Payoff

_UNITS = {
    "step_s": ("per step", 1e3, "ms"),
    "speculative_step_s": ("per speculative step", 1e3, "ms"),
    "speculative_request_s": ("per speculative request", 1e3, "ms"),
    "draft_pass_s": ("per draft pass", 1e3, "ms"),
    "verified_token_s": ("per verified token", 1e6, "us"),
}


def steps_report(fitted: FittedSteps) -> RenderableType:
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
            f"{payoff.break_even_tokens:.2f}",
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
        table.add_column(column, justify="right" if column not in ("", "unit") else "left")
    return table
