"""The best trees under a children cap when f depends on the whole path: a knapsack over the tree of candidates.

Best-first selection is not optimal here: with one child per node, f(0) = .5, f(1) = .45, f(0,0) = .01, f(1,0) = .44
it takes (0), (0,0) and misses (1), (1,0). The knapsack is exact over the nodes it is given. That no other node can
matter is certified by a Lagrangian bound: for any price p per node, a tree of N nodes has

    E <= U(p) = 1 + W(p) + p (N - 1),   W(p) = largest sum of (f - p) over capped trees,

and a tree that holds a node with f(v) < p loses p - f(v) of that, because dropping v and all below it gains as much.
So once a tree with E >= U(p) - (p - x) is known, nodes with f < x belong to no better one.

All caps on the depth are solved at once: row h of a table holds what h levels below the node give at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.model import PathModel
from treeopt.arrays import BoolArray, FloatArray, IntArray, distinct
from treeopt.solve.best_trees import TreeLevel, best_trees, nodes_above
from treeopt.solve.problem import Limits
from treeopt.tree import DraftTree, RankPath

# So few nodes are all candidates.
_FEW: Final = 150
# Else the candidates reach down to this share of the f of the last node that a tree without the cap would take; while
# the bound leaves more than `_CLOSE` open, to so much less again, so often.
_FIRST: Final = 0.25
_NEXT: Final = 0.25
_ROUNDS: Final = 3
_CLOSE: Final = 1e-3
# Prices per node that the bound is tried at, and how often those around the best are tried as well: each gives a true
# bound.
_PRICES: Final = 48
_REFINED: Final = 3


class CappedTrees:
    """The best trees of one depth cap for every N; the same face as `best_trees.BestTrees`, but not nested."""

    def __init__(self, knapsack: _Knapsack, depth_cap: int, size: int, bound: FloatArray, exact: BoolArray) -> None:
        """`size` is the largest N; `bound` and `exact` are those of the certificate, `[size]`."""
        self._knapsack, self._cap = knapsack, depth_cap
        best = knapsack.best(depth_cap)[:size]
        # Nodes that are never accepted pad a tree to any size that the caps allow.
        self.expected_tokens: FloatArray = np.maximum.accumulate(np.pad(best, (0, size - len(best)), mode="edge"))
        """`[M]` E of the best tree found with 1, 2, ... nodes."""
        self.upper_tokens: FloatArray = np.where(exact, self.expected_tokens, np.maximum(bound, self.expected_tokens))
        """`[M]` what no tree of that many nodes exceeds; equal to `expected_tokens` where that is optimal."""
        self._listed = len(best)

    @property
    def depth(self) -> IntArray:
        """`[M]` depth of each tree."""
        return np.array([(widths > 0).sum() for widths in self.expanded_widths], dtype=np.int64)

    @cached_property
    def expanded_widths(self) -> IntArray:
        """`[M, D]` nodes with children at depth 0..D-1 of each tree."""
        widths = np.zeros((len(self.expected_tokens), self._cap), dtype=np.int64)
        for n, row in enumerate(widths, start=1):
            if n <= self._listed:
                found = self._knapsack.solution(n, self._cap).widths[: self._cap]
                row[: len(found)] = found
            else:
                tree = self.tree(n)
                row[: tree.depth] = tree.expanded_widths
        return widths

    def tree(self, nodes: int) -> DraftTree:
        """The best tree found with `nodes` nodes, root included."""
        paths = self._knapsack.paths(min(nodes, self._listed), self._cap)
        return DraftTree(tuple(self._knapsack.padded(paths, nodes, self._cap)))


def capped_trees(model: PathModel, limits: Limits) -> list[CappedTrees]:
    """`[D]` the best trees of depth caps 1..D under `limits.max_children`, exact or with an upper bound beside."""
    depth_cap = limits.depth_for(model)
    if limits.max_nodes == 1:
        return []
    everything = nodes_above(model, limits, depth_cap, 0.0, most=_FEW)
    if everything is not None:
        return _solved(model, limits, everything, 0.0)
    threshold, found = _first_threshold(model, limits), list[CappedTrees]()
    for _ in range(_ROUNDS):
        levels = nodes_above(model, limits, depth_cap, threshold)
        if levels is None:  # too many to list: what was bounded before stays
            break
        found = _solved(model, limits, levels, threshold)
        if all((trees.upper_tokens <= trees.expected_tokens * (1.0 + _CLOSE)).all() for trees in found):
            break
        threshold *= _NEXT
    return found or _solved(model, limits, nodes_above(model, limits, depth_cap, 0.5) or [], 0.5)


def _first_threshold(model: PathModel, limits: Limits) -> float:
    """A share of the smallest f in the largest tree without the cap, which a tree under it goes below."""
    free = best_trees(model, Limits(max_nodes=limits.max_nodes, max_depth=limits.max_depth, max_ranks=limits.max_ranks))
    return _FIRST * float(free[-1].f[-1]) if free else 0.0


def _solved(model: PathModel, limits: Limits, levels: Sequence[TreeLevel], threshold: float) -> list[CappedTrees]:
    """One per depth cap; `levels` hold every node with f >= `threshold`."""
    knapsack = _Knapsack(levels, limits, model.ranks if limits.max_ranks is None else limits.max_ranks)
    found = []
    for depth in range(1, limits.depth_for(model) + 1):
        size = min(limits.max_nodes, _capacity(depth, model.ranks, limits))
        bound, exact = _certificate(knapsack, levels[:depth], limits, threshold, depth, size)
        found.append(CappedTrees(knapsack, depth, size, bound, exact))
    return found


def _capacity(depth: int, ranks: int, limits: Limits) -> int:
    """Nodes of the largest tree that the caps allow."""
    children = min(ranks, limits.max_children or ranks, limits.max_ranks or ranks)
    return sum(pow(children, d) for d in range(depth + 1))


def _certificate(
    knapsack: _Knapsack, levels: Sequence[TreeLevel], limits: Limits, threshold: float, depth: int, size: int
) -> tuple[FloatArray, BoolArray]:
    """`[size]` what no tree of 1, 2, ... nodes exceeds, and whether the best one of the listed nodes is the best."""
    if threshold <= 0.0:
        return np.full(size, np.inf), np.ones(size, dtype=np.bool_)
    best = knapsack.best(depth)[:size]
    known = np.maximum.accumulate(np.pad(best, (0, size - len(best)), mode="edge"))
    nodes = np.arange(size)
    # The price at which the best tree has N nodes is about the N-th largest f.
    listed = distinct(np.concatenate([level.f for level in levels])) if levels else np.zeros(0)
    first = max(len(listed) - 2 * size, 0)
    spaced = distinct(np.linspace(first, len(listed) - 1, min(len(listed) - first, _PRICES)).astype(np.int64))
    prices = np.concatenate([[threshold], listed[spaced]])
    gains = _priced_gains(levels, limits.max_children, prices)
    for _ in range(_REFINED):
        upper = 1.0 + gains[:, None] + prices[:, None] * nodes
        exact = (known >= upper - (prices - threshold)[:, None]).any(axis=0)
        at = distinct(upper.argmin(axis=0)[~exact])
        if not len(at):
            break
        beside = np.concatenate(
            [prices[at] + prices[np.maximum(at - 1, 0)], prices[at] + prices[(at + 1) % len(prices)]]
        )
        more = np.setdiff1d(beside / 2.0, prices)
        order = np.argsort(np.concatenate([prices, more]), kind="stable")
        gains = np.concatenate([gains, _priced_gains(levels, limits.max_children, more)])[order]
        prices = np.concatenate([prices, more])[order]
    upper = 1.0 + gains[:, None] + prices[:, None] * nodes
    exact = (known >= upper - (prices - threshold)[:, None]).any(axis=0)
    return np.asarray(upper.min(axis=0)), np.asarray(exact)


def _priced_gains(levels: Sequence[TreeLevel], max_children: int | None, prices: FloatArray) -> FloatArray:
    """`[P]` W(p): the largest sum of (f - p) over capped trees, by the best `max_children` subtrees of every node."""
    below = np.zeros((len(prices), len(levels[-1].f) if levels else 1))
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        gain = np.maximum(level.f - prices[:, None] + below, 0.0)
        parents = len(levels[depth - 1].f) if depth else 1
        place = np.arange(len(level.parent)) - np.searchsorted(level.parent, np.arange(parents))[level.parent]
        of_parent = np.zeros((len(prices), parents, int(place.max(initial=0)) + 1))
        of_parent[:, level.parent, place] = gain
        kept = len(of_parent[0, 0]) if max_children is None else min(max_children, of_parent.shape[2])
        below = -np.partition(-of_parent, kept - 1, axis=2)[:, :, :kept].sum(axis=2)
    return np.asarray(below[:, 0])


class _Subtree(NamedTuple):
    """Nodes as (level, index), and by level below the subtree's root how many of them have children."""

    nodes: tuple[tuple[int, int], ...]
    widths: tuple[int, ...]


