"""`treeopt check`: a running plan against fresh metrics."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treeopt.cli.options import DraftTokens, EvidenceKind, Json, PlanFile, PlanRanks

if TYPE_CHECKING:
    from treeopt.check.report import CheckReport, Compared

DRIFT: Final = 3


def check(
    plan: PlanFile,
    metrics: Annotated[
        list[Path],
        typer.Option(
            "--metrics", metavar="FILE", help="Metrics, a log, a rank profile or a trace; two scrapes are subtracted."
        ),
    ],
    gate: Annotated[float, typer.Option(help="The smallest change of E that matters, as a share.")] = 0.05,
    batch: Annotated[
        int | None,
        typer.Option(help="The batch size of the metrics, where they tell no tree.", show_default=False),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Their context, for a plan with several.", show_default=False)
    ] = None,
    deployed: Annotated[
        str | None,
        typer.Option(
            metavar="DRAFTS",
            help="What runs if it is not the plan: chain:K, or the engine's file.",
            show_default=False,
        ),
    ] = None,
    kind: EvidenceKind = None,
    draft_tokens: DraftTokens = None,
    ranks: PlanRanks = None,
    json: Json = False,
) -> None:
    """Say whether a deployed plan is active and still accepts what it promised; exit 3 if not."""
    from treeopt.check.check import check_files
    from treeopt.cli import console
    from treeopt.engines.importing import load_schedule
    from treeopt.plan.reading import load_plan

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
    if json:
        typer.echo(json_format.dumps(_document(report), indent=2))
    else:
        from treeopt.render.drift import drift_report

        console.result(drift_report(report, console.width()))
        console.notes(report.notes)
    if report.drifted:
        raise typer.Exit(DRIFT)


def _document(report: CheckReport) -> dict[str, Any]:
    return {
        "format": "treeopt.check/1",
        "kind": report.kind,
        "gate": report.gate,
        "drifted": report.drifted,
        "comparisons": [_comparison(c) for c in report.compared],
        "findings": [
            {"kind": f.kind.value, "where": f.where, "seen": f.seen, "next_step": f.next_step} for f in report.findings
        ],
        "notes": list(report.notes),
    }


def _comparison(compared: Compared) -> dict[str, Any]:
    change, regret = compared.change, compared.regret
    return {
        "batch": {"min": compared.bucket.batch.min, "max": compared.bucket.batch.max},
        "context": {"min": compared.bucket.context.min, "max": compared.bucket.context.max},
        "source": compared.source.name,
        "steps": compared.source.steps,
        "mean_batch": compared.source.batch,
        "draft_tokens_per_draft": compared.source.drafted,
        "planned_tokens": change.planned,
        "measured_tokens": change.measured,
        "change": {"value": change.share, "low": change.low, "high": change.high},
        "detectable_change": change.detectable,
        "verdict": compared.verdict.value,
        "depths": [{"depth": d.depth, "planned": d.planned, "measured": d.measured} for d in compared.depths],
        "regret": None
        if regret is None
        else {
            "loss": regret.loss,
            "kept_tokens_per_s": regret.kept_tokens_per_s,
            "best_tokens_per_s": regret.best_tokens_per_s,
            "best_nodes": regret.nodes,
            "best_depth": regret.depth,
        },
    }
