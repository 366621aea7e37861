"""From a question and its inputs to a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from treeopt.acceptance.intervals import Interval
from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Estimate, Note, Span
from treeopt.cost import break_even_batch
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Draft
from treeopt.plan.plan import CreatedWith, Plan, Verification
from treeopt.plan.sources import EngineSource, FormatLoss
from treeopt.planner.inputs import Inputs
from treeopt.planner.price_interval import with_price_error
from treeopt.planner.reasons import (
    cliff,
    cliffs,
    furthest,
    misjudged,
    optimality,
    over_limit,
    reason,
    wide_ranges,
    within_limits,
)
from treeopt.planner.sensitivity import cost_sensitivity
from treeopt.solve.bucket import Bucket, EngineLoss, Option, WorstLoss
from treeopt.solve.fixed_point import Settled, held_out_tokens, settled_search
from treeopt.solve.problem import Problem
from treeopt.solve.result import Priced
from treeopt.tree import DraftTree
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
    evidence, judge, sources = inputs.evidence, None, inputs.sources
    if held_out is not None:
        evidence, judge = evidence.split(held_out, seed)
    questions = [
        own
        for asked in (question.over(contexts) if contexts else (question,))
        for own in _where_plain_is_known(asked, inputs.cost)
    ]
    settled = [s for own in questions for s in settled_search(own, evidence, inputs.cost, seed=seed)]
    found: list[Restricted] = []
    of_engine: list[Note] = []
    if target is not None:
        from treeopt.planner.for_engine import engine_notes, restricted_search  # imports all engines

        found = restricted_search(target, questions, settled, evidence, inputs.cost, seed)
        settled = list(found[0].settled)
        of_engine = [Note.note(text) for text in engine_notes(target, found, evidence)]
        if (foreign := target.engine.foreign_lookup(target.drafter, sources.ranks.drafter)) is not None:
            of_engine.append(Note.warning(foreign))
        sources = replace(sources, engine=_engine(target, found, known=sources.ranks.knows_widths))
    one_for_all = bool(found) and not found[0].form.format.limits.per_batch
    buckets = tuple(_bucket(s, inputs, evidence, judge, seed, found[0] if found else None) for s in settled)
    error = inputs.price_error
    if error is not None:
        buckets = tuple(with_price_error(bucket, error, inputs.kernels) for bucket in buckets)
    of_buckets = {cliff(inputs.cost, b.verified_tokens) for b in buckets}
    of_inputs = furthest(note for b in buckets for note in inputs.notes(b.batch.max, b.context.max, b.nodes))
    said = (
        *cliffs(settled, inputs.cost),
        *(() if one_for_all else wide_ranges(settled)),
        *within_limits(settled),
    )
    return Plan(
        created_with=CreatedWith(VERSION, command),
        verification=Verification(rule=inputs.rule, temperature=inputs.names.temperature),
        objective=question.objective,
        context=questions[-1].context,
        buckets=buckets,
        notes=(
            *of_engine,
            *(note for note in of_inputs if note.text not in of_buckets),
            *(Note.note(text) for text in said),
        ),
        sources=sources,
        limits=settled[0].question.limits,
        budget_tokens=question.budget_tokens,
        time_limit=question.time_limit,
    )


def _where_plain_is_known(question: Problem, cost: StepCost) -> Iterator[Problem]:
    """The question in runs of batch sizes: where plain decoding has no time of its own, something must be drafted."""
    ranges = zip(question.ranges, question.batches, strict=True)
    for known, run in groupby(ranges, key=lambda pair: knows_plain(cost, pair[1])):
        own = list(run)
        batches, first = tuple(batch for _, batch in own), own[0][0][0]
        yield replace(question, batches=batches, first_batch=first, may_be_off=question.may_be_off and known)


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


def _engine_loss(settled: Settled, restricted: Restricted, *, known: bool) -> EngineLoss:
    """What the engine's limits cost; from first guesses alone nobody knows what a tree would gain."""
    lost = restricted.lost_in(settled)
    last, worst = lost[-1], max(lost, key=lambda own: own.share)
    if not known:
        return EngineLoss(share=None, unrestricted=None, worst=None)
    return EngineLoss(
        share=estimate(last.share, last.interval),
        unrestricted=option(last.draft, last.free),
        worst=WorstLoss(worst.point.batch, worst.share),
    )


def option(draft: Draft, priced: Priced, tokens: Interval | None = None) -> Option:
    """A priced draft as plans hold it."""
    return Option(
        draft=draft,
        acceptance_length=estimate(priced.expected_tokens, tokens),
        step_time_s=priced.step_time_s,
        tokens_per_s=Estimate.priced(priced.tokens_per_s),
    )


def _bucket(
    settled: Settled,
    inputs: Inputs,
    evidence: Traffic,
    judge: Traffic | None,
    seed: int,
    restricted: Restricted | None,
) -> Bucket:
    choice, question, cost = settled.choice, settled.question, inputs.cost
    known = knows_plain(cost, choice.batch_max)
    one_for_all = restricted is not None and not restricted.form.format.limits.per_batch
    sensitivity = cost_sensitivity(choice, question, evidence, cost)
    chosen = option(choice.draft, choice.best, settled.tokens)
    reasons = [
        *over_limit(settled),
        *reason(settled, cost.ridge_tokens, inputs.sources.ranks, plain_known=known, one_for_all=one_for_all),
        *filter(None, [cliff(cost, choice.tokens_per_step)]),
        *misjudged(sensitivity),
    ]
    return Bucket(
        batch=Span(choice.batch_min, choice.batch_max),
        context=Span(question.context_min, question.context),
        tree=choice.tree,
        dynamic=choice.dynamic,
        acceptance_length=chosen.acceptance_length,
        tokens_per_s=chosen.tokens_per_s,
        speedup=Estimate.priced(choice.speedup) if known else None,
        break_even_length=choice.break_even_tokens if known else None,
        step_time_s=chosen.step_time_s,
        best_chain=option(DraftTree.chain(choice.chain.depth), choice.chain),
        plain=option(DraftTree(()), choice.plain) if known else None,
        missing=() if known else (f"a run without speculation (K = 0) at batch {choice.batch_max}",),
        reason="; ".join(reasons),
        optimality=optimality(settled),
        path_probabilities=choice.path_probabilities,
        held_out_length=None if judge is None else estimate(*held_out_tokens(choice.draft, judge, seed=seed)),
        time_per_token=settled.time_per_token,
        meets_limit=choice.meets_limit if question.time_limit.limits else None,
        speedup_at_min=choice.speedup_at_min if known else None,
        ridge_batch=break_even_batch(cost.ridge_tokens, choice.best.nodes),
        runner_up=None if choice.runner_up is None else option(choice.runner_up.draft, choice.runner_up.option),
        sharing_loss=choice.sharing_loss,
        smallest_visible_gain=settled.resolvable,
        categories=settled.categories,
        engine_loss=None if restricted is None else _engine_loss(settled, restricted, known=_widths(inputs)),
        sensitivity=sensitivity,
    )


def _widths(inputs: Inputs) -> bool:
    return inputs.sources.ranks.knows_widths


def estimate(value: float, interval: Interval | None) -> Estimate:
    """A measured number with its 95 % interval, which holds it."""
    if interval is None:
        return Estimate(value=value)
    return Estimate(value=value, low=min(interval.low, value), high=max(interval.high, value))
