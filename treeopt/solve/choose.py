"""Which draft each range of batch sizes runs: what every candidate loses where, and how much may be lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from treeopt.acceptance.intervals import Interval, interval_of
from treeopt.acceptance.traffic import Traffic
from treeopt.arrays import BoolArray, FloatArray, IntArray, distinct
from treeopt.cost.step_cost import StepCost
from treeopt.cost.terms import StepTerms, Term, TermError
from treeopt.draft_family import Chains, Draft
from treeopt.solve.buckets import EXACT_TO, Shared, share
from treeopt.solve.prices import Prices
from treeopt.solve.problem import TIE, Objective, Point

# A batch size may lose this share of the error of its step's price so that fewer ranges change: two drafts that near
# each other share most of their step, and its error.
PRICE_ERROR_SHARE: Final = 0.25
# Batch sizes without a weight, among those that have one, decide ties only.
_UNWEIGHED: Final = 1e-9


class RangeLosses(NamedTuple):
    """`[ranges, C]` what each candidate loses against the best one at the worst end of each range, and at its largest
    batch, which was asked for; `[ranges]` whether some candidate stays within the time limits at all ends; and
    `[ranges, C]` those that speculate at a loss where it was asked."""

    loss: FloatArray
    asked: FloatArray
    met: BoolArray
    at_a_loss: BoolArray


@runtime_checkable
class _ErringCost(Protocol):
    def terms(self, *, batch: int, nodes: int, depth: int, widths: Sequence[int], context: int) -> StepTerms:
        """One step in parts."""

    def error_p90(self) -> Sequence[TermError]:
        """How far off each term may be."""


def corners(prices: Prices) -> IntArray:
    """`[corners, ranges]` the rows of the points that every range is judged at, the largest of both last."""
    problem, row = prices.problem, {point: i for i, point in enumerate(prices.points)}
    contexts = dict.fromkeys((problem.context_min, problem.context))
    rows = [[row[Point(ends[i], c)] for ends in problem.ranges] for c in contexts for i in (0, 1)]
    return np.array(rows, dtype=np.int64)


def range_losses(prices: Prices) -> RangeLosses:
    """What each candidate loses in each range.

    At a point where nothing stays within the time limits the loss is that of the headroom; where something does,
    candidates that do not count as losing all and, beyond that, what they exceed.
    """
    at, value, headroom = corners(prices), prices.value, prices.headroom
    best, most = value.max(axis=1, keepdims=True), headroom.max(axis=1, keepdims=True)
    within, possible = np.isfinite(value), np.isfinite(best)
    over = np.where(possible, 2.0 - headroom, 1.0 - headroom / np.where(possible, 1.0, most))
    loss = np.where(within, 1.0 - value / np.where(possible, best, 1.0), over)
    met = reduce(np.logical_and, within[at]).any(axis=1)
    worst, asked = (np.asarray(reduce(np.maximum, loss[rows])) for rows in (at, at[1::2]))
    return RangeLosses(worst, asked, met, _at_a_loss(prices, at[1::2]))


def _at_a_loss(prices: Prices, asked: IntArray) -> BoolArray:
    problem = prices.problem
    if problem.objective is Objective.LENGTH or not problem.off_is_allowed:
        return np.zeros((asked.shape[1], len(prices.candidates.nodes)), dtype=np.bool_)
    plain = prices.value[:, :1]
    slower = np.isfinite(plain) & (prices.objective < plain) & (prices.candidates.nodes > 1)
    return np.asarray(reduce(np.logical_or, slower[asked]))


def choose(prices: Prices, limit: FloatArray, *, weighed: bool = True) -> list[Shared]:
    """The buckets and their candidates.

    Args:
        prices: the candidates at every point.
        limit: `[ranges]` what each range may lose so that fewer change.
        weighed: whether the problem's weights count.
    """
    found, family = range_losses(prices), prices.problem.family
    gain = weighed_gains(prices) if weighed else None
    if isinstance(family, Chains) and family.longest_first:
        return _longest_first(prices, found, limit, gain)
    return _shared(prices, found, limit, gain)


def weighed_gains(prices: Prices) -> FloatArray | None:
    """`[ranges, C]` tokens/s at each listed batch size and the longest context, times how often that size runs.

    Tokens that come too late for a time limit which another draft meets count as none. None without weights.
    """
    problem = prices.problem
    if not problem.weights:
        return None
    share = {weight.batch: weight.share for weight in problem.weights}
    shares = np.array([max(share.get(batch, 0.0), _UNWEIGHED) for batch in problem.batches])
    row = corners(prices)[-1]
    return np.asarray(shares[:, None] * np.where(np.isfinite(prices.value[row]), prices.objective[row], 0.0))


def _shared(prices: Prices, found: RangeLosses, limit: FloatArray, gain: FloatArray | None) -> list[Shared]:
    problem = prices.problem
    most = np.maximum(limit, np.where(found.at_a_loss, np.inf, found.asked).min(axis=1)) + EXACT_TO
    return share(
        found.loss,
        size=prices.candidates.nodes,
        tie=TIE if problem.objective is Objective.THROUGHPUT else 0.0,
        limit=limit,
        max_trees=problem.sharing.max_trees,
        kind=found.met,
        banned=found.at_a_loss | (found.asked > most[:, None]),
        gain=gain,
    )


def _longest_first(prices: Prices, found: RangeLosses, limit: FloatArray, gain: FloatArray | None) -> list[Shared]:
    """The buckets in which no later range drafts deeper than the first one.

    Where those without that rule break it, all depths of the first range are tried; as without the rule, fewer
    buckets within the stated loss win, then the smaller largest loss.
    """
    depth, free = prices.candidates.depth, _shared(prices, found, limit, gain)
    if depth[free[0].option] == max(depth[bucket.option] for bucket in free):
        return free
    tried = []
    for first in distinct(depth):
        capped = np.where(depth > first, np.inf, found.loss)
        capped[0, depth != first] = np.inf
        if np.isfinite(capped).any(axis=1).all():
            tried.append(_shared(prices, found._replace(loss=capped), limit, gain))
    return min(tried, key=lambda buckets: _rank(buckets, limit))


def _rank(buckets: Sequence[Shared], limit: FloatArray) -> tuple[bool, float, float]:
    over = any(bucket.loss > limit[bucket.first : bucket.last + 1].min() for bucket in buckets)
    worst = max(bucket.loss for bucket in buckets)
    return over, 0 if over else len(buckets), worst


def loss_within(prices: Prices, option: int, rows: IntArray) -> float:
    """The most that a candidate loses against the best one of these points, within the time limits or not."""
    best = prices.scores[rows].argmax(axis=1)
    ratio = prices.objective[rows, option] / prices.objective[rows, best]
    return float(max(0.0, 1.0 - ratio.min()))


def allowed_losses(prices: Prices, traffic: Traffic, cost: StepCost, seed: int) -> FloatArray:
    """`[ranges]` what each range may lose so that fewer change: as asked, else the largest of the tie, what the
    documents can tell of the two best drafts there, and a share of the price's error."""
    problem = prices.problem
    if problem.sharing.max_loss is not None:
        return np.full(len(problem.ranges), problem.sharing.max_loss)
    if problem.objective is Objective.LENGTH or len(prices.points) == 1:
        return np.full(len(problem.ranges), TIE)
    rows = corners(prices)[-1].tolist()
    told = [max(_visible(prices, row, traffic, seed), _price_error(prices, row, cost)) for row in rows]
    return np.maximum(told, TIE)


