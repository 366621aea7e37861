"""From a question and its inputs to a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Note
from treeopt.cost.step_cost import StepCost
from treeopt.draft_words import words_for
from treeopt.plan.plan import CreatedWith, Plan, Verification
from treeopt.plan.sources import EngineSource, FormatLoss
from treeopt.planner.inputs import Inputs
from treeopt.planner.price_interval import with_price_error
from treeopt.planner.reasons import (
    cliff,
    cliffs,
    furthest,
    misjudged,
    over_limit,
    reason,
    wide_ranges,
    within_limits,
)
from treeopt.planner.sensitivity import cost_sensitivity
from treeopt.planner.served_time import served_notes
from treeopt.planner.start_up import branch_notes, off_notes, started
from treeopt.solve.bucket import Bucket
from treeopt.solve.options import EngineLoss, WorstLoss
from treeopt.solve.problem import Problem
from treeopt.solve.report import estimate, held_out_length
from treeopt.solve.search import Answer, search
from treeopt.version import VERSION

if TYPE_CHECKING:
    from treeopt.planner.for_engine import Restricted, Target


@runtime_checkable
class MeasuredPlain(Protocol):
    """A step time that may know speculative steps only."""

    def measures_plain(self, batch: int) -> bool:
        """Whether plain decoding has a time of its own at a batch size."""


def knows_plain(cost: StepCost, batch: int) -> bool:
    """Whether speculation can be judged against plain decoding there: an invented time would decide."""
    return not isinstance(cost, MeasuredPlain) or cost.measures_plain(batch)


def make_plan(
    question: Problem,
    inputs: Inputs,
    *,
    command: str,
    contexts: Sequence[int] = (),
    seed: int = 0,
    held_out: float | None = None,
    target: Target | None = None,
) -> Plan:
    """Search, and put the answer with its evidence into a plan.

    `contexts` are searched one after the other, in place of the question's own (see `Problem.over`). `command` is
    recorded in the plan; `seed` is that of the bootstrap behind the intervals. With `held_out` that share of the
    documents does not take part in the search, and every bucket tells its E on them. With a `target` the trees are
    the best that an engine can load, and every bucket tells what that costs.

    Raises:
        InputError: the evidence has no documents to hold out, or contexts that do not rise.
        SearchError: the limits leave nothing that the engine can load.
    """
    question, inputs, of_start = started(question, inputs, target)
    evidence, judge, sources = inputs.evidence, None, inputs.sources
    if inputs.measured is not None:
        question = replace(question, family=inputs.measured)
    if held_out is not None:
        evidence, judge = evidence.split(held_out, seed)
    questions = [
        own
        for asked in (question.over(contexts) if contexts else (question,))
        for own in _where_plain_is_known(asked, inputs.cost)
    ]
    answers = [Answer(own, b) for own in questions for b in search(own, evidence, inputs.cost, seed=seed)]
    found: list[Restricted] = []
    of_engine: list[Note] = []
    if target is not None:
        from treeopt.planner.for_engine import engine_notes, foreign_price, restricted_search  # imports all engines

        found = restricted_search(target, questions, answers, evidence, inputs.cost, seed)
        answers = list(found[0].answers)
        of_engine = [Note.note(text) for text in engine_notes(target, found, evidence)]
        of_engine += foreign_price(target, inputs)
        if (foreign := target.engine.foreign_lookup(target.drafter, sources.ranks.drafter)) is not None:
            of_engine.append(Note.warning(foreign))
        sources = replace(sources, engine=_engine(target, found, known=sources.ranks.knows_widths))
    one_for_all = bool(found) and not found[0].form.format.limits.per_batch
    buckets = tuple(_told(a, inputs, evidence, judge, seed, found[0] if found else None) for a in answers)
    error = inputs.price_error
    if error is not None:
        buckets = tuple(with_price_error(bucket, error, inputs.kernels) for bucket in buckets)
    of_buckets = {cliff(inputs.cost, b.verified_tokens) for b in buckets}
    of_inputs = furthest(note for b in buckets for note in inputs.notes(b.batch.max, b.context.max, b.nodes))
    said = (
        *cliffs(buckets, inputs.cost),
        *(() if one_for_all else wide_ranges(buckets, question)),
        *within_limits(buckets, question.time_limit),
    )
    return Plan(
        created_with=CreatedWith(VERSION, command),
        verification=Verification(rule=inputs.rule, temperature=inputs.names.temperature),
        objective=question.objective,
        context=questions[-1].context,
        buckets=buckets,
        notes=(
            *of_engine,
            *map(Note.note, of_start),
            *(map(Note.note, off_notes(buckets, inputs)) if target is not None else ()),
            *map(Note.warning, branch_notes(buckets, inputs)),
            *(note for note in of_inputs if note.text not in of_buckets),
            *(Note.note(text) for text in said),
            *served_notes(buckets, inputs, question.time_limit.output_tokens),
        ),
        sources=sources,
        limits=answers[0].problem.caps,
        budget_tokens=question.budget_tokens,
        time_limit=question.time_limit,
        weights=question.weights,
    )


def _where_plain_is_known(question: Problem, cost: StepCost) -> Iterator[Problem]:
    """The question in runs of batch sizes: where plain decoding has no time of its own, something must be drafted."""
    ranges = zip(question.ranges, question.batches, strict=True)
    for known, run in groupby(ranges, key=lambda pair: knows_plain(cost, pair[1])):
        own = list(run)
        batches, first = tuple(batch for _, batch in own), own[0][0][0]
        yield replace(question.only(batches, first), may_be_off=question.may_be_off and known)


def _engine(target: Target, found: Sequence[Restricted], *, known: bool) -> EngineSource:
    losses = [
        FormatLoss(
            format=r.form.format.name,
            drafts=r.drafts,
            mean_loss=r.mean if known else None,
            worst_loss=r.worst if known else None,
        )
        for r in found
    ]
    return EngineSource(
        name=target.engine.engine.name,
        version=target.engine.version,
        format=losses[0].format,
        allow_off=target.allow_off,
        formats=tuple(losses),
    )


def _engine_loss(bucket: Bucket, restricted: Restricted, *, known: bool) -> EngineLoss:
    """What the engine's limits cost; from first guesses alone nobody knows what a tree would gain."""
    lost = restricted.lost_in(bucket)
    last, worst = lost[-1], max(lost, key=lambda own: own.share)
    if not known:
        return EngineLoss(share=None, unrestricted=None, worst=None)
    return EngineLoss(
        share=estimate(last.share, last.interval),
        unrestricted=last.free,
        worst=WorstLoss(worst.point.batch, worst.share),
    )


