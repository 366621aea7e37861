"""Budgets of trees by confidence, their rivals beside them."""

from __future__ import annotations

from rich.console import RenderableType

from treeopt.planner.budget import BudgetRow, Budgets
from treeopt.planner.budget_rivals import BudgetRival
from treeopt.render.text import Column, percent, tables


def report(found: Budgets, width: int) -> RenderableType:
    """One line per batch size and context."""
    rows = found.rows
    several = len({row.context for row in rows}) > 1
    keys = [
        *([Column(name="context", cells=[f"{row.context}" for row in rows])] if several else []),
        Column(name="batch", cells=[f"{row.batch}" for row in rows]),
    ]
    groups = [
        [
            Column(name="budget", cells=[f"{row.budget}" for row in rows]),
            Column(name="E", cells=[_length(row) for row in rows]),
            Column(name="step ms", cells=[f"{row.step_time_s * 1e3:.2f}" for row in rows]),
            Column(name="tokens/s", cells=[f"{row.tokens_per_s:,.0f}" for row in rows]),
        ],
        [
            Column(name="static tree", cells=[_rival(row.static_tree, row) for row in rows]),
            Column(name="chain", cells=[_rival(row.chain, row) for row in rows]),
            Column(name="plain", cells=[_rival(row.plain, row) for row in rows]),
            Column(name="adaptive chain", cells=[_rival(row.adaptive, row) for row in rows]),
        ],
        [
            Column(name="per step gains", cells=[_gain(row) for row in rows]),
            Column(name="best", cells=[row.best for row in rows], is_text=True),
        ],
    ]
    return tables(keys, groups, width)


def _length(row: BudgetRow) -> str:
    E = row.acceptance_length
    return f"{E.value:.2f}" if not E.has_interval else f"{E.value:.2f} [{E.low:.2f}, {E.high:.2f}]"


def _rival(rival: BudgetRival | None, row: BudgetRow) -> str:
    """Its nodes, and its tokens/s over the budget's."""
    return "" if rival is None else f"{rival.nodes}: {percent(rival.tokens_per_s / row.tokens_per_s - 1.0)}"


def _gain(row: BudgetRow) -> str:
    return "" if row.adaptive_gain is None else percent(row.adaptive_gain)
