"""The candidates of a problem with their prices at every point, and what no other draft there can exceed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.arrays import BoolArray, FloatArray, IntArray, distinct
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Draft, StaticTrees
from treeopt.errors import SearchError
from treeopt.solve.candidates import Candidates, Sizes
from treeopt.solve.problem import Objective, Point, Problem
from treeopt.solve.time_limit import most_steps, steps_needed

# Under a limit on the 99th percentile, drafts within this share of the best one are judged exactly, so many at a time.
_JUDGED_SHARE: Final = 0.05
_JUDGED_AT_ONCE: Final = 8

Lengths = Callable[[Sequence[Draft]], FloatArray]
"""Drafts to `[n, D + 1]`, the probability that a step of each accepts exactly 0, 1, ... D tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prices:
    """Candidates priced at points.

    `steps [C]` are those that 99 % of requests need, 1 where no limit asks.
    `time_s`, `objective`, `value`, `headroom` are `[points, C]`: the step time, the objective without limits on the
    time per token, the same with -inf where a limit forbids the draft, and `TimeLimit.headroom`, -inf where something
    else forbids it.
    """

    problem: Problem
    points: tuple[Point, ...]
    candidates: Candidates
    time_s: FloatArray
    steps: FloatArray
    objective: FloatArray
    value: FloatArray
    headroom: FloatArray

    def row(self, point: Point) -> int:
        """The row of a point."""
        return self.points.index(point)

    def at(self, points: Sequence[Point], cost: StepCost) -> Prices:
        """The same candidates at other points."""
        forbidden = forbidden_at(self.problem, points, self.candidates, cost)
        return _priced(self.problem, points, self.candidates, cost, forbidden, self.steps)

    @property
    def met(self) -> BoolArray:
        """`[points]` whether some draft stays within the limits."""
        return np.asarray(np.isfinite(self.value.max(axis=1, initial=-np.inf)))

    @property
    def scores(self) -> FloatArray:
        """`[points, C]` what is best at each point: the objective, or where nothing is within the limits, headroom."""
        return np.where(self.met[:, None], self.value, self.headroom)


def points_of(problem: Problem) -> tuple[Point, ...]:
    """Where a problem is priced: the ends of all ranges of batch sizes, at both ends of the contexts."""
    sizes = sorted({size for ends in problem.ranges for size in ends})
    contexts = sorted({problem.context_min, problem.context})
    return tuple(Point(b, c) for c in contexts for b in sizes)


def price_candidates(
    problem: Problem, points: Sequence[Point], candidates: Candidates, cost: StepCost, lengths: Lengths
) -> Prices:
    """Price all candidates at all points.

    Args:
        problem: its limits and aim count, its batch sizes do not.
        points: B and L of each.
        candidates: `[C]` drafts.
        cost: the price.
        lengths: how many tokens steps accept, asked only under a limit on the 99th percentile.

    Raises:
        SearchError: at some point the limits leave nothing, or nothing whose step has a known time.
    """
    forbidden = forbidden_at(problem, points, candidates, cost)
    if (nothing := forbidden.all(axis=1)).any():
        raise SearchError(
            f"the limits leave nothing to draft at batch {points[int(nothing.argmax())].batch}",
            hint="allow a larger budget or more nodes, or drafting nothing",
        )
    steps = _steps(problem, points, candidates, cost, forbidden, lengths)
    prices = _priced(problem, points, candidates, cost, forbidden, steps)
    if (unknown := (forbidden | np.isinf(prices.time_s)).all(axis=1)).any():
        raise SearchError(
            f"no step that the limits allow has a known time at batch {points[int(unknown.argmax())].batch}",
            hint="add plain decoding to the table of --cost, or allow the drafts that it has",
        )
    return prices