def _visible(prices: Prices, row: int, traffic: Traffic, seed: int) -> float:
    """Half the width of the interval between the two best drafts of a point; 0 without documents."""
    scores = prices.scores[row]
    first, second = np.argsort(-scores, kind="stable")[:2] if len(scores) > 1 else (0, 0)
    if first == second or not np.isfinite(scores[second]):
        return 0.0
    drafts = [prices.candidates.draft(int(i)) for i in (first, second)]
    times = [float(prices.time_s[row, i]) for i in (first, second)]
    gain = paired_gain(drafts[0], times[0], drafts[1], times[1], traffic, seed=seed)
    return 0.0 if gain is None else gain.half_width


def _price_error(prices: Prices, row: int, cost: StepCost) -> float:
    """A share of the step's 90 % error, the errors of its terms taken as independent; 0 where none was measured."""
    if not isinstance(cost, _ErringCost):
        return 0.0
    best, point = int(prices.scores[row].argmax()), prices.points[row]
    sized = prices.candidates
    terms = cost.terms(
        batch=point.batch,
        nodes=int(sized.nodes[best]),
        depth=int(sized.depth[best]),
        widths=sized.widths[best].tolist(),
        context=point.context,
    )
    errors = {error.term: error.p90 for error in cost.error_p90()}
    off = [(errors.get(term) or 0.0) * terms.of(term) for term in Term]
    whole = sum(terms.of(term) for term in Term)
    return PRICE_ERROR_SHARE * float(np.hypot.reduce(off)) / whole if whole else 0.0


def paired_gain(
    ours: Draft, our_time_s: float, theirs: Draft, their_time_s: float, traffic: Traffic, *, seed: int = 0
) -> Interval | None:
    """The 95 % interval of our tokens/s over theirs, minus 1, on the same documents; None without traces or a price."""
    if not traffic.can_be_replayed or not np.isfinite([our_time_s, their_time_s]).all():
        return None
    ratio = (traffic.drawn_tokens(ours, seed) / our_time_s) / (traffic.drawn_tokens(theirs, seed) / their_time_s)
    return interval_of(ratio - 1.0, traffic.documents)
