"""Benches as tables: predicted beside measured."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from treeopt.benchmark.result import Cell, Promise, Result
from treeopt.compare import Comparison, Verdict
from treeopt.plan_bucket import Estimate
from treeopt.render.text import estimate, ms, percent, plain_table, rate

_WORDS = {Verdict.BETTER: "faster", Verdict.TIE: "as fast", Verdict.WORSE: "slower"}


def bench_heading(found: Result) -> Text:
    """What ran and what predicted it, in two lines."""
    said = dict(found.setting)
    text = Text()
    text.append(str(said.get("target", "")), style="bold")
    text.append(f" with {said.get('drafter')}, {said.get('rule')}, {said.get('dtype')} on {said.get('device')}\n")
    text.append(
        f"predicted from ranks {said.get('ranks')}, hardware {said.get('hardware')}, model {said.get('model')}; "
        f"measured on {said.get('prompts')} prompts"
    )
    return text


def cell_table(found: Result) -> Table:
    """E, step time and tokens/s of every way at every batch size."""
    table = plain_table(
        "batch", "way", "N", "D", "E predicted", "measured", "ms predicted", "measured", "tokens/s predicted"
    )
    table.add_column("measured", justify="right", no_wrap=True)
    table.columns[1].justify = "left"
    for cell in found.cells:
        table.add_row(
            str(cell.batch),
            cell.way.name,
            str(len(cell.tree)),
            str(cell.tree.depth),
            estimate(cell.predicted_tokens),
            estimate(cell.tokens),
            ms(cell.predicted.step_time_s),
            _ms(cell.step_time_s),
            rate(cell.predicted.tokens_per_s),
            _rate(cell.tokens_per_s),
        )
    return table


def residual_table(found: Result) -> Table:
    """Where measured tokens/s differ from the predicted, in logarithms: the first two columns sum to the third."""
    table = plain_table("batch", "way", "acceptance error", "cost error", "tokens/s (100 ln)", "E within its error")
    table.columns[1].justify = "left"
    for cell in found.cells:
        parts = cell.residual
        table.add_row(
            str(cell.batch),
            cell.way.name,
            _log(parts.acceptance),
            _log(parts.cost),
            _log(parts.total),
            _agree(cell),
        )
    return table


def promise_lines(found: Result) -> Text:
    """One sentence per alternative and batch size."""
    return Text("\n").join(_promise(promise) for promise in found.promises)


def _promise(promise: Promise) -> Text:
    measured = promise.measured
    text = Text(f"batch {measured.batch}: ")
    text.append(f"{_WORDS[measured.verdict]}", style="green" if promise.kept else "bold red")
    than = "as" if measured.verdict is Verdict.TIE else "than"
    against = "plain decoding" if measured.rival == "plain" else f"the {measured.rival}"
    text.append(f" {than} {against}: {_gain(measured)}; predicted {_WORDS[promise.predicted.verdict]}")
    return text.append(f": {_gain(promise.predicted)}")


def _gain(compared: Comparison) -> str:
    if compared.interval is None:
        return percent(compared.gain)
    return f"{percent(compared.gain)} [{percent(compared.interval.low)}, {percent(compared.interval.high)}]"


def _agree(cell: Cell) -> str:
    return "" if cell.tokens_agree is None else "yes" if cell.tokens_agree else "no"


def _log(number: Estimate) -> str:
    value = f"{100 * number.value:+.1f}"
    if number.low is None or number.high is None:
        return value
    return f"{value} [{100 * number.low:+.1f}, {100 * number.high:+.1f}]"


def _ms(number: Estimate) -> str:
    if number.low is None or number.high is None:
        return ms(number.value)
    return f"{ms(number.value)} [{ms(number.low)}, {ms(number.high)}]"


def _rate(number: Estimate) -> str:
    if number.low is None or number.high is None:
        return rate(number.value)
    return f"{rate(number.value)} [{rate(number.low)}, {rate(number.high)}]"
