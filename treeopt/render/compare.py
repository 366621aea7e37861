"""A plan beside what else runs or might."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from treeopt.answer import PRICE_LEVEL
from treeopt.planner.compare import Comparison, Comparisons, Standing
from treeopt.render.legend import legend
from treeopt.render.text import gain, plain_table, rate

_COMPARED: Final = ("tokens/s", "plan gains", "plan is")
_STYLES: Final = {
    Standing.BETTER: "green",
    Standing.TIE: "yellow",
    Standing.NOT_KNOWN: "yellow",
    Standing.WORSE: "red",
}
_PRICED: Final = (
    "plan gains: [low, high] holds it with 95 %; against plain decoding with 80 %, the error of the price included"
)


def report(compared: Comparisons, width: int) -> RenderableType:
    """The plan against its rivals, by context and batch."""
    found, how = compared.comparisons, compared.words
    several = len({c.context for c in found}) > 1
    table = plain_table("context, batch" if several else "batch", "draft", how.head, "E", *_COMPARED)
    table.columns[1].justify = table.columns[6].justify = "left"
    table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"
    rows = sorted(found, key=lambda c: (c.context, c.batch))
    for i, c in enumerate(rows):
        if i == 0 or (c.context, c.batch) != (rows[i - 1].context, rows[i - 1].batch):
            plan = (str(how.count(c.plan.nodes)), f"{c.plan.acceptance_length.value:.3f}", rate(c.plan.tokens_per_s))
            at = f"{c.context}, {c.batch}" if several else str(c.batch)
            table.add_row(at, Text("the plan", style="bold"), *plan)
        other = (
            str(how.count(c.other.nodes)),
            f"{c.other.acceptance_length.value:.3f}",
            rate(c.other.tokens_per_s),
            gain(c.gain),
        )
        table.add_row("", c.rival, *other, _verdict(c))
    below = legend(how)
    if any(c.gain.has_interval and c.gain.level == PRICE_LEVEL for c in found):
        below.append(f"\n{_PRICED}")
    return Group(table, below)


def _verdict(c: Comparison) -> Text:
    """Without an interval there is a gain, but none that could be told from chance."""
    if not c.gain.has_interval and c.gain.value:
        return Text("no interval", style="dim")
    return Text(c.verdict.value, style=_STYLES[c.verdict])
