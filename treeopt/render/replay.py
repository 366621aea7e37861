"""Replays of a trace, the prediction beside them."""

from __future__ import annotations

from rich.console import RenderableType

from treeopt.planner.replay import Replayed, Replays
from treeopt.render.text import Column, percent, tables


def report(found: Replays, width: int) -> RenderableType:
    """Replayed trees, the prediction beside them."""
    rows = found.replays
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
        Column(name=found.words.head, cells=[str(found.words.count(row.nodes)) for row in rows]),
    ]
    return tables(keys, groups, width)


def _interval(row: Replayed) -> str:
    low, high = row.acceptance_length.low, row.acceptance_length.high
    return "too few documents" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"


def _replayed_at(row: Replayed, *, with_context: bool) -> str:
    if row.batch is None or row.context is None:
        return ""
    return f"{row.context.words}, {row.batch.words}" if with_context else row.batch.words
