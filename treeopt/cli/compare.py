"""`treeopt compare`: a plan against what runs today."""

from __future__ import annotations

from typing import Annotated

import typer

from treeopt.cli.options import Json, PlanFile, PlanRanks


def compare(
    plan: PlanFile,
    rivals: Annotated[
        list[str],
        typer.Option("--with", metavar="RIVAL", help="none, chain:K, sglang:3,4,16, a plan, a tree, an engine's file."),
    ],
    ranks: PlanRanks = None,
    json: Json = False,
) -> None:
    """Price a plan against path lists, chains or plain decoding, from the plan's own evidence."""
    from treeopt.files.typed import json_text
    from treeopt.planner.compare import compare as run

    found = run(plan, *rivals, ranks=ranks)
    if json:
        typer.echo(json_text(found))
        return
    from treeopt.cli import console
    from treeopt.render import comparison_table

    console.result(comparison_table(found.comparisons))
    console.notes(found.notes)
