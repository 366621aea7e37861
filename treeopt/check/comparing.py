"""Measured E against planned E, source by source and bucket by bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from treeopt.acceptance.chain import ChainRanks
from treeopt.acceptance.conversions import conditional_from_survival
from treeopt.acceptance.intervals import NORMAL_QUANTILE, Interval, counted_interval, tokens_interval
from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.acceptance.replay import replay
from treeopt.arrays import FloatArray
from treeopt.check.change import DESIGN_EFFECT, Change, length_error
from treeopt.check.matching import PlannedBuckets, common_depths, planned_survival
from treeopt.check.measured import Measured
from treeopt.check.report import Compared, DepthChange
from treeopt.plan.plan import Plan
from treeopt.solve.bucket import Bucket


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """What was compared, and why the rest was not."""

    compared: tuple[Compared, ...]
    notes: tuple[str, ...]


def compare_all(plan: Plan, sources: Sequence[Measured], candidates: PlannedBuckets, gate: float) -> Pairs:
    """Every source against the buckets that it can be about."""
    found: list[Compared] = []
    notes: list[str] = []
    for source in sources:
        own = candidates.at(source.batch)
        buckets = _buckets(source, own)
        if not buckets and candidates.mixes(source):
            found.append(_mixed(plan, source, candidates, gate))
        elif len(buckets) > 1 and source.ranks is None:
            trees = ", ".join(f"{b.batches}: {len(b.tree) - 1} draft tokens" for b in buckets)
            notes.append(
                f"{source.name}: the file does not tell which of the plan's drafts ran ({trees}): give --batch"
            )
        elif not buckets and source.draft_tokens is None and own.speculating:
            notes.append(f"{source.name}: top guesses alone say nothing of a tree")
        else:
            found += [_compared(plan, source, bucket, gate) for bucket in buckets]
    return Pairs(
        compared=tuple(replace(c, change=replace(c.change, comparisons=len(found))) for c in found),
        notes=tuple(dict.fromkeys(notes)),
    )


def _buckets(source: Measured, candidates: PlannedBuckets) -> tuple[Bucket, ...]:
    if source.draft_tokens is not None:
        return candidates.that_draft(source)
    if source.survival is None:
        return candidates.speculating
    # Top guesses alone, and nothing says that a tree ran: a tree accepts more at each depth.
    return tuple(bucket for bucket in candidates.speculating if bucket.tree.is_chain)


def _mixed(plan: Plan, source: Measured, candidates: PlannedBuckets, gate: float) -> Compared:
    """Drafts of several lengths added up: only the depths that all of them had are counts of one thing."""
    longest = max(candidates.speculating, key=lambda b: b.tree.depth)
    if source.survival is None:
        return _compared(plan, source, longest, gate)
    return _by_survival(plan, source, longest, common_depths(source, candidates.speculating), gate)


def _compared(plan: Plan, source: Measured, bucket: Bucket, gate: float) -> Compared:
    if source.ranks is not None:
        return _by_ranks(plan, source, bucket, gate)
    if source.survival is not None:
        return _by_survival(plan, source, bucket, common_depths(source, [bucket]), gate)
    assert source.length is not None
    planned = bucket.acceptance_length.value
    change = Change(
        planned=planned,
        measured=source.length,
        planned_error=planned_error(plan, bucket, planned_survival(bucket)),
        measured_error=source.error,
        gate=gate,
    )
    return Compared(bucket=bucket, measured=source, change=change)


def _by_survival(plan: Plan, source: Measured, bucket: Bucket, depths: int, gate: float) -> Compared:
    assert source.survival is not None
    planned, measured = planned_survival(bucket)[:depths], source.survival[:depths]
    change = Change(
        planned=float(1.0 + planned.sum()),
        measured=float(1.0 + measured.sum()),
        planned_error=planned_error(plan, bucket, planned),
        measured_error=_error_over(source, measured),
        gate=gate,
    )
    rates = zip(conditional_from_survival(planned), conditional_from_survival(measured), strict=True)
    by_depth = (DepthChange(depth=d, planned=float(p), measured=float(m)) for d, (p, m) in enumerate(rates, start=1))
    return Compared(bucket=bucket, measured=source, change=change, depths=tuple(by_depth))


def _error_over(source: Measured, survival: FloatArray) -> float | None:
    """The source's error over the first depths, by the share that they have of the whole error."""
    if source.error is None or source.steps is None or source.survival is None:
        return source.error
    whole = length_error(source.survival, source.steps)
    return source.error * length_error(survival, source.steps) / whole if whole > 0.0 else source.error


def _by_ranks(plan: Plan, source: Measured, bucket: Bucket, gate: float) -> Compared:
    """E that the fresh ranks predict for the bucket's tree; from a trace, what a replay gets."""
    assert source.ranks is not None
    tree, trace = bucket.tree, source.ranks.trace
    interval: Interval | None
    if trace is not None and trace.depth >= tree.depth:
        result = replay(trace, tree)
        measured, interval, effect = result.tokens_per_step, tokens_interval(result), 1.0
    else:
        evidence = source.ranks.evidence
        measured = expected_tokens(path_probabilities(source.ranks.model(), tree))
        interval = counted_interval(evidence, tree)
        effect = 1.0 if isinstance(evidence, ChainRanks) else DESIGN_EFFECT
    change = Change(
        planned=bucket.acceptance_length.value,
        measured=measured,
        planned_error=planned_error(plan, bucket, planned_survival(bucket)),
        measured_error=None if interval is None else interval.half_width / NORMAL_QUANTILE * effect**0.5,
        gate=gate,
    )
    return Compared(bucket=bucket, measured=source, change=change)


def planned_error(plan: Plan, bucket: Bucket, survival: FloatArray) -> float | None:
    """The standard error of the plan's own E over these depths: by its interval, else by the positions it counts."""
    tokens, ranks = bucket.acceptance_length, plan.sources.ranks
    if tokens.low is not None and tokens.high is not None:
        by_document = ranks.documents is not None  # else it takes drafts for independent
        whole = (tokens.high - tokens.low) / 2.0 / NORMAL_QUANTILE * (1.0 if by_document else DESIGN_EFFECT**0.5)
        return whole * float(1.0 + np.sum(survival)) / tokens.value
    return None if not ranks.positions else length_error(survival, float(ranks.positions))
