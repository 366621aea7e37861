"""How much better any draft could be: upper bounds for costs that depend on the widths per level.

A tree of N nodes and depth D has at most the E of the best such tree and takes at least the time of the narrowest
one (a step's time does not fall when a level gets wider, see `StepCost`). Where that bound is not met, product-form
f allows a finer one: split the trees by their widest level m. Those with m <= w have at most the E of the best tree
whose levels are at most w wide, known exactly; those with m > w take at least the time of a tree with one level of
w + 1 and the others of 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeopt.arrays import FloatArray, IntArray, distinct
from treeopt.cost.step_cost import StepCost
from treeopt.solve.best_trees import BestTrees
from treeopt.solve.candidates import WIDTHS, FamilyCandidates, Sizes, concatenate, tree_candidates
from treeopt.solve.prices import Lengths, Prices, forbidden_at, objective_of, price_candidates
from treeopt.solve.problem import TIE, Objective, Point, Problem


class Ideal(NamedTuple):
    """Classes of trees by the most tokens per step and the least seconds that any tree of each has.

    `tokens [C]`, `time_s [points, C]`; inf where the class has no tree.
    """

    tokens: FloatArray
    time_s: FloatArray


class Most(NamedTuple):
    """`[points, ...]` what no draft exceeds: the objective within all limits, and the headroom under time limits."""

    value: FloatArray
    headroom: FloatArray


class Bounded(NamedTuple):
    """Prices, to which narrower trees may have been added, and `[points]` the share by which any draft could at most
    beat the best of them: in the objective, or where nothing is within the limits, in headroom."""

    prices: Prices
    gap: FloatArray


def bounded(prices: Prices, listed: FamilyCandidates, cost: StepCost, lengths: Lengths) -> Bounded:
    """The prices with their gap; where it exceeds a tie, the best trees of limited width are added first."""
    if listed.sizes is None:  # the candidates are all that there is
        return Bounded(prices, np.zeros(len(prices.points)))
    sizes, problem = listed.sizes, prices.problem
    most = _most(prices, sizes, [narrowest(sizes, cost, prices.points)], cost)
    gap = _gap(prices, most)
    timed = problem.objective is Objective.THROUGHPUT or problem.time_limit.limits
    if not timed or listed.by_width is None or not (gap > TIE).any():
        return Bounded(prices, gap)
    wide = [prices.points[i] for i in np.flatnonzero(gap > TIE)]
    rivals = sizes.only(distinct(np.concatenate([_open(prices, sizes, point, cost) for point in wide])))
    caps = replace(problem.caps, max_nodes=int(rivals.nodes.max()), max_depth=int(rivals.depth.max()))
    widths = listed.by_width(caps)
    narrow = concatenate([tree_candidates(trees, sizes.levels) for trees in widths])
    at = set(zip(rivals.nodes.tolist(), rivals.depth.tolist(), strict=True))
    kept = [size in at for size in zip(narrow.nodes.tolist(), narrow.depth.tolist(), strict=True)]
    candidates = concatenate([prices.candidates, narrow.only(np.flatnonzero(kept))])
    prices = price_candidates(problem, prices.points, candidates, cost, lengths)
    for point in wide:
        row, left = prices.row(point), rivals.only(_open(prices, rivals, point, cost))
        finer = _most(prices, left, split_by_width(left, widths, cost, point), cost, [point])
        for known, found in zip(most, finer, strict=True):
            known[row] = min(known[row], found[0])
    return Bounded(prices, _gap(prices, most))


def narrowest(sizes: Sizes, cost: StepCost, points: Sequence[Point]) -> Ideal:
    """All trees by nodes and depth."""
    return Ideal(sizes.tokens, sizes.times_s(cost, points, sizes.narrowest))


def split_by_width(
    sizes: Sizes, by_width: Sequence[Sequence[BestTrees]], cost: StepCost, point: Point
) -> Iterator[Ideal]:
    """All trees by nodes, depth and their widest level, for product-form f: one `Ideal` per range of widths.

    Args:
        sizes: the nodes and depths of the trees.
        by_width: for each of `WIDTHS`, the best trees whose levels are at most that wide, by depth cap.
        cost: the price.
        point: B and L.
    """
    below = 0
    for width, capped in zip((*WIDTHS, None), (*by_width, None), strict=True):
        tokens = sizes.tokens if capped is None else _capped_tokens(sizes, capped)
        yield Ideal(tokens, _fastest_with_a_level_of(below + 1, sizes, cost, point)[None])
        below = width or below


def _most(
    prices: Prices, sizes: Sizes, ideals: Iterable[Ideal], cost: StepCost, points: Sequence[Point] | None = None
) -> Most:
    """The bound over all classes of trees together; what was found is never above it."""
    points = prices.points if points is None else points
    rows = [prices.row(point) for point in points]
    value, headroom = prices.value[rows].max(axis=1), prices.headroom[rows].max(axis=1)
    for ideal in ideals:
        most = _ideal(prices.problem, sizes, ideal, points, cost)
        value = np.maximum(value, most.value.max(axis=1, initial=-np.inf))
        headroom = np.maximum(headroom, most.headroom.max(axis=1, initial=-np.inf))
    return Most(value, headroom)


def _ideal(problem: Problem, sizes: Sizes, ideal: Ideal, points: Sequence[Point], cost: StepCost) -> Most:
    """`[points, C]` what no tree of each class exceeds."""
    headroom = problem.time_limit.most_headroom(ideal.tokens, ideal.time_s)
    headroom = np.where(forbidden_at(problem, points, sizes, cost), -np.inf, headroom)
    objective = objective_of(problem, points, ideal.tokens, ideal.time_s)
    return Most(np.where(headroom >= 1.0, objective, -np.inf), headroom)


def _open(prices: Prices, sizes: Sizes, point: Point, cost: StepCost) -> IntArray:
    """The sizes that could hold a better tree than what was found: few, once the best of every size are known."""
    most = _ideal(prices.problem, sizes, narrowest(sizes, cost, [point]), [point], cost)
    row = prices.row(point)
    better = (most.value[0] > prices.value[row].max()) | (most.headroom[0] > prices.headroom[row].max())
    return np.flatnonzero(better)


def _gap(prices: Prices, most: Most) -> FloatArray:
    """`[points]` the gap that matters at each point."""
    by_value = _share_above(most.value, prices.value.max(axis=1))
    if not prices.problem.time_limit.limits:
        return np.where(prices.met, by_value, 0.0)
    return np.where(prices.met, by_value, _share_above(most.headroom, prices.headroom.max(axis=1)))


def _share_above(bound: FloatArray, best: FloatArray) -> FloatArray:
    known = np.isfinite(best)
    gap = np.where(known, bound, 1.0) / np.where(known, best, 1.0) - 1.0
    return np.where(gap > 1e-9, gap, 0.0)


def _capped_tokens(sizes: Sizes, capped: Sequence[BestTrees]) -> FloatArray:
    """Largest E of width-capped trees of each N and D (at most N, for fewer nodes may exist)."""
    tokens = np.ones(len(sizes.nodes))
    for depth, trees in enumerate(capped, start=1):
        at = np.flatnonzero(sizes.depth >= depth)
        best = trees.expected_tokens
        tokens[at] = best[np.minimum(sizes.nodes[at], len(best)) - 1]
    return np.minimum(tokens, sizes.tokens)


def _fastest_with_a_level_of(width: int, sizes: Sizes, cost: StepCost, point: Point) -> FloatArray:
    """`[C]` least seconds of a tree of each size that has a level of `width`, inf where none has."""
    levels = np.arange(sizes.levels)
    # Only the root stands on level 0, and a level that the tree does not have cannot be its widest.
    possible = (sizes.depth[:, None] > levels) & (sizes.nodes[:, None] > width) & ((levels > 0) | (width == 1))
    size, level = np.nonzero(possible)
    fastest = np.full(len(sizes.nodes), np.inf)
    if len(size):
        of_levels = sizes.only(size)
        widths = of_levels.narrowest
        widths[np.arange(len(size)), level] = width
        np.minimum.at(fastest, size, of_levels.times_s(cost, [point], widths)[0])
    return fastest
