"""A table of plain steps and of a tree that the engine shapes, where no chain was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.served.step import ServedStep, drafted_widths, medians, payoffs
from treeopt.cost.step_table import TreeTable
from treeopt.draft_family import DynamicTree


class MeasuredTree(NamedTuple):
    """The table, the tree's mean accepted length, and what was left out."""

    table: TreeTable
    length: float
    findings: tuple[str, ...] = ()


def measured_tree(rows: Sequence[ServedStep]) -> MeasuredTree | None:
    """The one tree that gained most beside plain steps of its batch sizes; None where none can be judged so.

    Rows of other trees are left out: a time of one says nothing of another.
    """
    gains: dict[DynamicTree, list[float]] = {}
    for payoff in payoffs(rows):
        tree = triple_of(payoff.step)
        if tree is not None and payoff.speedup is not None:
            gains.setdefault(tree, []).append(payoff.speedup)
    if not gains:
        return None
    best = max(gains, key=lambda tree: fmean(gains[tree]))
    own = [row for row in rows if triple_of(row) == best and row.tokens_per_step is not None]
    plain = [row for row in rows if row.nodes == 1 and not row.off]
    batches = tuple(sorted({row.batch for row in (*own, *plain)}))
    times = (_by_batch(medians(kind)) for kind in (plain, own))
    plain_s, tree_s = (_column(known, batches) for known in times)
    left = len(rows) - len(own) - len(plain)
    said = (f"{left} of {len(rows)} rows are of other trees, which say nothing of this one: left out",)
    return MeasuredTree(
        table=TreeTable(batches=batches, plain_s=plain_s, tree=best, tree_s=tree_s),
        length=fmean(row.tokens_per_step or 1.0 for row in own),
        findings=said if left else (),
    )


def triple_of(row: ServedStep) -> DynamicTree | None:
    """The dynamic tree of a row; None for a chain, and for a tree that no engine shapes so."""
    topk = max(row.widths, default=0)
    if topk < 2 or row.widths != drafted_widths(row.depth, topk, place=row.place):
        return None
    return DynamicTree(row.depth, topk, row.nodes)


def _by_batch(rows: Iterable[ServedStep]) -> dict[int, float]:
    return {row.batch: row.step_time_s for row in rows}


def _column(known: Mapping[int, float], batches: Sequence[int]) -> FloatArray:
    return np.array([known.get(batch, np.nan) for batch in batches])
