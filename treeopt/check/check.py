"""A running plan against fresh metrics: is it active, does it accept what was planned, what does keeping it cost?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from treeopt.acceptance.replay import ALL_POSITIONS_FLATTER
from treeopt.check.change import DriftVerdict
from treeopt.check.checks import (
    above_bound,
    collapse,
    larger_accepts_less,
    moved,
    not_active,
    stopped_for_good,
)
from treeopt.check.comparing import compare_all
from treeopt.check.matching import PlannedBuckets, deployed_plan
from treeopt.check.measured import Metrics, read_metrics
from treeopt.check.regret import regret_of
from treeopt.check.report import CheckReport, Compared, Finding
from treeopt.draft_words import K
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError, TreeoptError
from treeopt.plan.plan import Plan
from treeopt.planner.inputs import Inputs, inputs_of
from treeopt.planner.wording import words_in

__all__ = ["CheckReport", "DriftVerdict", "Metrics", "check_files", "check_plan", "read_metrics"]

GATE: Final = 0.05


def check_files(
    plan: Plan,
    paths: Sequence[Path],
    *,
    gate: float = GATE,
    batch: int | None = None,
    context: int | None = None,
    kind: str | None = None,
    draft_tokens: int | None = None,
    ranks: str | None = None,
    deployed: DraftSchedule | None = None,
) -> CheckReport:
    """Check a plan, or the chains that run in its place, against metrics files; `ranks` says where its profile is now.

    Raises:
        InputError: a file cannot be read, the gate is no share, or the plan lacks that batch size or context.
    """
    metrics = read_metrics(paths, kind, draft_tokens)
    inputs, lacking = None, []
    try:
        inputs = inputs_of(plan, ranks=ranks)
    except TreeoptError as error:
        if ranks is not None:
            raise
        lacking.append(f"what keeping the plan costs is not known: {error} ({error.hint})")
    report = check_plan(plan, metrics, inputs, gate=gate, batch=batch, context=context, deployed=deployed)
    return replace(report, notes=(*report.notes, *lacking))


def check_plan(
    plan: Plan,
    metrics: Metrics,
    inputs: Inputs | None = None,
    *,
    gate: float = GATE,
    batch: int | None = None,
    context: int | None = None,
    deployed: DraftSchedule | None = None,
) -> CheckReport:
    """Everything that can be said of a running plan from its metrics.

    Args:
        plan: what was deployed.
        metrics: what was counted since.
        inputs: what the plan was made from, to price what keeping it costs; None leaves that out.
        gate: the smallest change of E that matters, as a share.
        batch: the batch size that the metrics are of, where they do not tell.
        context: the context that they are of, for a plan with several.
        deployed: the chains that run in place of the plan's drafts.

    Raises:
        InputError: the gate is no share, or the plan lacks that batch size, context or chain.
    """
    if not 0.0 < gate < 1.0:
        raise InputError(f"a gate of {gate:g} is no share", hint="give the change that matters, such as 0.05")
    plan = plan if deployed is None else deployed_plan(plan, deployed)
    candidates = PlannedBuckets.of(plan, batch=batch, context=context)
    pairs = compare_all(plan, metrics.sources, candidates, gate)
    compared = pairs.compared if inputs is None else _with_regret(pairs.compared, inputs, plan)
    findings = [
        *not_active(metrics, candidates),
        *_of_compared(compared, inputs),
        *larger_accepts_less(metrics.sources, candidates, gate),
        *collapse(metrics.windows, gate),
        *stopped_for_good(metrics, candidates),
    ]
    return CheckReport(
        kind=metrics.kind,
        gate=gate,
        comparisons=compared,
        findings=tuple(findings),
        words=K if all(bucket.tree.is_chain for bucket in plan.buckets) else words_in(plan),
        notes=(*metrics.warnings, *pairs.notes, *_flattered(plan), *_unclear(compared, gate)),
    )


def _with_regret(compared: Sequence[Compared], inputs: Inputs, plan: Plan) -> tuple[Compared, ...]:
    chains = all(bucket.tree.is_chain for bucket in plan.buckets)
    return tuple(replace(c, regret=regret_of(c, inputs, plan, chains_only=chains)) for c in compared)


def _of_compared(compared: Sequence[Compared], inputs: Inputs | None) -> list[Finding]:
    """Above a bound says more than above the plan: one finding each."""
    model = None if inputs is None else inputs.evidence.all_positions
    bounded = list(above_bound(compared, model))
    seen = {finding.where for finding in bounded}
    return [*bounded, *(finding for finding in moved(compared) if finding.where not in seen)]


def _flattered(plan: Plan) -> list[str]:
    if plan.sources.ranks.sampling != "all-positions":
        return []
    return [f"the plan's ranks were {ALL_POSITIONS_FLATTER}: expect a fall"]


def _unclear(compared: Sequence[Compared], gate: float) -> list[str]:
    """What a source that cannot tell is lacking, once each."""
    said: dict[str, str] = {}
    for c in compared:
        if c.verdict is DriftVerdict.UNCLEAR:
            said.setdefault(c.measured.name, _lacking(c, gate))
    return [f"{name}: {text}" for name, text in said.items()]


def _lacking(c: Compared, gate: float) -> str:
    change = f"a change of {2.0 * gate:.0%}"
    if c.change.measured_error is None:
        return f"too few documents, or no count of steps, to tell {change} from chance"
    missing = None if c.measured.steps is None else c.change.missing(c.measured.steps)
    if missing is None:
        return f"the plan's own interval is too wide to tell {change}: search with more documents"
    return f"about {float(f'{missing:.2g}'):,.0f} more steps would tell {change}"
