"""One forward pass over new tokens of several requests: which tokens, where they stand, and what each one sees.

Slots of a request's cache: its committed tokens lie at 0..L-1, the new ones are written behind them, so node i of a
tree lies at L + i. A node's position is L + depth, whatever its slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.arrays import BoolArray, IntArray
from treeopt.decode.batch import TreeBatch
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True, eq=False)
class ForwardBatch:
    """What a target or a drafter runs over: A requests with at most M new tokens each.

    Args:
        rows: `[A]` the request's row in the cache.
        starts: `[A]` L, the slots in use; token i is written to slot `starts + i`.
        counts: `[A]` new tokens; those behind them are padding.
        tokens: `[A, M]`, padded with 0.
        positions: `[A, M]` position ids.
        mask: `[A, M, S]` what each token attends to, S slots; padding sees itself.
        trees: the trees whose nodes the tokens are, or None for text and for parts of trees.
    """

    rows: IntArray
    starts: IntArray
    counts: IntArray
    tokens: IntArray
    positions: IntArray
    mask: BoolArray
    trees: TreeBatch | None = None

    @property
    def slots(self) -> int:
        """S, the slots that the pass reads and writes."""
        return int(self.mask.shape[2])


def tree_step(trees: TreeBatch, tokens: IntArray, *, lengths: IntArray, rows: IntArray) -> ForwardBatch:
    """The step that verifies a tree per request: `tokens [A, N]` behind `lengths [A]` committed tokens."""
    step = _blank(rows=rows, starts=lengths, counts=np.array([len(tree) for tree in trees.trees]), trees=trees)
    for a, (tree, length) in enumerate(zip(trees.trees, lengths.tolist(), strict=True)):
        n = len(tree)
        step.tokens[a, :n] = np.maximum(tokens[a, :n], 0)
        step.positions[a, :n] = tree.positions(length)
        step.mask[a, :n, : length + n] = tree.step_mask(length)
    return step


def text_step(texts: Sequence[Sequence[int]], *, lengths: IntArray, rows: IntArray) -> ForwardBatch:
    """The step that appends plain text: token i behind `lengths [A]` tokens sees them and the text up to itself."""
    step = _blank(rows=rows, starts=lengths, counts=np.array([len(text) for text in texts]))
    for a, (text, length) in enumerate(zip(texts, lengths.tolist(), strict=True)):
        n = len(text)
        step.tokens[a, :n] = text
        step.positions[a, :n] = length + np.arange(n)
        step.mask[a, :n, : length + n] = np.tri(n, length + n, length, dtype=np.bool_)
    return step


def nodes_step(
    trees: TreeBatch,
    tokens: IntArray,
    nodes: Sequence[Sequence[int]],
    slots: Sequence[Sequence[int]],
    *,
    lengths: IntArray,
    starts: IntArray,
    rows: IntArray,
) -> ForwardBatch:
    """The step of a drafter: some nodes of one level, behind the ancestors that earlier levels wrote.

    Args:
        nodes: `[A]` lists of the nodes to run.
        slots: `[A]` slot of every node that was run before, by node; the root has the last of the committed slots.
        lengths: `[A]` committed tokens, the root included.
        starts: `[A]` slots in use.
    """
    step = _blank(rows=rows, starts=starts, counts=np.array([len(run) for run in nodes]))
    for a, run in enumerate(nodes):
        length, start = int(lengths[a]), int(starts[a])
        for i, node in enumerate(run):
            ancestors = np.flatnonzero(trees.trees[a].ancestor_mask[node])[:-1]
            step.tokens[a, i] = max(int(tokens[a, node]), 0)
            step.positions[a, i] = length - 1 + trees.depths[a, node]
            step.mask[a, i, :length] = True
            step.mask[a, i, [slots[a][ancestor] for ancestor in ancestors]] = True
            step.mask[a, i, start + i] = True
    return step


def prune(tree: DraftTree, remaining: int) -> DraftTree:
    """The nodes that can still be emitted when `remaining` tokens are left: the last of them is the bonus."""
    if tree.depth < remaining:
        return tree
    return DraftTree(tuple(path for path in tree.paths if len(path) < remaining))


def _blank(*, rows: IntArray, starts: IntArray, counts: IntArray, trees: TreeBatch | None = None) -> ForwardBatch:
    A, M = len(rows), int(counts.max(initial=1))
    S = int((starts + M).max(initial=M))
    mask = np.zeros((A, M, S), dtype=np.bool_)
    own = np.arange(M)
    for a, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        mask[a, own[count:], start + own[count:]] = True  # a row that sees nothing has no softmax
    zeros = np.zeros((A, M), dtype=np.int64)
    return ForwardBatch(
        rows=rows, starts=starts, counts=counts, tokens=zeros, positions=zeros.copy(), mask=mask, trees=trees
    )