class _Knapsack:
    """Best capped trees of each size and depth cap, from the leaves up; partial results are kept to read them back."""

    def __init__(self, levels: Sequence[TreeLevel], limits: Limits, ranks: int) -> None:
        self._levels, self._size, self._ranks = levels, limits.max_nodes, ranks
        self._cap = limits.max_children or limits.max_nodes
        # _stages[d][v]: per child of v and number of children used, `[H, n]` the best sum by nodes spent below v.
        self._stages: list[list[list[list[FloatArray]]]] = []
        self._kids: list[list[IntArray]] = []
        self._tables: list[list[FloatArray]] = [[] for _ in range(len(levels) + 1)]
        self._solved: dict[tuple[int, int, int, int], _Subtree] = {}
        for depth in range(len(levels), -1, -1):
            f = levels[depth - 1].f if depth else np.ones(1)
            kids = self._children(depth, len(f))
            below = self._tables[depth + 1] if depth < len(levels) else []
            stages = [self._merge([below[k] for k in kid]) for kid in kids]
            self._tables[depth] = [_grown(fv, stage[-1], self._size) for fv, stage in zip(f, stages, strict=True)]
            self._stages.insert(0, stages)
            self._kids.insert(0, kids)

    def best(self, depth_cap: int) -> FloatArray:
        """`[n]` E of the best tree of 1, 2, ... nodes within a depth cap, as many as are listed."""
        table = self._tables[0][0]
        row = table[min(depth_cap, len(table) - 1), 1 : self._size + 1]
        return np.asarray(row[np.isfinite(row)])

    def solution(self, nodes: int, depth_cap: int) -> _Subtree:
        """The best tree with `nodes` nodes within a depth cap."""
        return self._read(0, 0, nodes, min(depth_cap, len(self._levels)))

    def paths(self, nodes: int, depth_cap: int) -> list[RankPath]:
        """The paths of the best tree with `nodes` nodes within a depth cap."""
        found = self.solution(nodes, depth_cap).nodes
        return [tuple(self._levels[depth - 1].path[node].tolist()) for depth, node in found if depth]

    def padded(self, paths: list[RankPath], nodes: int, depth_cap: int) -> list[RankPath]:
        """The paths with as many never accepted ones as are lacking, the shallowest first."""
        known = set(paths)
        children: dict[RankPath, int] = {}
        for path in paths:
            children[path[:-1]] = children.get(path[:-1], 0) + 1
        queue: list[RankPath] = [()]
        while len(known) + 1 < nodes:
            parent = queue.pop(0)
            for rank in range(self._ranks if len(parent) < depth_cap else 0):
                path = (*parent, rank)
                room = children.get(parent, 0) < self._cap and len(known) + 1 < nodes
                if path not in known and room:
                    known.add(path)
                    children[parent] = children.get(parent, 0) + 1
                if path in known:
                    queue.append(path)
        return sorted(known)

    def _children(self, depth: int, parents: int) -> list[IntArray]:
        """The children of each node that may be in a best tree: a leaf only with fewer than the cap before it."""
        if depth == len(self._levels):
            return [np.zeros(0, np.int64)] * parents
        level, below = self._levels[depth], self._kids[0] if self._kids else []
        edges = np.searchsorted(level.parent, np.arange(parents + 1))
        inner = np.array([len(kids) > 0 for kids in below])
        found = []
        for low, high in pairwise(edges):
            order = low + np.argsort(-level.f[low:high], kind="stable")
            found.append(order[inner[order] | (np.arange(len(order)) < self._cap)])
        return found

    def _merge(self, tables: Sequence[FloatArray]) -> list[list[FloatArray]]:
        """Stage j holds, for 0..cap children among the first j, the best sums by nodes spent on them."""
        stages = [[np.zeros((1, 1))]]
        for table in tables:
            before = stages[-1]
            after = list(before)
            for used in range(1, min(len(before), self._cap) + 1):
                grown = _max_plus(before[used - 1], table, self._size)
                after[used : used + 1] = [_elementwise_max(grown, before[used]) if used < len(before) else grown]
            stages.append(after)
        return stages

    def _read(self, depth: int, node: int, nodes: int, height: int) -> _Subtree:
        """The best subtree below and with a node, from the choices that the tables record."""
        key = (depth, node, nodes, min(height, len(self._tables[depth][node]) - 1))
        if key not in self._solved:
            below = [self._read(depth + 1, kid, spent, height - 1) for kid, spent in self._spent(*key)]
            widths = [sum(level) for level in zip_longest(*(kid.widths for kid in below), fillvalue=0)]
            own = ((depth, node), *(found for kid in below for found in kid.nodes))
            self._solved[key] = _Subtree(own, (1, *widths) if below else ())
        return self._solved[key]

    def _spent(self, depth: int, node: int, nodes: int, height: int) -> list[tuple[int, int]]:
        """The children of a node that its best subtree of so many nodes has, each with the nodes that it spends."""
        found, left = [], nodes - 1
        stages, kids = self._stages[depth][node], self._kids[depth][node]
        used = int(np.argmax([_at(row, height, left) for row in stages[-1]])) if left else 0
        for j in range(len(kids) if left else 0, 0, -1):
            before, after = stages[j - 1], stages[j]
            target = _at(after[used], height, left)
            if used < len(before) and _at(before[used], height, left) == target:
                continue
            kid = int(kids[j - 1])
            table = _row(self._tables[depth + 1][kid], height - 1)
            rest = _row(before[used - 1], height)
            n = np.arange(max(1, left - len(rest) + 1), min(len(table), left + 1))
            spent = int(n[np.argmax(table[n] + rest[left - n] == target)])
            found.append((kid, spent))
            left, used = left - spent, used - 1
        return found


