"""Verifications and diagnoses as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.render.text import Column, plain_table, tables
from treeopt.verify.report import Check, Diagnosis, TreeReport, VerificationReport


def report(found: VerificationReport, width: int) -> RenderableType:
    """What was verified, tree by tree and check by check."""
    return Group(_heading(found), Text(), _trees(found), Text(), check_table(found, width))


def diagnosis(found: Diagnosis, width: int) -> RenderableType:
    """What a dump holds, and the differences, the first one first."""
    held = f"{found.where}, {found.nodes} nodes; in the dump: {', '.join(found.contents) or 'nothing to check'}"
    differences = _differences(found) if found.differences else Text("no difference in what the dump holds")
    return Group(Text(held), Text(), differences)


def _heading(found: VerificationReport) -> Text:
    """What was verified and with what, in two lines."""
    text = Text()
    text.append(found.model, style="bold").append(f", {found.dtype} on {found.device}; attention: {found.attention}\n")
    rule = "" if found.rule is None else f"; the plan's rule is {found.rule}"
    text.append(f"{', '.join(found.libraries)}; prefix of {found.context} tokens{rule}")
    return text


def check_table(found: VerificationReport, width: int) -> RenderableType:
    """One line per check: over all trees, the worst error beside what is allowed."""
    checks = range(len(found.trees[0].checks))
    worst = [max(found.trees, key=lambda tree: _severity(tree.checks[i])) for i in checks]
    at = [tree.checks[i] for i, tree in enumerate(worst)]
    failed = [sum(not tree.checks[i].passed for tree in found.trees) for i in checks]
    results = [Text(f"FAILED in {n}", style="bold red") if n else Text("ok", style="green") for n in failed]
    places = [_place(tree, check) if check.worst else "" for tree, check in zip(worst, at, strict=True)]
    numbers = [
        Column(name="cases", cells=[f"{sum(tree.checks[i].cases for tree in found.trees):,}" for i in checks]),
        Column(name="worst error", cells=[_error(check, check.worst) for check in at]),
        Column(name="allowed", cells=[_error(check, check.allowed) for check in at]),
    ]
    return tables(
        [Column(name="check", cells=[check.name for check in at], is_text=True)],
        [
            [*numbers, Column(name="result", cells=results, is_text=True)],
            [Column(name="worst at", cells=places, is_text=True)],
        ],
        width,
    )


def _trees(found: VerificationReport) -> Table:
    """The trees that were verified."""
    table = plain_table("tree of", "nodes", "depth", "checks passed")
    for tree in found.trees:
        passed = sum(check.passed for check in tree.checks)
        table.add_row(tree.where, str(tree.nodes), str(tree.depth), f"{passed} of {len(tree.checks)}")
    return table


def _differences(found: Diagnosis) -> Table:
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
