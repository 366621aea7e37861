"""`treeopt report`: a plan as one page to look at and to show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from treeopt.cli.command import CliOption
from treeopt.cli.options import Json, PlanContext, PlanFile, PlanRanks

if TYPE_CHECKING:
    from treeopt.plan.plan import Plan
    from treeopt.planner.report import PlanReport


def report(
    plan: PlanFile,
    out: Annotated[Path, CliOption("--out", "-o", help="Write the page here.")] = Path("report.html"),
    rivals: Annotated[
        list[str] | None,
        CliOption(
            "--with",
            metavar="RIVAL",
            help="What runs today: none, chain:K, sglang:3,4,16, a plan, a tree, an engine's file; repeatable.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        CliOption(metavar="NAME[==VERSION]", help="Whose settings to show. [default: the plan's own]"),
    ] = None,
    context: PlanContext = None,
    ranks: PlanRanks = None,
    json: Json = False,
) -> None:
    """Write a plan as one page: the answer, its settings, pictures of what stands behind it, and how it was made.

    The page loads nothing from elsewhere. What can no longer be computed, as where a source is gone, is left out and
    named.
    """
    from treeopt.cli import console
    from treeopt.plan.reading import load_plan
    from treeopt.render.report import report as draw

    ready_to_write(out)
    found = write_page(load_plan(plan), out, *rivals or (), engine=engine, context=context, ranks=ranks)
    console.report(found, json, draw)
    console.wrote(out)


def ready_to_write(page: Path) -> None:
    """Refuse, before the work is done, what writing would refuse after it."""
    from treeopt.extras import require
    from treeopt.files.writing import check_writable

    for library in ("jinja2", "matplotlib"):
        require(library, extra="report")
    check_writable(page, what="page")


def write_page(
    plan: Plan,
    out: Path,
    *rivals: str,
    engine: str | None = None,
    context: int | None = None,
    ranks: str | None = None,
) -> PlanReport:
    """The page of a plan, written; what it shows."""
    from treeopt.cli import console
    from treeopt.cli.options import command_line
    from treeopt.files.writing import write_atomically
    from treeopt.planner.report import report_of
    from treeopt.render.report import page

    with console.working("drawing"):
        found = report_of(plan, *rivals, engine=engine, context=context, ranks=ranks)
        html = page(found, command=command_line())
    write_atomically(out, html, what="page")
    return found
