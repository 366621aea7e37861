"""Drafting: a tree is filled level by level, one call of the drafter per depth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from treeopt.arrays import FloatArray, IntArray
from treeopt.decode.batch import NOTHING, TreeBatch
from treeopt.decode.draws import Draws, draw_siblings
from treeopt.decode.guesses import Guesses
from treeopt.decode.rules import Siblings


@dataclass(frozen=True, kw_only=True, eq=False)
class DraftLevel:
    """What a drafter is asked at one depth: n nodes of B requests, those of a request together.

    Args:
        rows: `[B]` a number that a request keeps from step to step, for drafters that remember.
        texts: `[B]` committed tokens; the last one is the root.
        tokens: `[B, N]` the tokens of the nodes that earlier levels guessed, -1 for the others.
        depth: of the nodes.
        request: `[n]` index of each node's request in the batch.
        node: `[n]`.
    """

    rows: IntArray
    texts: Sequence[Sequence[int]]
    trees: TreeBatch
    tokens: IntArray
    depth: int
    request: IntArray
    node: IntArray

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.node)

    def path(self, index: int) -> list[int]:
        """The draft tokens from behind the root to a node."""
        b, node = int(self.request[index]), int(self.node[index])
        ancestors = np.flatnonzero(self.trees.trees[b].ancestor_mask[node])[1:]
        return [int(token) for token in self.tokens[b, ancestors]]

    def text(self, index: int) -> list[int]:
        """All tokens before a node's children."""
        return [*self.texts[int(self.request[index])], *self.path(index)]


class TextDrafter(Protocol):
    """What guesses along a finished text: all that is needed to record its ranks."""

    def along(self, tokens: IntArray, *, first: int, depth: int) -> Iterable[Guesses]:
        """What it would have guessed for a text, given the text before each token.

        The text's draft starts have their roots at `tokens[first - 1]` and after it. The d-th element of the result
        holds the guesses at depth d, one for each root whose d-th token after it is there: for
        `tokens[first + d - 1:]`. A drafter whose guess depends on the tokens before it alone, and not on where in a
        draft it stands, gives one element for all depths.
        """


class TreeDrafter(Protocol):
    """What drafts trees: anything that guesses what follows the nodes of a level."""

    def guesses(self, level: DraftLevel) -> Guesses:
        """Guesses for the level's nodes, in their order; called once per depth, from depth 0 on."""


class Drafter(TextDrafter, TreeDrafter, Protocol):
    """What does both, and answers the same."""


class DraftedTokens(NamedTuple):
    """`tokens [B, N]` of a batch of trees, -1 where the drafter had no guess, and `q [B, N, V]` if they were drawn."""

    tokens: IntArray
    q: FloatArray | None


def draft(
    drafter: TreeDrafter,
    trees: TreeBatch,
    texts: Sequence[Sequence[int]],
    *,
    rows: IntArray,
    siblings: Siblings = Siblings.BEST,
    draws: Draws | None = None,
) -> DraftedTokens:
    """Fill the trees behind the texts, whose last tokens are the roots.

    The best guesses go to the nodes by rank. Draws go to the siblings in the order in which they were drawn, which is
    the order in which recursive rejection offers them.
    """
    tokens = np.full((len(trees), trees.nodes), NOTHING)
    tokens[:, 0] = [text[-1] for text in texts]
    q: FloatArray | None = None
    expanded = (trees.children >= 0).any(axis=2) if trees.children.shape[2] else np.zeros(tokens.shape, dtype=np.bool_)
    for depth in range(trees.depth):
        request, node = np.nonzero(expanded & (trees.depths == depth))
        level = DraftLevel(
            rows=rows, texts=texts, trees=trees, tokens=tokens.copy(), depth=depth, request=request, node=node
        )
        found = drafter.guesses(level)
        if siblings is Siblings.BEST:
            _place_best(tokens, level, found)
            continue
        law = found.distribution()
        if q is None:
            q = np.zeros((*tokens.shape, law.shape[1]))
        q[request, node] = law
        _place_drawn(tokens, level, law, draws, replacement=siblings is Siblings.INDEPENDENT)
    return DraftedTokens(tokens, q)


def _place_best(tokens: IntArray, level: DraftLevel, found: Guesses) -> None:
    trees = [level.trees.trees[b] for b in level.request]
    widest = max(int(tree.ranks[list(tree.children[n])].max()) for tree, n in zip(trees, level.node, strict=True))
    top = found.top(widest + 1)
    for i, (b, tree, node) in enumerate(zip(level.request, trees, level.node, strict=True)):
        if tokens[b, node] != NOTHING:  # nothing follows a guess that is not there
            kids = list(tree.children[node])
            tokens[b, kids] = top[i, tree.ranks[kids]]


def _place_drawn(
    tokens: IntArray, level: DraftLevel, law: FloatArray, draws: Draws | None, *, replacement: bool
) -> None:
    if draws is None:
        raise ValueError("drawn siblings need 'draws'")
    kids = level.trees.children[level.request, level.node]
    drawn = draw_siblings(law, kids.shape[1], draws, replacement=replacement)
    there = (kids >= 0) & (tokens[level.request, level.node] != NOTHING)[:, None]
    index, place = np.nonzero(there)
    tokens[level.request[index], kids[index, place]] = drawn[index, place]
