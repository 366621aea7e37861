"""A bucket from what the search chose: the draft, its alternatives, and what is known about the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from treeopt.acceptance.intervals import Interval, counted_interval, interval_of
from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Estimate, Span
from treeopt.arrays import IntArray, distinct
from treeopt.cost import break_even_batch
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Draft
from treeopt.solve.bucket import Bucket
from treeopt.solve.buckets import Shared
from treeopt.solve.choose import corners, loss_within, paired_gain
from treeopt.solve.draft_starts import Rivals, priced_rivals
from treeopt.solve.options import AtBatch, Category, Minimax, Optimality, Option
from treeopt.solve.price import option, step_time_s
from treeopt.solve.prices import Prices
from treeopt.solve.problem import Objective, Point, Problem
from treeopt.solve.time_limit import TimePerToken, documents_p99, steps_needed
from treeopt.solve.weights import expected
from treeopt.tree import DraftTree

_PLAIN: Final = 0  # candidates start with plain decoding


def buckets_of(
    chosen: Sequence[Shared],
    rivals: Rivals,
    traffic: Traffic,
    cost: StepCost,
    seed: int,
    even: Shared | None = None,
) -> list[Bucket]:
    """The buckets of what was chosen for all ranges of batch sizes; `even` is what one bucket would be unweighed."""
    problem = rivals.prices.problem
    ends = [Point(problem.ranges[shared.last][1], problem.context) for shared in chosen]
    drafts = [rivals.prices.candidates.draft(shared.option) for shared in chosen]
    categories = _categories(problem, drafts, ends, traffic, cost)
    pairs = zip(chosen, categories, strict=True)
    minimax = None if even is None else _minimax(even, rivals.prices)
    return [
        replace(_bucket(shared, rivals, traffic, cost, seed), categories=own, minimax=minimax) for shared, own in pairs
    ]


def _minimax(even: Shared, prices: Prices) -> Minimax | None:
    """What the draft of the smallest largest loss gives over the weights."""
    problem, rates = prices.problem, _by_batch(even, prices)
    mean = expected(problem.weights, rates)
    last = prices.points.index(Point(problem.batches[-1], problem.context))
    if mean is None:
        return None
    return Minimax(_option(prices, last, even.option), max(at.loss for at in rates), mean.tokens_per_s)


def _bucket(shared: Shared, rivals: Rivals, traffic: Traffic, cost: StepCost, seed: int) -> Bucket:
    prices, problem = rivals.prices, rivals.prices.problem
    rows = distinct(corners(prices)[:, shared.first : shared.last + 1])
    batch = Span(problem.ranges[shared.first][0], problem.ranges[shared.last][1])
    context = Span(problem.context_min, problem.context)
    last = prices.points.index(Point(batch.max, context.max))
    choice, plain = _option(prices, last, shared.option), _option(prices, last, _PLAIN)
    length = _with_interval(choice, traffic, seed)
    draft, tree = choice.draft, traffic.tree_of(choice.draft)
    known = bool(np.isfinite(plain.step_time_s))
    break_even = choice.step_time_s / plain.step_time_s if known else None
    lows = [prices.points.index(Point(batch.min, c)) for c in dict.fromkeys(context)]
    slowest = float((prices.time_s[lows, shared.option] / prices.time_s[lows, _PLAIN]).max())
    runner_up = _runner_up(prices, last, shared.option)
    times = _times(choice, prices, rows, shared.option, traffic)
    at_batches = _by_batch(shared, prices)
    gap = float(rivals.gap[rows].max())
    return Bucket(
        batch=batch,
        context=context,
        tree=tree,
        dynamic=None if isinstance(draft, DraftTree) else draft,
        acceptance_length=length,
        tokens_per_s=choice.tokens_per_s,
        speedup=None if break_even is None else Estimate.priced(length.value / break_even),
        break_even_length=break_even,
        step_time_s=choice.step_time_s,
        best_chain=best_chain(prices, last) or plain,
        plain=plain if known else None,
        reason="",
        optimality=Optimality(exact=gap == 0.0 and not rivals.listed_only, gap=gap, listed_only=rivals.listed_only),
        path_probabilities=traffic.path_probabilities(draft),
        time_per_token=times[-1],
        meets_limit=all(map(problem.time_limit.within, times)) if problem.time_limit.limits else None,
        speedup_at_min=length.value / slowest if known and slowest > 0.0 else None,
        ridge_batch=break_even_batch(cost.ridge_tokens, choice.nodes),
        runner_up=runner_up,
        sharing_loss=loss_within(prices, shared.option, rows),
        changes_loss=max(at.loss for at in at_batches) if len(prices.points) > 1 else 0.0,
        by_batch=at_batches,
        smallest_visible_gain=_visible(choice, runner_up, traffic, seed),
    )


def _option(prices: Prices, row: int, candidate: int) -> Option:
    candidates, time_s = prices.candidates, float(prices.time_s[row, candidate])
    tokens, batch = float(candidates.tokens[candidate]), prices.points[row].batch
    return option(candidates.draft(candidate), tokens, time_s, batch)


def _runner_up(prices: Prices, row: int, chosen: int) -> Option | None:
    """The best draft of another size."""
    nodes, depth = prices.candidates.nodes, prices.candidates.depth
    same = (nodes == nodes[chosen]) & (depth == depth[chosen])
    scores = np.where(same, -np.inf, prices.scores[row])
    other = int(scores.argmax())
    timed = np.isfinite(scores[other]) and np.isfinite(prices.time_s[row, other])
    return _option(prices, row, other) if timed else None  # nothing else, or nothing that has a time


def best_chain(prices: Prices, row: int) -> Option | None:
    """The best chain at a point, None where the family or the limits leave none."""
    nodes, scores = prices.candidates.nodes, prices.scores[row]
    timed = np.isfinite(prices.time_s[row])
    chains = np.where((nodes == prices.candidates.depth + 1) & (nodes > 1) & timed, scores, -np.inf)
    best = int(chains.argmax())
    return _option(prices, row, best) if np.isfinite(chains[best]) else None


def _by_batch(shared: Shared, prices: Prices) -> tuple[AtBatch, ...]:
    """The draft at every listed batch size, at the longest context."""
    problem, found = prices.problem, []
    for _, batch in problem.ranges[shared.first : shared.last + 1]:
        row = prices.points.index(Point(batch, problem.context))
        here, plain = _option(prices, row, shared.option), _option(prices, row, _PLAIN)
        found.append(
            AtBatch(
                batch=batch,
                tokens_per_s=here.tokens_per_s.value,
                speedup=here.tokens_per_s.value / rate if (rate := plain.tokens_per_s.value) > 0.0 else None,
                loss=loss_within(prices, shared.option, np.array([row])),
            )
        )
    return tuple(found)


def _times(choice: Option, prices: Prices, rows: IntArray, chosen: int, traffic: Traffic) -> list[TimePerToken]:
    """The time per token at the ends of the range, the largest of both last; all of them only where a limit asks."""
    limit = prices.problem.time_limit
    used = sorted(rows.tolist(), key=lambda row: prices.points[row][::-1]) if limit.limits else [-1]
    lengths = traffic.lengths(choice.draft)
    steps = int(steps_needed(lengths[None], limit.output_tokens)[0])
    tokens = choice.acceptance_length.value
    seconds = [choice.step_time_s if row < 0 else float(prices.time_s[row, chosen]) for row in used]
    times = [TimePerToken(mean_s=s / tokens, p99_s=steps * s / limit.output_tokens) for s in seconds]
    if len(traffic.parts) == 1 and traffic.can_be_replayed:
        per_token = documents_p99(traffic.replays(choice.draft)[0])
        own_s = None if per_token is None else per_token * choice.step_time_s
        times[-1] = times[-1]._replace(documents_p99_s=own_s)
    return times


def _with_interval(choice: Option, traffic: Traffic, seed: int) -> Estimate:
    """E, by document from traces, by draft from one profile of counts, without interval otherwise."""
    tokens, interval = choice.acceptance_length.value, None
    if choice.nodes == 1:
        interval = Interval(1.0, 1.0)
    elif traffic.can_be_replayed:
        interval = interval_of(traffic.drawn_tokens(choice.draft, seed), traffic.documents)
    else:
        part = traffic.parts[0]
        if len(traffic.parts) == 1 and part.model is None and part.profile.evidence is not None:
            interval = counted_interval(part.profile.evidence, traffic.tree_of(choice.draft), seed=seed)
    return estimate(tokens, interval)


def estimate(tokens: float, interval: Interval | None) -> Estimate:
    """A number with its interval, which holds it."""
    if interval is None:
        return Estimate(value=tokens)
    return Estimate(value=tokens, low=min(interval.low, tokens), high=max(interval.high, tokens))


def _visible(choice: Option, other: Option | None, traffic: Traffic, seed: int) -> float | None:
    if other is None:
        return None
    gain = paired_gain(choice.draft, choice.step_time_s, other.draft, other.step_time_s, traffic, seed=seed)
    return None if gain is None else gain.half_width


def _categories(
    problem: Problem, drafts: Sequence[Draft], ends: Sequence[Point], traffic: Traffic, cost: StepCost
) -> list[tuple[Category, ...]]:
    """What each category gets from the common drafts, at each bucket's end; nothing to tell for only one."""
    found: list[list[Category]] = [[] for _ in drafts]
    for part in traffic.parts if len(traffic.parts) > 1 else ():
        own = Traffic(parts=(replace(part, weight=1.0),))
        points = tuple(dict.fromkeys(ends))
        prices = priced_rivals(problem, points, own, cost).prices
        for categories, draft, end in zip(found, drafts, ends, strict=True):
            row, tokens = points.index(end), own.tokens(draft)
            ours = tokens
            if problem.objective is Objective.THROUGHPUT:
                ours = end.batch * tokens / step_time_s(draft, cost, end)
            loss = max(1.0 - ours / float(prices.objective[row, prices.scores[row].argmax()]), 0.0)
            categories.append(Category(name=part.name, weight=part.weight, acceptance_length=tokens, loss=loss))
    return [tuple(categories) for categories in found]


def held_out_length(draft: Draft, traffic: Traffic, *, seed: int = 0) -> Estimate:
    """E of a draft on documents that it was not chosen on, with its interval."""
    replays = traffic.replays(draft)
    tokens = sum(part.weight * r.tokens_per_step for part, r in zip(traffic.parts, replays, strict=True))
    return estimate(tokens, interval_of(traffic.drawn_tokens(draft, seed), traffic.documents))
