"""All uniform trees at once: every node of a depth has the same number of children, the best-ranked ones.

A uniform tree of widths w_1, w_2, ... holds exactly the paths with rank r_i < w_i at every depth, so its E is 1 plus,
level by level, the sum of f over a box of ranks. Boxes are closed downwards: all of their sums come from one pass of
running sums per axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from treeopt.acceptance.model import PathModel
from treeopt.arrays import FloatArray, IntArray
from treeopt.solve.problem import Limits


class UniformLevel(NamedTuple):
    """All uniform trees of depth d: `[n, d]` widths by depth, `[n]` nodes with the root, `[n]` E."""

    widths: IntArray
    nodes: IntArray
    expected_tokens: FloatArray


def uniform_levels(model: PathModel, limits: Limits, *, equal_widths: bool = False) -> Iterator[UniformLevel]:
    """The uniform trees within the limits of depth 1, 2, ... as long as there are any."""
    most = min(c for c in (model.ranks, limits.max_ranks, limits.max_children) if c is not None)
    level = UniformLevel(np.zeros((1, 0), dtype=np.int64), np.ones(1, dtype=np.int64), np.ones(1))
    f = np.ones(1)
    for _ in range(limits.depth_for(model)):
        # The last node of each box, which has the rank w - 1 at every depth, stands for the box.
        rows = f[:, None] * model.conditional(level.widths - 1)
        parent, level = _children(level, limits.max_nodes, most)
        if not len(level.nodes):
            return
        f = rows[parent, level.widths[:, -1] - 1]
        level = level._replace(expected_tokens=level.expected_tokens + _box_sums(level.widths, f))
        kept = (level.widths == level.widths[:, :1]).all(axis=1) if equal_widths else slice(None)
        yield UniformLevel(level.widths[kept], level.nodes[kept], level.expected_tokens[kept])


def _children(level: UniformLevel, max_nodes: int, most: int) -> tuple[IntArray, UniformLevel]:
    """Every tree of one level more, with the one that it extends; E is still that one's."""
    leaves = level.widths.prod(axis=1)
    fits = np.minimum((max_nodes - level.nodes) // leaves, most)
    parent = np.repeat(np.arange(len(fits)), fits)
    width = np.arange(len(parent)) - np.repeat(np.cumsum(fits) - fits, fits) + 1
    widths = np.concatenate([level.widths[parent], width[:, None]], axis=1)
    return parent, UniformLevel(widths, level.nodes[parent] + leaves[parent] * width, level.expected_tokens[parent])


def _box_sums(widths: IntArray, f: FloatArray) -> FloatArray:
    """`[n]` sum of f over each box, given f of every box's last node; the boxes are closed downwards."""
    total = f.copy()
    for axis in range(widths.shape[1]):
        others = np.delete(widths, axis, axis=1)
        order = np.lexsort((widths[:, axis], *others.T))
        running = np.cumsum(total[order])
        first = np.flatnonzero(widths[order, axis] == 1)
        before = np.concatenate([[0.0], running])[first]
        total[order] = running - np.repeat(before, np.diff([*first, len(order)]))
    return total
