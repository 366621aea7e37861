"""How much better any tree could be: upper bounds for costs that depend on the widths per level.

A tree of N nodes and depth D has at most the E of the best such tree and takes at least the time of the narrowest
one (a step's time does not fall when a level gets wider, see `StepCost`). Where that bound is not met, product-form
f allows a finer one: split the trees by their widest level m. Those with m <= w have at most the E of the best tree
whose levels are at most w wide, known exactly; those with m > w take at least the time of a tree with one level of
w + 1 and the others of 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.step_cost import StepCost
from treeopt.solve.best_trees import Family
from treeopt.solve.candidates import Sizes
from treeopt.solve.problem import Point

# Caps on the nodes with children per level that are tried; a tree wider than the last is bounded by the uncapped one.
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


class Ideal(NamedTuple):
    """Classes of trees by the most tokens per step and the least seconds that any tree of each has.

    `tokens [C]`, `time_s [points, C]`; inf where the class has no tree.
    """

    tokens: FloatArray
    time_s: FloatArray


def narrowest(sizes: Sizes, cost: StepCost, points: Sequence[Point]) -> Ideal:
    """All trees by nodes and depth."""
    return Ideal(sizes.tokens, sizes.times_s(cost, points, sizes.narrowest))


def split_by_width(sizes: Sizes, by_width: Sequence[Sequence[Family]], cost: StepCost, point: Point) -> Iterator[Ideal]:
    """All trees by nodes, depth and their widest level, for product-form f: one `Ideal` per range of widths.

    Args:
        sizes: the nodes and depths of the trees.
        by_width: for each of `WIDTHS`, the families whose levels are at most that wide.
        cost: the price.
        point: B and L.
    """
    below = 0
    for width, families in zip((*WIDTHS, None), (*by_width, None), strict=True):
        tokens = sizes.tokens if families is None else _capped_tokens(sizes, families)
        yield Ideal(tokens, _fastest_with_a_level_of(below + 1, sizes, cost, point)[None])
        below = width or below


def _capped_tokens(sizes: Sizes, families: Sequence[Family]) -> FloatArray:
    """Largest E of width-capped trees of each N and D (at most N, for fewer nodes may exist)."""
    tokens = np.ones(len(sizes.nodes))
    for depth, family in enumerate(families, start=1):
        at = np.flatnonzero(sizes.depth >= depth)
        best = family.expected_tokens
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
