"""Everything the search may choose from: plain decoding, chains, and the best tree of every (N, D), priced at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from treeopt.acceptance.model import PathModel, expected_tokens, path_probabilities
from treeopt.arrays import FloatArray, IntArray
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Draft
from treeopt.solve.best_trees import Family, nodes_above
from treeopt.solve.problem import Limits, Point
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class Options:
    """`[C]` drafts by their numbers; `draft(i)` builds one.

    `widths [C, D]` are nodes that the drafter expands per depth, in static trees those with children.
    """

    nodes: IntArray
    depth: IntArray
    widths: IntArray
    expected_tokens: FloatArray
    makers: tuple[Callable[[], Draft], ...]

    def draft(self, option: int) -> Draft:
        """The draft behind an option."""
        return self.makers[option]()

    def only(self, kept: IntArray) -> Options:
        """The options of these numbers, in their order."""
        return Options(
            nodes=self.nodes[kept],
            depth=self.depth[kept],
            widths=self.widths[kept],
            expected_tokens=self.expected_tokens[kept],
            makers=tuple(self.makers[i] for i in kept.tolist()),
        )

    def times_s(self, cost: StepCost, points: Sequence[Point]) -> FloatArray:
        """`[points, C]` step times."""
        return _times_s(cost, points, self.nodes, self.depth, self.widths)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """`[C]` all numbers of nodes and depths that trees may have, with the most E that a tree of each can have.

    `levels` is the number of width columns that step times are asked with.
    """

    nodes: IntArray
    depth: IntArray
    tokens: FloatArray
    levels: int

    @classmethod
    def of(cls, families: Sequence[Family], *, depth: int, levels: int, most: Mapping[tuple[int, int], float]) -> Sizes:
        """All of up to `depth`: a tree is bounded by the best one that is at most as deep.

        Families end where a deeper one is the same. `most` holds tighter bounds for some (N, D).
        """
        blocks = [np.zeros((3, 0))]
        for d in range(1, depth + 1 if families else 1):
            tokens = families[min(d, len(families)) - 1].upper_tokens[d:]
            nodes = np.arange(d + 1, d + 1 + len(tokens))
            known = [most.get((n, d), np.inf) for n in nodes.tolist()]
            blocks.append(np.stack([nodes, np.full(len(nodes), d), np.minimum(tokens, known)]))
        N, D, E = np.concatenate(blocks, axis=1)
        return cls(nodes=N.astype(np.int64), depth=D.astype(np.int64), tokens=E, levels=levels)

    def only(self, kept: IntArray) -> Sizes:
        """The sizes of these numbers, in their order."""
        return replace(self, nodes=self.nodes[kept], depth=self.depth[kept], tokens=self.tokens[kept])

    @property
    def narrowest(self) -> IntArray:
        """`[C, levels]` the least widths that a tree of each depth can have: one node per level."""
        return (np.arange(self.levels) < self.depth[:, None]).astype(np.int64)

    def times_s(self, cost: StepCost, points: Sequence[Point], widths: IntArray) -> FloatArray:
        """`[points, C]` step times of trees of `widths [C, levels]`."""
        return _times_s(cost, points, self.nodes, self.depth, widths)


def _times_s(cost: StepCost, points: Sequence[Point], nodes: IntArray, depth: IntArray, widths: IntArray) -> FloatArray:
    blocks = []
    # One call per context: arrays over depths then need no axis of contexts.
    for context, group in groupby(points, key=lambda point: point.context):
        batch = np.array([point.batch for point in group], dtype=np.int64)[:, None]
        blocks.append(cost.step_time_s(batch, nodes, depth, widths, context))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def tree_options(families: Sequence[Family], depth: int) -> Options:
    """The trees of all families, each (N, D) once: a tree shallower than its family's cap is in a lower family too.

    `depth` is the number of width columns.
    """
    blocks = []
    makers: list[Callable[[], Draft]] = []
    for cap, family in enumerate(families, start=1):
        at = np.flatnonzero((family.depth == cap) | (family.upper_tokens > family.expected_tokens))
        widths = np.zeros((len(at), depth), dtype=np.int64)
        widths[:, :cap] = family.expanded_widths[at]
        blocks.append((at + 1, family.depth[at], widths, family.expected_tokens[at]))
        makers += [_maker(family, int(n) + 1) for n in at]
    return _join(blocks, makers, depth)


def chain_options(ranks: PathModel, limits: Limits, depth: int) -> Options:
    """Plain decoding, then the chains of top guesses, depth 1, 2, ... within the limits."""
    f = path_probabilities(ranks, DraftTree.chain(min(depth, limits.max_nodes - 1)))
    blocks = []
    for d in range(len(f)):
        widths = (np.arange(depth) < d).astype(np.int64)[None]
        blocks.append((np.array([d + 1]), np.array([d]), widths, np.array([expected_tokens(f[: d + 1])])))
    return _join(blocks, [_chain_maker(d) for d in range(len(f))], depth)


def most_chain_tokens(ranks: PathModel, limits: Limits, depth: int) -> FloatArray:
    """`[D + 1]` what no chain of any guesses exceeds, by each depth's likeliest node."""
    return np.cumsum(_likeliest(ranks, limits, path_probabilities(ranks, DraftTree.chain(depth))))


def _likeliest(ranks: PathModel, limits: Limits, chain: FloatArray) -> FloatArray:
    """`[D + 1]` the largest f at each depth (1 where that would take too long), given f of the chain of top guesses."""
    levels = nodes_above(ranks, limits, len(chain) - 1, float(chain[-1])) if chain[-1] > 0.0 else None
    if levels is None:
        return np.ones(len(chain))
    return np.array([1.0, *(level.f.max() for level in levels)])


def concatenate(parts: Sequence[Options]) -> Options:
    """All options of the parts, in order."""
    return Options(
        nodes=np.concatenate([p.nodes for p in parts]),
        depth=np.concatenate([p.depth for p in parts]),
        widths=np.concatenate([p.widths for p in parts]),
        expected_tokens=np.concatenate([p.expected_tokens for p in parts]),
        makers=tuple(m for p in parts for m in p.makers),
    )


def _join(
    blocks: Sequence[tuple[IntArray, IntArray, IntArray, FloatArray]],
    makers: Sequence[Callable[[], Draft]],
    depth: int,
) -> Options:
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, depth), np.int64), np.zeros(0))
    nodes, depths, widths, tokens = (np.concatenate(column) for column in zip(none, *blocks, strict=True))
    return Options(nodes=nodes, depth=depths, widths=widths, expected_tokens=tokens, makers=tuple(makers))


def _maker(family: Family, nodes: int) -> Callable[[], DraftTree]:
    return lambda: family.tree(nodes)


def _chain_maker(depth: int) -> Callable[[], DraftTree]:
    return lambda: DraftTree.chain(depth)
