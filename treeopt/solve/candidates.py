"""Everything the search may choose from: plain decoding, chains, and the best tree of every (N, D), priced at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.model import PathModel, expected_tokens, path_probabilities
from treeopt.arrays import FloatArray, IntArray
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Draft
from treeopt.solve.best_trees import BestTrees, nodes_above
from treeopt.solve.problem import Limits, Point
from treeopt.tree import DraftTree

# Caps on the nodes with children per level that are tried; a tree wider than the last is bounded by the uncapped one.
WIDTHS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """`[C]` drafts by their numbers; `draft(i)` builds one.

    `widths [C, D]` are nodes that the drafter expands per depth, in static trees those with children.
    """

    nodes: IntArray
    depth: IntArray
    widths: IntArray
    tokens: FloatArray
    makers: tuple[Callable[[], Draft], ...]

    def draft(self, candidate: int) -> Draft:
        """The draft behind a candidate."""
        return self.makers[candidate]()

    def of_size(self, nodes: int, depth: int) -> IntArray:
        """The candidates of so many nodes and levels."""
        return np.flatnonzero((self.nodes == nodes) & (self.depth == depth))

    def only(self, kept: IntArray) -> Candidates:
        """The candidates of these numbers, in their order."""
        return Candidates(
            nodes=self.nodes[kept],
            depth=self.depth[kept],
            widths=self.widths[kept],
            tokens=self.tokens[kept],
            makers=tuple(self.makers[i] for i in kept.tolist()),
        )

    def times_s(self, cost: StepCost, points: Sequence[Point]) -> FloatArray:
        """`[points, C]` step times."""
        return _times_s(cost, points, self.nodes, self.depth, self.widths)


class Listed(NamedTuple):
    """The candidates of a family; the sizes by which all other trees are bounded, None where the candidates are all
    that there is; and the best trees within limits for each of `WIDTHS`, where they help."""

    candidates: Candidates
    sizes: Sizes | None = None
    by_width: Callable[[Limits], Sequence[Sequence[BestTrees]]] | None = None


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
    def of(
        cls, by_depth: Sequence[BestTrees], *, depth: int, levels: int, most: Mapping[tuple[int, int], float]
    ) -> Sizes:
        """All of up to `depth`: a tree is bounded by the best one that is at most as deep.

        Families end where a deeper one is the same. `most` holds tighter bounds for some (N, D).
        """
        blocks = [np.zeros((3, 0))]
        for d in range(1, depth + 1 if by_depth else 1):
            tokens = by_depth[min(d, len(by_depth)) - 1].upper_tokens[d:]
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


def tree_candidates(by_depth: Sequence[BestTrees], depth: int) -> Candidates:
    """The best trees of all depth caps, each (N, D) once: a tree shallower than its cap is one of a lower cap too.

    `depth` is the number of width columns.
    """
    blocks = []
    makers: list[Callable[[], Draft]] = []
    for cap, trees in enumerate(by_depth, start=1):
        at = np.flatnonzero((trees.depth == cap) | (trees.upper_tokens > trees.expected_tokens))
        widths = np.zeros((len(at), depth), dtype=np.int64)
        widths[:, :cap] = trees.expanded_widths[at]
        blocks.append((at + 1, trees.depth[at], widths, trees.expected_tokens[at]))
        makers += [_maker(trees, int(n) + 1) for n in at]
    return _join(blocks, makers, depth)


def chain_candidates(ranks: PathModel, limits: Limits, depth: int) -> Candidates:
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
    """`[D + 1]` the largest f at each depth (or more, where finding it would take too long), given f of the chain of
    top guesses."""
    least = float(chain[-1])
    levels = nodes_above(ranks, limits, len(chain) - 1, least)
    if levels is None and least == 0.0:  # what is not listed is below the chain's last f above 0
        least = float(chain[chain > 0.0][-1])
        levels = nodes_above(ranks, limits, len(chain) - 1, least)
    if levels is None:
        return np.ones(len(chain))
    found = [1.0, *(float(level.f.max()) for level in levels)]
    return np.asarray(np.maximum(np.pad(found, (0, len(chain) - len(found))), least))


def concatenate(parts: Sequence[Candidates]) -> Candidates:
    """All candidates of the parts, in order."""
    return Candidates(
        nodes=np.concatenate([p.nodes for p in parts]),
        depth=np.concatenate([p.depth for p in parts]),
        widths=np.concatenate([p.widths for p in parts]),
        tokens=np.concatenate([p.tokens for p in parts]),
        makers=tuple(m for p in parts for m in p.makers),
    )


def _join(
    blocks: Sequence[tuple[IntArray, IntArray, IntArray, FloatArray]],
    makers: Sequence[Callable[[], Draft]],
    depth: int,
) -> Candidates:
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, depth), np.int64), np.zeros(0))
    nodes, depths, widths, tokens = (np.concatenate(column) for column in zip(none, *blocks, strict=True))
    return Candidates(nodes=nodes, depth=depths, widths=widths, tokens=tokens, makers=tuple(makers))


def _maker(trees: BestTrees, nodes: int) -> Callable[[], DraftTree]:
    return lambda: trees.tree(nodes)


def _chain_maker(depth: int) -> Callable[[], DraftTree]:
    return lambda: DraftTree.chain(depth)
