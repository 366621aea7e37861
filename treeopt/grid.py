"""Everything the search may choose from: plain decoding, chains, and the best tree of every (N, D), priced at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from treeopt.cost.base import StepCost
from treeopt.frontier import Family, Limits, nodes_above
from treeopt.question import Point
from treeopt.ranks.model import FloatArray, IntArray, PathModel, expected_tokens, path_probabilities
from treeopt.shapes import Draft
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class Options:
    """`[C]` drafts by their numbers; `draft(i)` builds one.

    `widths [C, D]` are nodes that the drafter expands per depth, in static trees those with children; `upper_tokens`
    is what no tree of as many nodes and as deep exceeds.
    """

    nodes: IntArray
    depth: IntArray
    widths: IntArray
    expected_tokens: FloatArray
    upper_tokens: FloatArray
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
            upper_tokens=self.upper_tokens[kept],
            makers=tuple(self.makers[i] for i in kept.tolist()),
        )

    def times_s(self, cost: StepCost, points: Sequence[Point], widths: IntArray | None = None) -> FloatArray:
        """`[points, C]` step times, with other `widths` than the options' own if given."""
        widths = self.widths if widths is None else widths
        blocks = []
        # One call per context: arrays over depths then need no axis of contexts.
        for context, group in groupby(points, key=lambda point: point.context):
            batch = np.array([point.batch for point in group], dtype=np.int64)[:, None]
            blocks.append(cost.step_time_s(batch, self.nodes, self.depth, widths, context))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    @property
    def narrowest(self) -> IntArray:
        """`[C, D]` the least widths that a tree of each option's depth can have: one node per level."""
        return (np.arange(self.widths.shape[1]) < self.depth[:, None]).astype(np.int64)


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
        blocks.append((at + 1, family.depth[at], widths, family.expected_tokens[at], family.upper_tokens[at]))
        makers += [_maker(family, int(n) + 1) for n in at]
    return _join(blocks, makers, depth)


def chain_options(ranks: PathModel, limits: Limits, families: Sequence[Family], depth: int) -> Options:
    """Plain decoding, then the chains of top guesses, depth 1, 2, ... within the limits.

    Their `upper_tokens` hold for chains of any guesses: no depth gives more than its likeliest node, and no chain more
    than the best tree of its size in `families`.
    """
    longest = min(depth, limits.max_nodes - 1)
    f = path_probabilities(ranks, DraftTree.chain(longest))
    likeliest = f if ranks.product_form else _likeliest(ranks, limits, f)
    blocks = []
    for d in range(longest + 1):
        widths = (np.arange(depth) < d).astype(np.int64)[None]
        tokens, upper = (np.array([expected_tokens(x[: d + 1])]) for x in (f, likeliest))
        if d and families:
            of_all_trees = families[min(d, len(families)) - 1].upper_tokens
            upper = np.minimum(upper, of_all_trees[min(d + 1, len(of_all_trees)) - 1])
        blocks.append((np.array([d + 1]), np.array([d]), widths, tokens, np.maximum(tokens, upper)))
    return _join(blocks, [_chain_maker(d) for d in range(longest + 1)], depth)


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
        upper_tokens=np.concatenate([p.upper_tokens for p in parts]),
        makers=tuple(m for p in parts for m in p.makers),
    )


def _join(
    blocks: Sequence[tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray]],
    makers: Sequence[Callable[[], Draft]],
    depth: int,
) -> Options:
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, depth), np.int64), np.zeros(0), np.zeros(0))
    nodes, depths, widths, tokens, upper = (np.concatenate(column) for column in zip(none, *blocks, strict=True))
    return Options(
        nodes=nodes, depth=depths, widths=widths, expected_tokens=tokens, upper_tokens=upper, makers=tuple(makers)
    )


def _maker(family: Family, nodes: int) -> Callable[[], DraftTree]:
    return lambda: family.tree(nodes)


def _chain_maker(depth: int) -> Callable[[], DraftTree]:
    return lambda: DraftTree.chain(depth)
