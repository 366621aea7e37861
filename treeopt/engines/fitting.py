"""What of a plan an engine can load: its trees where they fit, else the best chains, with what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

from treeopt.answer import Span
from treeopt.draft_family import OFF, Chains, Draft, DraftFamily, StaticTrees, UniformTrees, chain_length, in_words
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.errors import InputError
from treeopt.plan.plan import Plan
from treeopt.solve.bucket import Bucket
from treeopt.solve.buckets import batches_in_words
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What a range of batch sizes gets instead of the plan's tree.

    `share` of the plan's tokens/s is lost, at the largest batch; below 0 where that one gains, None where the plan has
    no price for it.
    """

    batch: Span
    planned: str
    exported: str
    share: float | None


class FittedDrafts(NamedTuple):
    """Drafts that an engine can load, what they lose against the plan, and what else to know."""

    schedule: DraftSchedule
    losses: tuple[Loss, ...] = ()
    notes: tuple[str, ...] = ()


class _Choice(NamedTuple):
    draft: Draft
    tokens_per_s: float | None


def fit_plan(plan: Plan, limits: DraftFamily, *, batch: int | None = None, allow_off: bool = False) -> FittedDrafts:
    """The plan's drafts within an engine's limits; with `batch` those of one bucket for all batch sizes.

    Where a tree does not fit, an engine that loads chains gets the plan's best chain. Where the plan does not
    speculate it gets that chain too, unless `allow_off`: engines let the drafter's state age while it is off.

    Raises:
        InputError: the engine can load nothing of it, with the reason.
    """
    buckets = plan.buckets if batch is None else (plan.bucket_for(batch),)
    if not any(bucket.speculate for bucket in buckets) and not _loads_nothing(limits):
        raise InputError(
            f"the plan does not speculate at {batches_in_words(buckets[0].batch.min, buckets[-1].batch.max)}",
            hint="start the engine without a drafter",
        )
    choices = _longest_first([_choice(bucket, limits, allow_off) for bucket in buckets], limits)
    starts = [1, *(bucket.batch.min for bucket in buckets[1:])]
    schedule = DraftSchedule(
        steps=tuple(ScheduleStep(start, choice.draft) for start, choice in zip(starts, choices, strict=True)),
        covers=buckets[-1].batch.max,
    )
    if not limits.per_batch and schedule.only is None:
        ranges = ", ".join(batches_in_words(b.batch.min, b.batch.max) for b in buckets)
        raise InputError(
            f"it loads {limits.words}, the plan has several: {ranges}",
            hint="add --batch B, or search with --engine (and --traffic) for one that serves all",
        )
    pairs = zip(buckets, choices, strict=True)
    losses = tuple(_loss(bucket, choice) for bucket, choice in pairs if choice.draft != bucket.draft)
    return FittedDrafts(schedule, losses, tuple(_notes(buckets, limits, weighed=bool(plan.weights))))


def fit_schedule(schedule: DraftSchedule, limits: DraftFamily) -> FittedDrafts:
    """The same drafts, if all of them are within an engine's limits.

    Raises:
        InputError: one is not, with the reason.
    """
    if not schedule.speculates and not _loads_nothing(limits):
        raise InputError("nothing is drafted at any batch size", hint="start the engine without a drafter")
    if not limits.per_batch and schedule.only is None:
        raise InputError(f"it loads {limits.words}, these drafts change with the batch size", hint="add --batch B")
    for r in schedule.ranges():
        if (reason := limits.refusal(r.draft)) is not None:
            where = "" if schedule.only is not None else f"{batches_in_words(r.batch_min, r.batch_max)}: "
            raise InputError(f"{where}{reason}", hint=f"it loads {limits.words}")
    if isinstance(limits, Chains) and limits.longest_first:
        lengths = [chain_length(step.draft) or 0 for step in schedule.steps]
        if lengths[0] < max(lengths):
            raise InputError(
                f"it loads no more than the first range drafts ({lengths[0]}), a later one has {max(lengths)}",
                hint="draft the longest chain in the smallest batch sizes",
            )
    return FittedDrafts(schedule)


def _loads_nothing(limits: DraftFamily) -> bool:
    """Whether a file without drafts means something: an empty path list does."""
    return isinstance(limits, StaticTrees | UniformTrees) and limits.refusal(OFF) is None


def _loads_its_own_trees(limits: DraftFamily) -> TypeGuard[StaticTrees | UniformTrees]:
    """Whether the trees that fit beat a chain: with equal widths at all depths there are few besides."""
    return isinstance(limits, StaticTrees) or (isinstance(limits, UniformTrees) and not limits.equal_widths)


def _choice(bucket: Bucket, limits: DraftFamily, allow_off: bool) -> _Choice:
    reason = limits.refusal(bucket.draft)
    if reason is None and (bucket.speculate or allow_off or isinstance(limits, StaticTrees | UniformTrees)):
        return _Choice(bucket.draft, bucket.tokens_per_s.value)
    if _loads_its_own_trees(limits):  # a tree within the caps beats a chain
        where = batches_in_words(*bucket.batch)
        options = f"; search with {limits.search_options}" if limits.search_options else ""
        raise InputError(f"the tree of {where} does not fit: {reason}", hint=f"it loads {limits.words}{options}")
    chain = bucket.best_chain
    if limits.refusal(OFF) is None and allow_off and bucket.plain is not None:
        plain = bucket.plain.tokens_per_s.value
        if plain > chain.tokens_per_s.value:
            return _Choice(OFF, plain)
    cap = limits.max_length if isinstance(limits, Chains) else None
    length = max(chain.depth if cap is None else min(chain.depth, cap), 1)
    return _Choice(DraftTree.chain(length), chain.tokens_per_s.value if length == chain.depth else None)


def _longest_first(choices: list[_Choice], limits: DraftFamily) -> list[_Choice]:
    """Cut what exceeds the first range's chain, where the engine allows no longer one."""
    if not isinstance(limits, Chains) or not limits.longest_first:
        return choices
    lengths = [chain_length(choice.draft) or 0 for choice in choices]
    first = lengths[0]
    if first == 0:
        raise InputError("it cannot speculate at large batch sizes only", hint="give the smallest batch sizes a chain")
    shorter = _Choice(DraftTree.chain(first), None)
    return [c if length <= first else shorter for c, length in zip(choices, lengths, strict=True)]


def _loss(bucket: Bucket, choice: _Choice) -> Loss:
    rate = choice.tokens_per_s
    return Loss(
        batch=bucket.batch,
        planned=in_words(bucket.draft),
        exported=in_words(choice.draft),
        share=None if rate is None else 1.0 - rate / bucket.tokens_per_s.value,
    )


def _notes(buckets: Sequence[Bucket], limits: DraftFamily, *, weighed: bool) -> list[str]:
    notes = [
        f"whether speculation pays at {batches_in_words(*b.batch)} is not known: {', '.join(b.missing)} would tell"
        for b in buckets
        if b.missing
    ]
    if limits.per_batch and buckets[0].batch.min > 1:
        notes.append(f"the plan starts at batch {buckets[0].batch.min}; smaller batches get the same drafts, unpriced")
    if not limits.per_batch and len(buckets) == 1:
        where = batches_in_words(buckets[0].batch.min, buckets[0].batch.max)
        by = ", by the weights of the plan" if weighed else ""
        notes.append(f"one setting serves all batch sizes; it was chosen for {where}{by}")
    return notes