def _priced(
    problem: Problem,
    points: Sequence[Point],
    candidates: Candidates,
    cost: StepCost,
    forbidden: BoolArray,
    steps: FloatArray,
) -> Prices:
    time_s = candidates.times_s(cost, points)
    objective = objective_of(problem, points, candidates.tokens, time_s)
    headroom = problem.time_limit.headroom(candidates.tokens, time_s, steps)
    headroom[forbidden] = -np.inf
    return Prices(
        problem=problem,
        points=tuple(points),
        candidates=candidates,
        time_s=time_s,
        steps=steps,
        objective=objective,
        value=np.where(headroom >= 1.0, objective, -np.inf),
        headroom=headroom,
    )


def objective_of(problem: Problem, points: Sequence[Point], tokens: FloatArray, time_s: FloatArray) -> FloatArray:
    """`[points, C]` tokens/s of the whole batch, or E; 0 where there is no such draft."""
    if problem.objective is Objective.LENGTH:
        return np.where(np.isfinite(time_s), tokens, 0.0)
    return np.asarray(batches_of(points) * tokens / time_s)


def forbidden_at(problem: Problem, points: Sequence[Point], sized: Candidates | Sizes, cost: StepCost) -> BoolArray:
    """`[points, C]` what B x N forbids, or the family; under a budget plain decoding always may."""
    drafts, budget = sized.nodes > 1, problem.budget_tokens
    if budget is None:
        budget = cost.ridge_tokens if problem.objective is Objective.LENGTH else np.inf
    shallow = problem.family.min_depth if isinstance(problem.family, StaticTrees) else 0
    wrong = np.where(drafts, sized.depth < shallow, not problem.off_is_allowed)
    return np.asarray(((batches_of(points) * sized.nodes > budget) & drafts) | wrong)


def batches_of(points: Sequence[Point]) -> FloatArray:
    """`[points, 1]` B."""
    return np.array([point.batch for point in points], dtype=np.float64)[:, None]


def _steps(
    problem: Problem,
    points: Sequence[Point],
    candidates: Candidates,
    cost: StepCost,
    forbidden: BoolArray,
    lengths: Lengths,
) -> FloatArray:
    """`[C]` steps that 99 % of requests need, or more where that decides nothing; 1 without such a limit.

    Counting them takes most of a search. At each point the drafts of the largest objective that may be within the
    limits come first, until the best that are within are known; where none is, those that come closest.
    """
    limit, tokens = problem.time_limit, candidates.tokens
    if limit.max_p99_s is None:
        return np.ones(len(tokens))
    time_s = candidates.times_s(cost, points)
    value = objective_of(problem, points, tokens, time_s)
    most = limit.most_headroom(tokens, time_s)
    most[forbidden] = -np.inf
    steps = most_steps(tokens, candidates.depth, limit.output_tokens)
    known = np.zeros(len(tokens), dtype=np.bool_)
    asked = np.flatnonzero(candidates.nodes == candidates.depth + 1)  # the best chain is told beside every answer
    margin = max(_JUDGED_SHARE, problem.sharing.max_loss or 0.0)
    while len(asked):
        drafts = [candidates.draft(i) for i in asked.tolist()]
        steps[asked], known[asked] = steps_needed(lengths(drafts), limit.output_tokens), True
        headroom = np.where(np.isfinite(most), limit.headroom(tokens, time_s, steps), -np.inf)
        asked = _undecided(value, headroom, np.where(known, headroom, most), known, margin)
    return steps


def _undecided(value: FloatArray, headroom: FloatArray, most: FloatArray, known: BoolArray, margin: float) -> IntArray:
    """`[n]` candidates to count next: a few of each point that may be as good as the best one known there."""
    best = np.where(headroom >= 1.0, value, -np.inf).max(axis=1, keepdims=True)
    closest = headroom.max(axis=1, keepdims=True)
    better = (most >= 1.0) & (headroom < 1.0) & (value >= best * (1.0 - margin))
    closer = (best == -np.inf) & ~better.any(axis=1, keepdims=True) & (most >= closest * (1.0 - margin))
    score = np.where(~known & (better | closer), np.where(better, value, most), -np.inf)
    first = np.argsort(-score, axis=1, kind="stable")[:, :_JUDGED_AT_ONCE]
    return distinct(first[np.isfinite(np.take_along_axis(score, first, axis=1))])
