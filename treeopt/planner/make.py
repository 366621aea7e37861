"""From a question and its inputs to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.acceptance.intervals import Interval
from treeopt.acceptance.traffic import Traffic
from treeopt.cost import break_even_batch
from treeopt.cost.step_cost import StepCost
from treeopt.plan.bucket import Alternative, Bucket, EngineLoss, Estimate
from treeopt.plan.plan import FormatLoss, Plan, PlanEngine
from treeopt.planner.inputs import Inputs
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
from treeopt.solve.fixed_point import Settled, held_out_tokens, settled_search
from treeopt.solve.problem import Problem
from treeopt.solve.result import Priced
from treeopt.version import VERSION

if TYPE_CHECKING:
    from treeopt.planner.for_engine import Restricted, Target


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
    evidence, judge = inputs.evidence, None
    if held_out is not None:
        evidence, judge = evidence.split(held_out, seed)
    questions = question.over(contexts) if contexts else (question,)
    settled = [s for own in questions for s in settled_search(own, evidence, inputs.cost, seed=seed)]
    found: list[Restricted] = []
    of_engine: list[str] = []
    if target is not None:
        from treeopt.planner.for_engine import engine_notes, restricted_search  # imports all engines

        found = restricted_search(target, questions, settled, evidence, inputs.cost, seed)
        settled = list(found[0].settled)
        of_engine = engine_notes(target, found, evidence)
    one_for_all = bool(found) and not found[0].form.format.limits.per_batch
    buckets = tuple(_bucket(s, evidence, inputs.cost, judge, seed, found[0] if found else None) for s in settled)
    of_buckets = {cliff(inputs.cost, b.tokens_per_step) for b in buckets}
    of_inputs = furthest(note for b in buckets for note in inputs.notes(b.batch_max, b.context_max, len(b.tree)))
    notes = (
        *of_engine,
        *(note for note in of_inputs if note not in of_buckets),
        *cliffs(settled, inputs.cost),
        *(() if one_for_all else wide_ranges(settled)),
        *within_limits(settled),
    )
    return Plan(
        version=VERSION,
        command=command,
        rule=inputs.rule,
        notes=notes,
        ranks=inputs.ranks_source,
        hardware=inputs.hardware_source,
        model=inputs.model_source,
        drafter=inputs.names.drafter,
        context=questions[-1].context,
        objective=question.objective.value,
        limits=settled[0].question.limits,
        budget_tokens=question.budget_tokens,
        latency=question.time_limit,
        cost=inputs.cost_source,
        engine=None if target is None else _engine(target, found),
        buckets=buckets,
    )


def _engine(target: Target, found: Sequence[Restricted]) -> PlanEngine:
    losses = [
        FormatLoss(format=r.form.format.name, drafts=r.drafts, mean_loss=r.mean, worst_loss=r.worst) for r in found
    ]
    return PlanEngine(
        name=target.engine.engine.name,
        version=target.engine.version,
        format=losses[0].format,
        allow_off=target.allow_off,
        formats=tuple(losses),
    )


def _engine_loss(settled: Settled, restricted: Restricted) -> EngineLoss:
    lost = restricted.lost_in(settled)
    last, worst = lost[-1], max(lost, key=lambda own: own.share)
    return EngineLoss(
        share=_estimate(last.share, last.interval, 1.0),
        unrestricted=alternative(last.free, settled.choice.best),
        worst_share=worst.share,
        worst_batch=worst.point.batch,
    )


def alternative(option: Priced, best: Priced) -> Alternative:
    """An option beside the one that was chosen."""
    return Alternative(
        nodes=option.nodes,
        depth=option.depth,
        expected_tokens=option.expected_tokens,
        tokens_per_s=option.tokens_per_s,
        loss=1.0 - option.tokens_per_s / best.tokens_per_s,
    )


def _bucket(
    settled: Settled,
    evidence: Traffic,
    cost: StepCost,
    judge: Traffic | None,
    seed: int,
    restricted: Restricted | None,
) -> Bucket:
    choice, tokens, question = settled.choice, settled.tokens, settled.question
    runner_up, ranks = choice.runner_up, evidence.model_under(choice.draft)
    one_for_all = restricted is not None and not restricted.form.format.limits.per_batch
    sensitivity = cost_sensitivity(choice, question, ranks, cost)
    return Bucket(
        batch_min=choice.batch_min,
        batch_max=choice.batch_max,
        context_min=question.context_min,
        context_max=question.context,
        tree=choice.tree,
        path_probabilities=choice.path_probabilities,
        expected_tokens=_estimate(choice.best.expected_tokens, tokens, 1.0),
        held_out_tokens=None if judge is None else _estimate(*held_out_tokens(choice.draft, judge, seed=seed), 1.0),
        step_time_s=choice.best.step_time_s,
        time_per_token=settled.time_per_token,
        meets_limit=choice.meets_limit if question.time_limit.limits else None,
        tokens_per_s=choice.best.tokens_per_s,
        speedup_at_min=choice.speedup_at_min,
        speedup=_estimate(choice.speedup, tokens, choice.break_even_tokens),
        break_even_tokens=choice.break_even_tokens,
        ridge_batch=break_even_batch(cost.ridge_tokens, choice.best.nodes),
        best_chain=alternative(choice.chain, choice.best),
        plain_tokens_per_s=choice.plain.tokens_per_s,
        runner_up=None if runner_up is None else alternative(runner_up.option, choice.best),
        sharing_loss=choice.sharing_loss,
        resolvable=settled.resolvable,
        categories=settled.categories,
        cost_sensitivity=sensitivity,
        optimality=optimality(settled),
        reason="; ".join(
            [
                *over_limit(settled),
                *reason(settled, cost.ridge_tokens, ranks.depth, one_for_all=one_for_all),
                *filter(None, [cliff(cost, choice.tokens_per_step)]),
                *misjudged(sensitivity),
            ]
        ),
        dynamic=choice.dynamic,
        engine_loss=None if restricted is None else _engine_loss(settled, restricted),
    )


def _estimate(value: float, tokens: Interval | None, scale: float) -> Estimate:
    """A number that is E over `scale`: the price of a step has no interval yet."""
    if tokens is None:
        return Estimate(value=value)
    return Estimate(value=value, low=min(tokens.low / scale, value), high=max(tokens.high / scale, value))
