"""Plans beside what else there is: rivals, and replays of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.planner.compare import Comparison, Verdict
from treeopt.planner.replay import Replayed
from treeopt.render.text import Column, gain, percent, plain_table, rate, tables

_COMPARED: Final = ("tokens/s", "plan gains", "plan is")
_STYLES: Final = {Verdict.BETTER: "green", Verdict.TIE: "yellow", Verdict.WORSE: "red"}


def comparison_table(found: Sequence[Comparison]) -> Table:
    """The plan against its rivals, by context and batch."""
    several = len({c.context for c in found}) > 1
    table = plain_table("context, batch" if several else "batch", "tree", "nodes", "E", *_COMPARED)
    table.columns[1].justify = table.columns[6].justify = "left"
    table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"
    rows = sorted(found, key=lambda c: (c.context, c.batch))
    for i, c in enumerate(rows):
        if i == 0 or (c.context, c.batch) != (rows[i - 1].context, rows[i - 1].batch):
            plan = (str(c.plan.nodes), f"{c.plan.acceptance_length.value:.3f}", rate(c.plan.tokens_per_s))
            at = f"{c.context}, {c.batch}" if several else str(c.batch)
            table.add_row(at, Text("the plan", style="bold"), *plan)
        other = (
            str(c.other.nodes),
            f"{c.other.acceptance_length.value:.3f}",
            rate(c.other.tokens_per_s),
            gain(c.gain),
        )
        table.add_row("", c.rival, *other, _verdict(c))
    return table


def replay_table(rows: Sequence[Replayed], width: int) -> RenderableType:
    """Replayed trees, the prediction beside them."""
    several = len({row.context for row in rows}) > 1
    replayed = [
        Column(name="replayed E", cells=[f"{row.acceptance_length.value:.3f}" for row in rows]),
        Column(name="95 % interval", cells=[_interval(row) for row in rows]),
        Column(name="predicted", cells=["" if row.predicted is None else f"{row.predicted:.3f}" for row in rows]),
        Column(name="off by", cells=["" if row.difference is None else percent(row.difference) for row in rows]),
    ]
    groups = [
        replayed,
        [
            Column(name="all positions", cells=[f"{row.all_positions:.3f}" for row in rows]),
            Column(name="steps", cells=[f"{row.steps:,.0f}" for row in rows]),
        ],
    ]
    gains = [(row.dynamic_gain, row.dynamic_upper) for row in rows]
    if any(gain is not None for gain, _ in gains):
        dynamic = zip(("dynamic", "at most"), zip(*gains, strict=True), strict=True)
        groups.append([Column(name=n, cells=["" if g is None else percent(g) for g in own]) for n, own in dynamic])
    name = "context, batch" if several else "batch"
    keys = [
        Column(name=name, cells=[_replayed_at(row, with_context=several) for row in rows], is_text=True),
        Column(name="nodes", cells=[str(row.nodes) for row in rows]),
    ]
    return tables(keys, groups, width)


def _interval(row: Replayed) -> str:
    low, high = row.acceptance_length.low, row.acceptance_length.high
    return "too few documents" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"


def _verdict(c: Comparison) -> Text:
    """Without an interval there is a gain, but none that could be told from chance."""
    if not c.gain.has_interval and c.gain.value:
        return Text("no interval", style="dim")
    return Text(c.verdict.value, style=_STYLES[c.verdict])


def _replayed_at(row: Replayed, *, with_context: bool) -> str:
    if row.batch is None or row.context is None:
        return ""
    return f"{row.context.words}, {row.batch.words}" if with_context else row.batch.words
