"""`treeopt check`: a running plan against fresh metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import click

from treeopt.cli.command import CliOption
from treeopt.cli.options import AllNotes, DraftTokens, EvidenceKind, Json, PlanFile, PlanRanks

DRIFT: Final = 3


def check(
    plan: PlanFile,
    metrics: Annotated[
        list[Path],
        CliOption(
            "--metrics", metavar="FILE", help="Metrics, a log, a rank profile or a trace; two scrapes are subtracted."
        ),
    ],
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
    from treeopt.cli import console
    from treeopt.engines.importing import load_schedule
    from treeopt.plan.reading import load_plan
    from treeopt.render.check import report as drawn

    with console.working("checking"):
        report = check_files(
            load_plan(plan),
            metrics,
            gate=gate,
            batch=batch,
            context=context,
            kind=kind,
            draft_tokens=draft_tokens,
            ranks=ranks,
            deployed=None if deployed is None else load_schedule(deployed),
        )
    console.answer(report, json, drawn, report.notes, all_notes=notes)
    if report.drifted:
        raise click.exceptions.Exit(DRIFT)
