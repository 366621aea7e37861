"""`treeopt compare`: a plan against what runs today."""

from __future__ import annotations

from typing import Annotated

from treeopt.cli.command import CliOption
from treeopt.cli.options import AllNotes, Json, PlanFile, PlanRanks, Plot


def compare(
    plan: PlanFile,
    rivals: Annotated[
        list[str],
        CliOption("--with", metavar="RIVAL", help="none, chain:K, sglang:3,4,16, a plan, a tree, an engine's file."),
    ],
    ranks: PlanRanks = None,
    plot: Plot = None,
    notes: AllNotes = False,
    json: Json = False,
) -> None:
    """Price a plan against path lists, chains or plain decoding, from the plan's own evidence."""
    from treeopt.cli import console
    from treeopt.planner.compare import compare as run
    from treeopt.render.compare import report
    from treeopt.render.pictures.gains import gains_picture
    from treeopt.render.pictures.style import ready_to_draw, save_picture

    ready_to_draw(plot)
    found = run(plan, *rivals, ranks=ranks)
    if plot is not None:
        save_picture(plot, gains_picture(found.comparisons))
    console.answer(found, json, report, found.notes, all_notes=notes)
    console.wrote(plot)