def _grown(f: float, rows: Sequence[FloatArray], size: int) -> FloatArray:
    """`[H, n + 1]` a node's table: 0 for no node, f and the best below it for more."""
    best = rows[0]
    for row in rows[1:]:
        best = _elementwise_max(best, row)
    out = np.zeros((len(best), min(best.shape[1], size) + 1))
    out[:, 1:] = f + best[:, : out.shape[1] - 1]
    return out


def _row(table: FloatArray, height: int) -> FloatArray:
    """The row for so many levels; more levels than there are rows change nothing."""
    return np.asarray(table[min(height, len(table) - 1)])


def _at(table: FloatArray, height: int, nodes: int) -> float:
    return float(_row(table, height)[nodes]) if nodes < table.shape[1] else -np.inf


def _tall(table: FloatArray, rows: int) -> FloatArray:
    """The table with its last row repeated to so many."""
    return np.concatenate([table, np.repeat(table[-1:], rows - len(table), axis=0)]) if len(table) < rows else table


def _elementwise_max(a: FloatArray, b: FloatArray) -> FloatArray:
    rows = max(len(a), len(b))
    out = np.full((rows, max(a.shape[1], b.shape[1])), -np.inf)
    out[:, : a.shape[1]] = _tall(a, rows)
    np.maximum(out[:, : b.shape[1]], _tall(b, rows), out=out[:, : b.shape[1]])
    return out


def _max_plus(before: FloatArray, child: FloatArray, size: int) -> FloatArray:
    """Best sum of what others spend and what one child spends, at least itself, for every total of nodes.

    The child has one level less below it; with none it cannot be used.
    """
    rows = max(len(before), len(child) + 1)
    a, b = _tall(before, rows)[1:], _tall(child, rows - 1)[:, 1:]
    out = np.full((rows, min(a.shape[1] + b.shape[1], size + 1)), -np.inf)
    short, long = (a, b) if a.shape[1] < b.shape[1] else (b, a)
    for i in range(min(short.shape[1], out.shape[1] - 1)):
        end = min(out.shape[1], i + 1 + long.shape[1])
        part = out[1:, i + 1 : end]
        np.maximum(part, short[:, i : i + 1] + long[:, : part.shape[1]], out=part)
    return out
