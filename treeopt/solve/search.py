"""The search: price every draft that may be the best one, choose, and say what the alternatives would have cost.

Step time is a staircase in N, so tokens/s has many local maxima: the whole (N, D) grid is priced. For each grid point
the best tree is known exactly (`best_trees`), so for costs that do not depend on the widths per level the maximum over
the grid is the optimum over all trees. Where they do, the answer carries an upper bound (`bound`). Where acceptance
depends on the draft, every rival is priced at its own (`draft_starts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.traffic import Traffic
from treeopt.arrays import BoolArray
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Draft
from treeopt.errors import SearchError
from treeopt.solve.bucket import Bucket
from treeopt.solve.buckets import Shared
from treeopt.solve.choose import allowed_losses, choose, loss_within, paired_gain
from treeopt.solve.draft_starts import Rivals, priced_rivals
from treeopt.solve.prices import Prices, points_of
from treeopt.solve.problem import TIE, Objective, Point, Problem
from treeopt.solve.report import buckets_of

# Smaller drafts within this share of the best are asked whether the documents can tell them apart, at most so many.
_RIVAL_LOSS: Final = 0.02
_RIVALS: Final = 8
# What one draft for all may lose at a batch size, so that drafts between the best ones of its ends are priced.
_FORCED_LOSS: Final = 0.25


class Answer(NamedTuple):
    """A bucket, and the problem that it answers."""

    problem: Problem
    bucket: Bucket


def search(problem: Problem, traffic: Traffic, cost: StepCost, *, seed: int = 0) -> list[Bucket]:
    """The best draft for every bucket of batch sizes.

    Between listed batch sizes that are far apart powers of two are asked too, and a range in which speculation stops
    or starts to pay is divided where it does, unless only the listed ones are wanted. `seed` is that of the bootstrap
    behind the intervals.

    Raises:
        SearchError: the limits leave nothing at some batch size, or no draft meets a limit on the time per token.
    """
    problem = problem if problem.only_listed else problem.filled()
    rivals = _rivals(problem, traffic, cost)
    if not problem.only_listed:
        divided = _divided(problem, rivals.prices, cost)
        if divided != problem:
            problem, rivals = divided, _rivals(divided, traffic, cost, known=rivals.prices)
    prices = rivals.prices
    if problem.time_limit.limits and not prices.met.any():
        raise _nothing_within(rivals)
    if len(prices.points) == 1:
        return buckets_of([_alone(rivals, traffic, seed)], rivals, traffic, cost, seed)
    limit = np.minimum(allowed_losses(prices, traffic, cost, seed), problem.sharing.most)
    chosen = choose(prices, limit)
    even = choose(prices, limit, weighed=False)[0] if problem.weights and len(chosen) == 1 else None
    return buckets_of(chosen, rivals, traffic, cost, seed, even)


def _rivals(problem: Problem, traffic: Traffic, cost: StepCost, known: Prices | None = None) -> Rivals:
    drafts: Sequence[Draft] = []
    if known is not None and traffic.depends_on_the_tree:
        drafts = [known.candidates.draft(i) for i in range(len(known.candidates.nodes))]
    share = problem.sharing.max_loss or _RIVAL_LOSS
    if problem.sharing.max_trees is not None:
        share = max(share, _FORCED_LOSS)
    return priced_rivals(problem, points_of(problem), traffic, cost, share=share, known=drafts)


def _alone(rivals: Rivals, traffic: Traffic, seed: int) -> Shared:
    """For one batch size the smallest draft that cannot be told from the best one."""
    prices = rivals.prices
    (shared,) = choose(prices, np.full(1, TIE))
    if prices.problem.objective is Objective.LENGTH or not traffic.can_be_replayed or not prices.met.all():
        return shared
    for smaller in _smaller(prices, shared.option):
        ours, theirs = (prices.candidates.draft(i) for i in (shared.option, smaller))
        our_s, their_s = (float(prices.time_s[0, i]) for i in (shared.option, smaller))
        gain = paired_gain(ours, our_s, theirs, their_s, traffic, seed=seed)
        if gain is not None and gain.includes_zero:
            return shared._replace(option=smaller, loss=loss_within(prices, smaller, np.zeros(1, dtype=np.int64)))
    return shared


def _smaller(prices: Prices, option: int) -> list[int]:
    """The best draft of each smaller size that loses little, smallest first; of many sizes evenly spaced ones."""
    value, nodes = prices.value[0], prices.candidates.nodes
    near = np.flatnonzero((value >= (1.0 - _RIVAL_LOSS) * value.max()) & (nodes < nodes[option]))
    best_of_size = {int(nodes[i]): int(i) for i in near[np.argsort(value[near], kind="stable")]}
    sizes = [best_of_size[n] for n in sorted(best_of_size)]
    return sizes[:: max(-(-len(sizes) // _RIVALS), 1)]


def _divided(problem: Problem, prices: Prices, cost: StepCost) -> Problem:
    """The problem with ranges divided where speculation stops or starts to pay, found by halving."""
    if problem.objective is Objective.LENGTH or not problem.off_is_allowed or len(problem.batches) == 1:
        return problem
    pays = {point: bool(paid) for point, paid in zip(prices.points, _pays(prices), strict=True)}
    borders = set(problem.batches)
    for low, high in problem.ranges:
        ends = [Point(batch, problem.context) for batch in (low, high)]
        if low == high or pays[ends[0]] == pays[ends[1]]:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            here = prices.at([Point(middle, problem.context)], cost)
            low, high = (middle, high) if bool(_pays(here)[0]) == pays[ends[0]] else (low, middle)
        borders.add(low)
    return replace(problem, batches=tuple(sorted(borders)))


def _pays(prices: Prices) -> BoolArray:
    """`[points]` whether a draft beats plain decoding by more than a tie."""
    drafts = np.where(prices.candidates.nodes > 1, prices.value, -np.inf).max(axis=1, initial=-np.inf)
    return np.asarray(drafts > prices.value[:, 0] / (1.0 - TIE))


def _nothing_within(rivals: Rivals) -> SearchError:
    """That no draft meets the limits on the time per token anywhere, with the quickest that there is."""
    prices, limit = rivals.prices, rivals.prices.problem.time_limit
    row, best = np.unravel_index(int(prices.headroom.argmax()), prices.headroom.shape)
    time_s = float(prices.time_s[row, best])
    mean_s = time_s / float(prices.candidates.tokens[best])
    option, limit_s, found_s = "--max-tpot-ms", limit.max_mean_s, mean_s
    if limit_s is None or mean_s <= limit_s:
        p99_s = float(prices.steps[best]) * time_s / limit.output_tokens
        option, limit_s, found_s = "--max-p99-tpot-ms", limit.max_p99_s or 0.0, p99_s
    certain = (prices.headroom.max(axis=1) * (1.0 + rivals.gap) < 1.0).all()
    meets = "meets" if certain else "was found that meets"
    return SearchError(
        f"no draft {meets} {option} {limit_s * 1e3:g}; the fastest takes {found_s * 1e3:.3g} ms",
        hint="allow more time per token" + (", or ask for a smaller batch" if prices.points[0].batch > 1 else ""),
    )
