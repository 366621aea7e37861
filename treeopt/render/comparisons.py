"""Plans beside what else there is: rivals, and replays of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from treeopt.compare import Comparison, Verdict
from treeopt.render.text import contexts, percent, plain_table, rate
from treeopt.replaying import Replayed

_COMPARED: Final = ("tokens/s", "plan gains", "plan is")


def comparison_table(found: Sequence[Comparison]) -> Table:
    """The plan against its rivals, by context and batch."""
    several = len({c.context for c in found}) > 1
    table = plain_table("context, batch" if several else "batch", "tree", "nodes", "E", *_COMPARED)
    table.columns[1].justify = table.columns[6].justify = "left"
    table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"
    styles = {Verdict.BETTER: "green", Verdict.TIE: "yellow", Verdict.WORSE: "red"}
    rows = sorted(found, key=lambda c: (c.context, c.batch))
    for i, c in enumerate(rows):
        if i == 0 or (c.context, c.batch) != (rows[i - 1].context, rows[i - 1].batch):
            plan = (str(c.plan.nodes), f"{c.plan.expected_tokens:.3f}", rate(c.plan.tokens_per_s))
            at = f"{c.context}, {c.batch}" if several else str(c.batch)
            table.add_row(at, Text("the plan", style="bold"), *plan)
        other = (str(c.other.nodes), f"{c.other.expected_tokens:.3f}", rate(c.other.tokens_per_s), _gain(c))
        table.add_row("", c.rival, *other, Text(c.verdict.value, style=styles[c.verdict]))
    return table


def replay_table(rows: Sequence[Replayed]) -> Table:
    """Replayed trees, the prediction beside them."""
    dynamic = ["dynamic", "at most"] if any(row.dynamic_gain is not None for row in rows) else []
    columns = ("replayed E", "95 % interval", "predicted", "off by", "all positions", "steps")
    several = len({row.context_max for row in rows}) > 1
    table = plain_table("context, batch" if several else "batch", "nodes", *columns, *dynamic)
    for row in rows:
        off = "" if row.difference is None else percent(row.difference)
        table.add_row(
            _replayed_at(row, with_context=several),
            str(row.nodes),
            f"{row.tokens_per_step:.3f}",
            "too few documents" if row.low is None or row.high is None else f"[{row.low:.3f}, {row.high:.3f}]",
            "" if row.predicted is None else f"{row.predicted:.3f}",
            off,
            f"{row.all_positions:.3f}",
            f"{row.steps:,.0f}",
            *(percent(g) for g in (row.dynamic_gain, row.dynamic_upper) if g is not None),
        )
    return table


def _gain(c: Comparison) -> str:
    if c.interval is None:
        return percent(c.gain)
    return f"{percent(c.gain)} [{percent(c.interval.low)}, {percent(c.interval.high)}]"


def _replayed_at(row: Replayed, *, with_context: bool) -> str:
    if row.batch_max is None or row.context_min is None or row.context_max is None:
        return ""
    batch = str(row.batch_max) if row.batch_min == row.batch_max else f"{row.batch_min}-{row.batch_max}"
    return f"{contexts(row.context_min, row.context_max)}, {batch}" if with_context else batch
