from __future__ import annotations

from dataclasses import replace

from render.test_text import printed

from treeopt.acceptance.intervals import Interval
from treeopt.answer import Estimate
from treeopt.bench.result import BenchCell, BenchResult, Gain, MeasuredStep, Promise, Residual
from treeopt.bench.runs import Method
from treeopt.render.bench import cell_table, promise_lines, residual_table
from treeopt.solve.price import option
from treeopt.solve.report import estimate
from treeopt.tree import DraftTree


def about(value: float, *, known: bool) -> Estimate:
    low, high = sorted((value * 0.9, value * 1.1)) if known else (None, None)
    return Estimate(value=value, low=low, high=high)


def cell(name: str, tree: DraftTree, *, known: bool) -> BenchCell:
    residual = Residual(
        acceptance=Estimate(value=-0.0123, low=-1.025, high=0.0456) if known else Estimate(value=-0.0123),
        cost=about(-1.1234, known=known),
        total=about(-1.1357, known=known),
    )
    return BenchCell(
        batch=128,
        context=99,
        way=Method(names=(name,), tree=tree),
        predicted=replace(option(tree, 1.85, 0.12345, 128), acceptance_length=about(1.85, known=known)),
        measured=MeasuredStep(*(about(value, known=known) for value in (1.82, 0.37654, 3987.0)), 50),
        residual=residual,
    )


def result(*, known: bool, promises: tuple[Promise, ...] = ()) -> BenchResult:
    ways = (("best chain, plan", DraftTree.chain(3)), ("chain:5", DraftTree.chain(5)))
    cells = tuple(cell(name, tree, known=known) for name, tree in ways)
    return BenchResult(setting={}, cells=cells, promises=promises, notes=())


def test_at_80_columns_every_number_is_there() -> None:
    found = result(known=True)
    narrow = [line for table in (cell_table, residual_table) for line in printed(table(found, 80), 80)]
    assert max(map(len, narrow)) <= 80
    wide = [line for table in (cell_table, residual_table) for line in printed(table(found, 160), 160)]
    text = " ".join(narrow)
    assert "…" not in text
    for word in "\n".join(wide).split():
        assert word in text
    for numbers in ("1.82 [1.64, 2.00]", "376.54 [338.89, 414.19]", "3,987 [3,588, 4,386]", "-112.3 [-123.6, -101.1]"):
        assert numbers in text
    assert sum(line.startswith("batch") for line in wide) == 2
    assert sum(line.startswith("128") for line in narrow) >= 2 * 4


def test_no_interval_is_said() -> None:
    lines = printed(residual_table(result(known=False), 160), 160)
    assert [line.endswith("no interval") for line in lines] == [False, True, True]
    assert "yes" in printed(residual_table(result(known=True), 160), 160)[1]


def promised(measured: Interval | None, predicted: Interval | None) -> str:
    gains = (Gain(gain=estimate(gain, within)) for gain, within in ((0.26, predicted), (-0.007, measured)))
    one = Promise(batch=2, against="best chain", predicted=next(gains), measured=next(gains))
    (line,) = printed(promise_lines(result(known=True, promises=(one,))), 160)
    return line


def test_a_verdict_takes_an_interval() -> None:
    assert promised(Interval(-0.009, -0.006), Interval(0.2, 0.3)) == (
        "batch 2: slower than the best chain: -0.7% [-0.9%, -0.6%]; predicted faster: +26.0% [+20.0%, +30.0%]"
    )
    assert promised(None, None) == (
        "batch 2: -0.7% against the best chain, too few texts or steps for an interval; predicted +26.0%, "
        "without an interval"
    )
