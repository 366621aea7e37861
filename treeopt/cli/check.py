"""`treeopt check`: a running plan against fresh metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import click

from treeopt.cli.command import CliOption
from treeopt.cli.options import AllNotes, DraftTokens, EvidenceKind, Json, PlanFile, PlanRanks

if TYPE_CHECKING:
    from treeopt.check.report import CheckReport
    from treeopt.plan.plan import Plan

DRIFT: Final = 3
INTERVAL_S: Final = 5.0


def check(
    plan: PlanFile,
    metrics: Annotated[
        list[Path] | None,
        CliOption(
            "--metrics", metavar="FILE", help="Metrics, a log, a rank profile or a trace; two scrapes are subtracted."
        ),
    ] = None,
    url: Annotated[str | None, CliOption(help="Or a running server, watched until it is told.")] = None,
    seconds: Annotated[float, CliOption(min=0.0, help="With --url: give up after so many.")] = 300.0,
    gate: Annotated[float, CliOption(help="The smallest change of E that matters, as a share.")] = 0.05,
    batch: Annotated[
        int | None,
        CliOption(help="The batch size of the metrics, where they tell no tree."),
    ] = None,
    context: Annotated[int | None, CliOption(help="Their context, for a plan with several.")] = None,
    deployed: Annotated[
        str | None,
        CliOption(
            metavar="DRAFTS",
            help="What runs if it is not the plan: chain:K, or the engine's file.",
        ),
    ] = None,
    kind: EvidenceKind = None,
    draft_tokens: DraftTokens = None,
    ranks: PlanRanks = None,
    notes: AllNotes = False,
    json: Json = False,
) -> None:
    """Say whether a deployed plan is active and still accepts what it promised; exit 3 if not."""
    from treeopt.check.check import check_files
    from treeopt.check.matching import deployed_plan
    from treeopt.cli import console
    from treeopt.engines.importing import load_schedule
    from treeopt.plan.reading import load_plan

    if (url is None) == (not metrics):
        raise click.UsageError("give --metrics FILE, or --url of the server")
    own = load_plan(plan) if deployed is None else deployed_plan(load_plan(plan), load_schedule(deployed))
    if url is not None:
        _check_live(own, url, gate=gate, batch=batch, seconds=seconds, json=json, notes=notes)
        return
    with console.working("checking"):
        report = check_files(
            own,
            metrics or [],
            gate=gate,
            batch=batch,
            context=context,
            kind=kind,
            draft_tokens=draft_tokens,
            ranks=ranks,
        )
    _told(report, json, notes)


def _check_live(
    plan: Plan, url: str, *, gate: float, batch: int | None, seconds: float, json: bool, notes: bool
) -> None:
    from treeopt.check.live import Scrapes, for_plan, watch
    from treeopt.cli import console
    from treeopt.render.watch import line

    reports: list[CheckReport] = []
    with Scrapes.of(url) as scrapes, console.if_interrupted(lambda: "nothing was decided yet"):
        decide = for_plan(plan, gate=gate, batch=batch, into=reports)
        watch(scrapes, decide, interval_s=INTERVAL_S, seconds=seconds, tell=lambda w: click.echo(line(w), err=True))
    _told(reports[-1], json, notes)


def _told(report: CheckReport, json: bool, notes: bool) -> None:
    from treeopt.cli import console
    from treeopt.render.check import report as drawn

    console.answer(report, json, drawn, report.notes, all_notes=notes)
    if report.drifted:
        raise click.exceptions.Exit(DRIFT)