def _told(
    answer: Answer,
    inputs: Inputs,
    evidence: Traffic,
    judge: Traffic | None,
    seed: int,
    restricted: Restricted | None,
) -> Bucket:
    """A bucket with its reason, and what the search does not know: held-out documents, an engine, no plain run."""
    problem, cost, bucket = answer.problem, inputs.cost, answer.bucket
    if not knows_plain(cost, bucket.batch.max):
        missing = (f"a run without speculation (K = 0) at batch {bucket.batch.max}",)
        by_batch = tuple(at._replace(speedup=None) for at in bucket.by_batch)
        unknown = replace(bucket, plain=None, speedup=None, break_even_length=None, speedup_at_min=None)
        bucket = replace(unknown, missing=missing, by_batch=by_batch)
    one_for_all = restricted is not None and not restricted.form.format.limits.per_batch
    sensitivity = cost_sensitivity(bucket, problem, evidence, cost)
    reasons = [
        *over_limit(bucket, problem.time_limit),
        *reason(bucket, problem, cost.ridge_tokens, inputs.sources.ranks, one_for_all=one_for_all),
        *filter(None, [cliff(cost, bucket.verified_tokens)]),
        *misjudged(sensitivity, words_for(problem.family, [bucket.draft])),
    ]
    return replace(
        bucket,
        reason="; ".join(reasons),
        held_out_length=None if judge is None else held_out_length(bucket.draft, judge, seed=seed),
        engine_loss=None if restricted is None else _engine_loss(bucket, restricted, known=_widths(inputs)),
        sensitivity=sensitivity,
    )


def _widths(inputs: Inputs) -> bool:
    return inputs.sources.ranks.knows_widths
