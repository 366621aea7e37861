"""Verifications and diagnoses as tables."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from treeopt.decode.checks.checks import Check
from treeopt.render.text import plain_table
from treeopt.verify import Diagnosis, TreeReport, Verification


def verification_heading(found: Verification) -> Text:
    """What was verified and with what, in two lines."""
    text = Text()
    text.append(found.model, style="bold").append(f", {found.dtype} on {found.device}; attention: {found.attention}\n")
    rule = "" if found.rule is None else f"; the plan's rule is {found.rule}"
    text.append(f"{', '.join(found.libraries)}; prefix of {found.context} tokens{rule}")
    return text


def verification_table(found: Verification) -> Table:
    """One line per check: over all trees, the worst error beside what is allowed."""
    table = plain_table("check", "cases", "worst error", "allowed", "result", "worst at")
    for column in (4, 5):
        table.columns[column].justify = "left"
    table.columns[5].no_wrap, table.columns[5].overflow = False, "fold"
    for i in range(len(found.trees[0].checks)):
        reports = sorted(found.trees, key=lambda tree: _severity(tree.checks[i]), reverse=True)
        check = reports[0].checks[i]
        failed = sum(not tree.checks[i].passed for tree in reports)
        result = Text("ok", style="green") if not failed else Text(f"FAILED in {failed}", style="bold red")
        cases = sum(tree.checks[i].cases for tree in reports)
        where = _place(reports[0], check) if check.worst else ""
        table.add_row(check.name, f"{cases:,}", _error(check, check.worst), _error(check, check.allowed), result, where)
    return table


def tree_table(found: Verification) -> Table:
    """The trees that were verified."""
    table = plain_table("tree of", "nodes", "depth", "checks passed")
    for tree in found.trees:
        passed = sum(check.passed for check in tree.checks)
        table.add_row(tree.where, str(tree.nodes), str(tree.depth), f"{passed} of {len(tree.checks)}")
    return table


def diagnosis_table(found: Diagnosis) -> Table:
    """The differences, the first one first."""
    table = plain_table("difference", "where it shows first")
    table.columns[1].justify = "left"
    table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"
    for i, difference in enumerate(found.differences):
        table.add_row(Text(difference.name, style="bold red" if i == 0 else "red"), difference.detail)
    return table


def _severity(check: Check) -> float:
    return check.worst / check.allowed if check.allowed else check.worst * 1e9


def _error(check: Check, value: float) -> str:
    return f"{value:.1e}" if check.allowed and value else f"{value:.0f}"


def _place(tree: TreeReport, check: Check) -> str:
    return f"{tree.where}: {check.where}" if check.where else tree.where
