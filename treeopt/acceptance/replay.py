"""Replay: the tokens per step that a decoder really gets from a draft tree on a recorded trace.

A decoder starts a draft, accepts along the tree, emits the accepted tokens and the bonus, and starts again behind
them. It jumps over what was easy to predict, so its drafts start at harder positions than the average one and the
mean over all positions flatters the tree (`ALL_POSITIONS_FLATTER`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.paths import MAX_RANKS
from treeopt.acceptance.trace import Trace, Walk
from treeopt.arrays import IntArray
from treeopt.errors import InputError
from treeopt.tree import DraftTree

# Least and most of the column "all positions" of docs/acceptance.md.
ALL_POSITIONS_FLATTER: Final = "counted over all positions, which puts E 0.2 to 7.5 % above what a decoder gets"


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """What a replay emitted and how many steps it took, per document, so that intervals need no second pass.

    Args:
        phases: how many start phases the sums run over.
        tokens: `[documents]` tokens emitted by the replayed steps.
        steps: `[documents]` replayed steps.
        position_tokens: `[documents]` tokens if a draft started at every position that can be replayed.
        positions: `[documents]` those positions.
    """

    phases: int
    tokens: IntArray
    steps: IntArray
    position_tokens: IntArray
    positions: IntArray

    @property
    def tokens_per_step(self) -> float:
        """E as a decoder gets it."""
        return float(self.tokens.sum() / self.steps.sum())

    @property
    def all_position_tokens(self) -> float:
        """E if every position were equally likely to start a draft; only for comparison with other tools."""
        return float(self.position_tokens.sum() / self.positions.sum())

    @property
    def steps_per_phase(self) -> float:
        """Steps of one pass over the trace."""
        return float(self.steps.sum() / self.phases)


def replay(trace: Trace, tree: DraftTree) -> Replay:
    """Decode the trace with the tree from each of the first D positions of every document, D the trace's depth.

    Steps count where the trace is recorded to depth D. Whether a step counts depends on where it starts and not on
    what it accepts, so the end of a document causes no bias (Wald's identity); and since the rule does not depend on
    the tree, every tree is scored on the same positions.

    Raises:
        InputError: the tree is deeper than the trace, or no document is longer than D.
    """
    return replay_accepted(trace, accepted_lengths(trace.rank, tree))


def replay_accepted(trace: Trace, accepted: IntArray) -> Replay:
    """The replay of `[T]` accepted lengths, however they came about (see `replay`)."""
    _must_be_long_enough(trace)
    sums = np.zeros((4, trace.documents), dtype=np.int64)
    for walk in trace.walks:
        tokens = accepted[walk.rows].astype(np.int64) + 1
        starts, complete = _visits(walk, tokens), walk.begun[:-1]
        counted: tuple[npt.NDArray[Any], ...] = (starts * tokens, starts, tokens * complete, complete)
        for total, values in zip(sums, counted, strict=True):
            total[walk.numbers] = np.add.reduceat(values, walk.firsts, dtype=np.int64)
    emitted, steps, position_tokens, positions = sums
    return Replay(phases=trace.depth, tokens=emitted, steps=steps, position_tokens=position_tokens, positions=positions)


def accepted_lengths(rank: npt.NDArray[np.integer], tree: DraftTree) -> IntArray:
    """`[T, D]` recorded ranks to `[T]` depth of the deepest node on the recorded path.

    Raises:
        InputError: the tree is deeper than D.
    """
    if tree.depth > rank.shape[1]:
        raise InputError(
            f"the tree is {tree.depth} tokens deep, the trace records {rank.shape[1]}",
            hint=f"cap the tree with --max-depth {rank.shape[1]}, or record a deeper trace",
        )
    width = int(tree.ranks.max()) + 1
    child = np.full((len(tree), width + 1), -1)  # the last column, for every other rank, has no node
    child[tree.parents[1:], tree.ranks[1:]] = np.arange(1, len(tree))
    deepest = np.zeros(len(rank), dtype=np.int64)
    row = np.arange(len(rank))
    node = np.zeros(len(rank), dtype=np.int64)
    for depth in range(tree.depth):
        guess = rank[row, depth]
        node = child[node, np.where((guess >= 0) & (guess < width), guess, width)]
        row, node = row[node >= 0], node[node >= 0]
        deepest[row] = node
    return np.asarray(tree.depths[deepest])


def accepted_on(trace: Trace, tree: DraftTree) -> IntArray:
    """`[T]` what `accepted_lengths` says of a trace's rows, by the trie of its paths, which holds ranks below 254."""
    if int(tree.ranks.max()) >= MAX_RANKS or tree.depth > trace.depth:
        return accepted_lengths(trace.rank, tree)
    trie, row = trace.paths
    return np.asarray(trie.accepted(tree).astype(np.int16)[row])


def draft_starts(trace: Trace, accepted: IntArray) -> npt.NDArray[np.int32]:
    """`[T]` how many of the D start phases begin a draft at each position, given the `[T]` accepted lengths.

    Every position has one successor, so with P the matrix of jumps the visits are (1 + P + P^2 + ...) s for the first
    positions s. Many documents of like length are walked side by side; else the sum is factored into
    (1 + P)(1 + P^2)(1 + P^4)...: as many passes as the longest document has doublings, not as it has steps.

    Raises:
        EvidenceError: no document is longer than D.
    """
    _must_be_long_enough(trace)
    found = np.empty(len(trace), dtype=np.int32)
    for walk in trace.walks:
        found[walk.rows] = _visits(walk, accepted[walk.rows] + 1)
    return found


def _must_be_long_enough(trace: Trace) -> None:
    if not any(walk.begun.any() for walk in trace.walks):
        raise EvidenceError(
            f"no document is longer than the {trace.depth} recorded depths",
            keys=(),
            hint="record longer documents, or fewer depths",
        )


def _visits(walk: Walk, tokens: IntArray) -> npt.NDArray[np.int32]:
    """`[n]` how many phases start a draft at each row of a block, given the `[n]` tokens that a draft there emits."""
    return _side_by_side(walk, tokens) if walk.is_wide else _doubled(walk, tokens)


def _side_by_side(walk: Walk, tokens: IntArray) -> npt.NDArray[np.int32]:
    """All documents of the block at once, position by position: two operations for each position of the longest."""
    begun, depth = walk.begun[:-1], walk.depth
    kind = np.int8 if depth < np.iinfo(np.int8).max else np.int16  # visits are at most D, jumps D + 1
    step = walk.spread(np.where(begun, tokens, 0).astype(kind))  # where no draft begins, none goes on
    (documents, length), most = step.shape, int(step.max())
    jumps = (np.ascontiguousarray(step.T)[:, None, :] == np.arange(1, most + 1, dtype=kind)[:, None]).view(np.int8)
    visits = np.zeros((length + max(most, depth), documents), dtype=kind)
    visits[:depth] = 1
    for at in range(length):
        visits[at + 1 : at + 1 + most] += visits[at] * jumps[at]
    return np.where(begun, walk.gathered(visits[:length].T), 0).astype(np.int32)


def _doubled(walk: Walk, tokens: IntArray) -> npt.NDArray[np.int32]:
    """As many passes over the block as its longest document has doublings (see `draft_starts`)."""
    n = len(tokens)
    after = np.arange(n) + tokens
    after = np.where(after < walk.end, after, n)
    jump = np.append(np.where(walk.begun[after], after, n), n)
    visits = walk.starts.astype(np.float64)
    while True:
        arriving = np.bincount(jump, visits, n + 1)
        arriving[n] = 0.0
        if not arriving.any():
            return visits[:n].astype(np.int32)  # whole numbers of at most D
        visits += arriving
        jump = jump[jump]
