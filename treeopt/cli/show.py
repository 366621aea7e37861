"""`treeopt show`: a plan or a tree, drawn, with its mask and positions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from treeopt.cli.command import Argument, CliOption
from treeopt.cli.options import Json, PlanBatch, Plot


def show(
    file: Annotated[Path, Argument(metavar="PLAN_OR_TREE", help="A plan, a tree file or a path list.")],
    batch: PlanBatch = None,
    ranks: Annotated[str | None, CliOption(help="For a bare tree: the rank profile to take f from.")] = None,
    context: Annotated[int | None, CliOption(help="Prefix length L: for positions, and to pick a bucket.")] = None,
    mask: Annotated[bool, CliOption("--mask", help="Also draw the ancestor mask.")] = False,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Draw a tree: its nodes with f(v), positions and what each attends to."""
    from treeopt.cli import console
    from treeopt.plan.plan import Plan
    from treeopt.planner.show import shown_of
    from treeopt.render.pictures.style import ready_to_draw, save_picture
    from treeopt.render.show import listing, report

    ready_to_draw(plot)
    shown = shown_of(file, batch=batch, context=context, ranks=ranks, with_mask=mask)
    if plot is not None:
        from treeopt.render.pictures.shown import picture_of  # imports what prices

        save_picture(plot, picture_of(shown))
    if not isinstance(shown, Plan):
        console.report(shown, json, report)
        console.notes([] if json else shown.notes)
        console.wrote(plot)
        return
    console.report(shown, json, listing)
    several = " --context L" if len(shown.contexts) > 1 else ""
    console.notes([] if json else [f"add --batch B{several} to draw the tree of one bucket"])
    console.wrote(plot)
