"""The best trees under a children cap when f depends on the whole path: a knapsack over the tree of candidates.

Best-first selection is not optimal here: with one child per node, f(0) = .5, f(1) = .45, f(0,0) = .01, f(1,0) = .44
it takes (0), (0,0) and misses (1), (1,0). The knapsack is exact over the nodes it is given. That no other node can
matter is certified by a Lagrangian bound: for any price p per node, a tree of N nodes has

    E <= U(p) = 1 + W(p) + p (N - 1),   W(p) = largest sum of (f - p) over capped trees,

and a tree that holds a node with f(v) < p loses p - f(v) of that, because dropping v and all below it gains as much.
So once a tree with E >= U(p) - (p - x) is known, nodes with f < x belong to no better one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treeopt.acceptance.model import PathModel
from treeopt.arrays import FloatArray, IntArray
from treeopt.solve.best_trees import Level, nodes_above
from treeopt.solve.problem import Limits
from treeopt.tree import DraftTree, RankPath


class CappedFamily:
    """The best trees of one depth cap for every N; the same face as `frontier.Family`, but not nested."""

    def __init__(self, levels: Sequence[Level], limits: Limits, threshold: float) -> None:
        """Solve the knapsack over `levels`, which hold every node with f >= `threshold`."""
        self._knapsack = _Knapsack(levels, limits)
        self.expected_tokens = self._knapsack.best
        """`[M]` E of the best tree found with 1, 2, ... nodes."""
        self.upper_tokens = self._certified(levels, limits, threshold)
        """`[M]` what no tree of that many nodes exceeds; equal to `expected_tokens` where that is optimal."""
        self._trees = [DraftTree(tuple(self._knapsack.paths(n))) for n in range(1, len(self.expected_tokens) + 1)]
        self._columns = len(levels)

    @property
    def depth(self) -> IntArray:
        """`[M]` depth of each tree."""
        return np.array([tree.depth for tree in self._trees], dtype=np.int64)

    @property
    def expanded_widths(self) -> IntArray:
        """`[M, D]` nodes with children at depth 0..D-1 of each tree."""
        widths = np.zeros((len(self._trees), self._columns), dtype=np.int64)
        for row, tree in zip(widths, self._trees, strict=True):
            row[: tree.depth] = tree.expanded_widths
        return widths

    def tree(self, nodes: int) -> DraftTree:
        """The best tree found with `nodes` nodes, root included."""
        return self._trees[nodes - 1]

    def _certified(self, levels: Sequence[Level], limits: Limits, threshold: float) -> FloatArray:
        nodes = np.arange(len(self.expected_tokens))
        if threshold <= 0.0:
            return self.expected_tokens
        prices = np.unique(np.concatenate([level.f for level in levels] + [np.array([threshold])]))
        bound = np.full(len(nodes), np.inf)
        exact = np.zeros(len(nodes), dtype=np.bool_)
        for price in prices:
            upper = 1.0 + _priced_gain(levels, limits, float(price)) + price * nodes
            bound = np.minimum(bound, upper)
            exact |= self.expected_tokens >= upper - (price - threshold)
        return np.where(exact, self.expected_tokens, np.maximum(bound, self.expected_tokens))


def capped_families(model: PathModel, limits: Limits) -> list[CappedFamily]:
    """`[D]` the families of depth caps 1..D under `limits.max_children`, exact or with an upper bound beside."""
    depth_cap = limits.depth_for(model)
    threshold = 0.5
    while True:
        levels = nodes_above(model, limits, depth_cap, threshold)
        if levels is None:
            break
        families = [CappedFamily(levels[:d], limits, threshold) for d in range(1, len(levels) + 1)]
        full = len(families) == depth_cap and all(
            len(family.expected_tokens) == min(limits.max_nodes, _capacity(depth, model.ranks, limits))
            and (family.upper_tokens == family.expected_tokens).all()
            for depth, family in enumerate(families, start=1)
        )
        if full or threshold == 0.0:
            return families
        last, threshold = families, 0.0 if threshold < 1e-6 else threshold / 2
    return last


def _capacity(depth: int, ranks: int, limits: Limits) -> int:
    """Nodes of the largest tree that the caps allow."""
    children = min(ranks, limits.max_children or ranks, limits.max_ranks or ranks)
    return sum(pow(children, d) for d in range(depth + 1))


def _priced_gain(levels: Sequence[Level], limits: Limits, price: float) -> float:
    """W(p): the largest sum of (f - p) over capped trees, by the best `max_children` subtrees of every node."""
    below = np.zeros(len(levels[-1].f)) if levels else np.zeros(1)
    for depth in range(len(levels) - 1, -1, -1):
        gain = np.maximum(levels[depth].f - price + below, 0.0)
        above = len(levels[depth - 1].f) if depth else 1
        below = _top_sums(gain, levels[depth].parent, above, limits.max_children)
    return float(below[0])


def _top_sums(gain: FloatArray, parent: IntArray, parents: int, count: int | None) -> FloatArray:
    """`[parents]` sum of each parent's `count` largest gains; `parent` is sorted."""
    order = np.lexsort((-gain, parent))
    first = np.searchsorted(parent, np.arange(parents))
    place = np.arange(len(parent)) - first[parent]
    kept = gain[order] if count is None else np.where(place < count, gain[order], 0.0)
    return np.bincount(parent, kept, parents).astype(np.float64)


