"""The best tree for every number of nodes and every depth cap, at once.

For greedy verification E(T) = 1 + sum of f over the nodes, whatever the joint law of acceptance, and f never rises
along a path. So the N - 1 paths with the largest f form a tree, and no tree of N nodes has a larger E. The same holds
among the paths of at most D tokens; the trees of one depth cap are nested, one node more each. (Sequoia, Chen et al.
2024, section 4.1 solves the same problem by dynamic programming for product-form f.) Paths that are never accepted,
f = 0, are nodes too: they come last, the shallowest first, and pad a tree to a size whose step is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.model import PathModel
from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.solve.problem import Limits
from treeopt.tree import DraftTree

# More nodes than this are not listed: an answer with a gap beats one that takes minutes.
MAX_CANDIDATES = 4000


class TreeLevel(NamedTuple):
    """Candidate nodes of one depth, in path order; `parent` indexes the level above."""

    f: FloatArray
    parent: IntArray
    path: IntArray


class BestTrees(Protocol):
    """The best trees of one depth cap for 1, 2, ... M nodes."""

    @property
    def expected_tokens(self) -> FloatArray:
        """`[M]` E of the best tree found with that many nodes."""

    @property
    def upper_tokens(self) -> FloatArray:
        """`[M]` what no tree of that many nodes exceeds; equal to `expected_tokens` where that one is optimal."""

    @property
    def depth(self) -> IntArray:
        """`[M]` depth of each tree."""

    @property
    def expanded_widths(self) -> IntArray:
        """`[M, D]` nodes with children at depth 0..D-1 of each tree."""

    def tree(self, nodes: int) -> DraftTree:
        """The best tree found with `nodes` nodes, root included."""


class NestedTrees:
    """The nested best trees of one depth cap: the first N - 1 nodes of `order` for every N."""

    def __init__(self, levels: Sequence[TreeLevel]) -> None:
        """Order the candidate nodes of depth 1..D by f; ties go to the shallower, then to the better-ranked node."""
        self._levels = levels
        f = np.concatenate([level.f for level in levels])
        offset = np.cumsum([0] + [len(level.f) for level in levels])
        depth = np.repeat(np.arange(1, len(levels) + 1), np.diff(offset))
        above = np.concatenate([[-1], offset[:-1]])
        parent = np.concatenate([level.parent + above[d] for d, level in enumerate(levels)])
        parent[depth == 1] = -1
        order = _descending(f)
        self.f = f[order]
        """`[M - 1]` f of the nodes in the order in which they join the tree."""
        self._depth = depth[order]
        self._flat = order
        self._parent = parent[order]

    @property
    def expected_tokens(self) -> FloatArray:
        """`[M]` E, from the root alone to the whole order."""
        return 1.0 + np.concatenate([[0.0], np.cumsum(self.f)])

    @property
    def upper_tokens(self) -> FloatArray:
        """`[M]` the same: these trees are optimal."""
        return self.expected_tokens

    @property
    def depth(self) -> IntArray:
        """`[M]` depth of each tree."""
        return np.concatenate([[0], np.maximum.accumulate(self._depth)])

    @property
    def expanded_widths(self) -> IntArray:
        """`[M, D]` nodes with children at depth 0..D-1 of each tree."""
        widths = np.zeros((len(self.f) + 1, len(self._levels)), dtype=np.int64)
        _, first = np.unique(self._parent, return_index=True)
        widths[first + 1, self._depth[first] - 1] = 1
        return np.cumsum(widths, axis=0)

    def tree(self, nodes: int) -> DraftTree:
        """The first `nodes` - 1 nodes of the order, and the root."""
        offset = np.cumsum([0] + [len(level.f) for level in self._levels])
        paths = []
        for flat, depth in zip(self._flat[: nodes - 1], self._depth[: nodes - 1], strict=True):
            paths.append(tuple(self._levels[depth - 1].path[flat - offset[depth - 1]].tolist()))
        return DraftTree(tuple(paths))


def best_trees(model: PathModel, limits: Limits, *, max_width: int | None = None) -> list[NestedTrees]:
    """`[D]` the best trees of depth caps 1..D, exact for every N up to `limits.max_nodes`.

    `max_width` caps the nodes with children on each level below the root, which is exact under product-form f (any
    subtree can hang under the best node of its level) and a lower bound otherwise.

    The children cap is applied by keeping each node's best ranks, exact under product-form f;
    `treeopt.solve.children_cap` is exact for any f.
    """
    depth_cap = limits.depth_for(model)
    keep = limits.max_nodes - 1
    level = TreeLevel(np.ones(1), np.zeros(1, dtype=np.int64), np.zeros((1, 0), dtype=np.int64))
    levels: list[TreeLevel] = []
    found: list[NestedTrees] = []
    for _ in range(depth_cap if keep else 0):
        child = _children(model, limits, level, max_width if levels else None)
        grown = _best(levels, child, keep)
        if len(grown) == len(levels):
            break
        levels = grown
        level = levels[-1]
        found.append(NestedTrees(levels))
    return found


def _children(model: PathModel, limits: Limits, level: TreeLevel, max_width: int | None) -> TreeLevel:
    parents = np.arange(len(level.f))
    if max_width is not None:
        parents = np.sort(_descending(level.f)[:max_width])
    rows, allowed = allowed_ranks(model.conditional(level.path[parents]), limits)
    row, rank = np.nonzero(allowed)
    parent = parents[row]
    path = np.concatenate([level.path[parent], rank[:, None]], axis=1)
    return TreeLevel(level.f[parent] * rows[row, rank], parent, path)


def nodes_above(
    model: PathModel, limits: Limits, depth: int, threshold: float, *, most: int | None = None
) -> list[TreeLevel] | None:
    """All nodes with f >= threshold (and f > 0) by level, or None if they are more than `most` (`MAX_CANDIDATES`)."""
    level = TreeLevel(np.ones(1), np.zeros(1, dtype=np.int64), np.zeros((1, 0), dtype=np.int64))
    levels: list[TreeLevel] = []
    total = 0
    for _ in range(depth):
        f = level.f[:, None] * model.conditional(level.path)[:, : limits.max_ranks]
        parent, rank = np.nonzero((f >= threshold) & (f > 0.0))
        if not len(parent):
            break
        level = TreeLevel(f[parent, rank], parent, np.concatenate([level.path[parent], rank[:, None]], axis=1))
        levels.append(level)
        total += len(parent)
        if total > (MAX_CANDIDATES if most is None else most):
            return None
    return levels


def allowed_ranks(rows: FloatArray, limits: Limits) -> tuple[FloatArray, BoolArray]:
    """`[n, K]` rows within the rank cap, and which of their ranks the children cap leaves."""
    rows = rows[:, : limits.max_ranks]
    allowed = np.ones(rows.shape, dtype=np.bool_)
    if limits.max_children is not None and limits.max_children < rows.shape[1]:
        order = np.argsort(-rows, axis=1, kind="stable")[:, limits.max_children :]
        np.put_along_axis(allowed, order, False, axis=1)
    return rows, allowed


def _descending(f: FloatArray) -> IntArray:
    """Order by f, largest first, equal ones as they come; what differs by rounding (2^-40) is equal.

    Without this, 0.7 * 0.15 * 0.7 and 0.7 * 0.7 * 0.15 would be told apart by their last bit.
    """
    mantissa, exponent = np.frexp(f)
    return np.argsort(-np.ldexp(np.rint(np.ldexp(mantissa, 40)), exponent - 40), kind="stable")


def _best(levels: Sequence[TreeLevel], child: TreeLevel, keep: int) -> list[TreeLevel]:
    """The `keep` largest f of all levels; a node that falls out can never return at a larger depth cap.

    A node's ancestors have f at least as large and come first among equals, so the kept nodes are closed.
    """
    f = np.concatenate([*(level.f for level in levels), child.f])
    kept = np.zeros(len(f), dtype=np.bool_)
    kept[_descending(f)[:keep]] = True
    out: list[TreeLevel] = []
    start = 0
    above: npt.NDArray[np.int64] = np.zeros(1, dtype=np.int64)  # old index to new index on the level above
    for level in (*levels, child):
        mask = kept[start : start + len(level.f)]
        start += len(level.f)
        if mask.any():
            out.append(TreeLevel(level.f[mask], above[level.parent[mask]], level.path[mask]))
        above = np.cumsum(mask) - 1
    return out
