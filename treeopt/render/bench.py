"""Benches as tables: predicted beside measured."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from treeopt.answer import Estimate
from treeopt.bench.result import BenchCell, BenchResult, Promise
from treeopt.planner.compare import Standing
from treeopt.render.text import Column, estimate, gain, ms, rate, tables

_WORDS = {Standing.BETTER: "faster", Standing.TIE: "as fast", Standing.WORSE: "slower"}


def report(found: BenchResult, width: int) -> RenderableType:
    """Predicted beside measured: every way, where the difference comes from, and what became of the promises."""
    cells, residuals = cell_table(found, width), residual_table(found, width)
    return Group(_heading(found), Text(), cells, Text(), residuals, Text(), promise_lines(found))


def _heading(found: BenchResult) -> Text:
    """What ran and what predicted it, in two lines."""
    said = found.setting
    text = Text()
    text.append(str(said.get("target", "")), style="bold")
    text.append(f" with {said.get('drafter')}, {said.get('rule')}, {said.get('dtype')} on {said.get('device')}\n")
    text.append(
        f"predicted from ranks {said.get('ranks')}, hardware {said.get('hardware')}, model {said.get('model')}; "
        f"measured on {said.get('prompts')} prompts"
    )
    return text


def cell_table(found: BenchResult, width: int) -> RenderableType:
    """E, step time and tokens/s of every way at every batch size."""
    cells = found.cells
    return tables(
        _keys(cells),
        [
            [
                Column(name="N", cells=[str(len(cell.tree)) for cell in cells]),
                Column(name="D", cells=[str(cell.tree.depth) for cell in cells]),
            ],
            [
                Column(name="E predicted", cells=[estimate(cell.predicted.acceptance_length) for cell in cells]),
                Column(name="measured", cells=[estimate(cell.measured.acceptance_length) for cell in cells]),
            ],
            [
                Column(name="ms predicted", cells=[ms(cell.predicted.step_time_s) for cell in cells]),
                Column(name="measured", cells=[_ms(cell.measured.step_time_s) for cell in cells]),
            ],
            [
                Column(name="tokens/s predicted", cells=[rate(cell.predicted.tokens_per_s.value) for cell in cells]),
                Column(name="measured", cells=[_rate(cell.measured.tokens_per_s) for cell in cells]),
            ],
        ],
        width,
    )


def residual_table(found: BenchResult, width: int) -> RenderableType:
    """Where measured tokens/s differ from the predicted, in logarithms: the first two columns sum to the third."""
    parts = [cell.residual for cell in found.cells]
    return tables(
        _keys(found.cells),
        [
            [Column(name="acceptance error (100 ln)", cells=[_log(part.acceptance) for part in parts])],
            [Column(name="cost error (100 ln)", cells=[_log(part.cost) for part in parts])],
            [Column(name="tokens/s error (100 ln)", cells=[_log(part.total) for part in parts])],
            [Column(name="E within its error", cells=[_agree(cell) for cell in found.cells])],
        ],
        width,
    )


def _keys(cells: Sequence[BenchCell]) -> list[Column]:
    ways = Column(name="way", cells=[cell.way.name for cell in cells], is_text=True)
    return [Column(name="batch", cells=[str(cell.batch) for cell in cells]), ways]


def promise_lines(found: BenchResult) -> Text:
    """One sentence per alternative and batch size."""
    return Text("\n").join(_promise(promise) for promise in found.promises)


def _promise(promise: Promise) -> Text:
    measured, predicted = promise.measured, promise.predicted
    text = Text(f"batch {promise.batch}: ")
    against = "plain decoding" if promise.against == "plain" else f"the {promise.against}"
    found = gain(measured.gain)
    if measured.verdict is None:
        text.append(f"{found} against {against}, too few texts or steps for an interval")
    else:
        text.append(_WORDS[measured.verdict], style="bold red" if promise.kept is False else "green")
        text.append(f" {'as' if measured.verdict is Standing.TIE else 'than'} {against}: {found}")
    foretold = gain(predicted.gain)
    if predicted.verdict is None:
        return text.append(f"; predicted {foretold}, without an interval")
    return text.append(f"; predicted {_WORDS[predicted.verdict]}: {foretold}")


def _agree(cell: BenchCell) -> str:
    return "no interval" if cell.tokens_agree is None else "yes" if cell.tokens_agree else "no"


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