class _Knapsack:
    """Best capped tree of each size, from the leaves up; the partial results are kept to read the trees back."""

    def __init__(self, levels: Sequence[Level], limits: Limits) -> None:
        self._levels = levels
        self._size = limits.max_nodes
        self._cap = limits.max_children or limits.max_nodes
        # _stages[d][v]: per child of v and number of children used, the best sum by nodes spent below v.
        self._stages: list[list[list[list[FloatArray]]]] = []
        self._kids: list[list[IntArray]] = []
        tables: list[FloatArray] = []
        for depth in range(len(levels), -1, -1):
            count = len(levels[depth - 1].f) if depth else 1
            f = levels[depth - 1].f if depth else np.ones(1)
            kids = _children_of(levels[depth], count) if depth < len(levels) else [np.zeros(0, np.int64)] * count
            stages = [self._merge([tables[k] for k in kid]) for kid in kids]
            # A subtree of 0 nodes is worth 0, one of n >= 1 nodes f(v) plus the best n - 1 nodes below.
            tables = [
                np.concatenate([[0.0], fv + _best_of(stage[-1])])[: self._size + 1]
                for fv, stage in zip(f, stages, strict=True)
            ]
            self._stages.insert(0, stages)
            self._kids.insert(0, kids)
        self.best = tables[0][1 : self._size + 1]

    def paths(self, nodes: int) -> list[RankPath]:
        """The paths of the best tree with `nodes` nodes."""
        return [tuple(self._levels[depth - 1].path[node].tolist()) for depth, node in self._read(0, 0, nodes) if depth]

    def _merge(self, tables: Sequence[FloatArray]) -> list[list[FloatArray]]:
        """Stage j holds, for 0..cap children among the first j, the best sum by nodes spent on them."""
        stages = [[np.zeros(1)]]
        for table in tables:
            before = stages[-1]
            after = list(before)
            for used in range(1, min(len(before), self._cap) + 1):
                grown = _max_plus(before[used - 1], table, self._size)
                after[used : used + 1] = [_elementwise_max(grown, before[used]) if used < len(before) else grown]
            stages.append(after)
        return stages

    def _read(self, depth: int, node: int, nodes: int) -> list[tuple[int, int]]:
        found = [(depth, node)]
        left = nodes - 1
        stages, kids = self._stages[depth][node], self._kids[depth][node]
        rows = stages[-1]
        used = int(np.argmax([row[left] if left < len(row) else -np.inf for row in rows])) if left else 0
        for j in range(len(kids), 0, -1):
            before, after = stages[j - 1], stages[j]
            target = after[used][left]
            if used < len(before) and left < len(before[used]) and before[used][left] == target:
                continue
            table = self._table(depth + 1, int(kids[j - 1]))
            rest = before[used - 1]
            spent = next(
                n for n in range(len(table)) if 0 <= left - n < len(rest) and rest[left - n] + table[n] == target
            )
            if spent:
                found += self._read(depth + 1, int(kids[j - 1]), spent)
            left, used = left - spent, used - 1
        return found

    def _table(self, depth: int, node: int) -> FloatArray:
        f = self._levels[depth - 1].f[node]
        return np.concatenate([[0.0], f + _best_of(self._stages[depth][node][-1])])[: self._size + 1]


def _children_of(level: Level, parents: int) -> list[IntArray]:
    edges = np.searchsorted(level.parent, np.arange(parents + 1))
    return [np.arange(edges[p], edges[p + 1]) for p in range(parents)]


def _best_of(rows: Sequence[FloatArray]) -> FloatArray:
    best = rows[0]
    for row in rows[1:]:
        best = _elementwise_max(best, row)
    return best


def _elementwise_max(a: FloatArray, b: FloatArray) -> FloatArray:
    out = np.full(max(len(a), len(b)), -np.inf)
    out[: len(a)] = a
    out[: len(b)] = np.maximum(out[: len(b)], b)
    return out


def _max_plus(a: FloatArray, b: FloatArray, size: int) -> FloatArray:
    """Best sum of one entry of each for every total of their indices."""
    out = np.full(min(len(a) + len(b) - 1, size + 1), -np.inf)
    short, long = (a, b) if len(a) < len(b) else (b, a)
    for i, value in enumerate(short[: len(out)]):
        end = min(len(out), i + len(long))
        out[i:end] = np.maximum(out[i:end], value + long[: end - i])
    return out
