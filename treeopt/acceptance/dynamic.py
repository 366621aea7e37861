"""Static or dynamic: what a tree that the drafter's confidence picks anew in every step would gain.

EAGLE-2 (Li et al. 2024, section 4) ranks all drafted nodes by the product of the drafter's own probabilities along
the path and verifies the N - 1 best. A trace records those probabilities along the true path only: what the drafter
thinks below its right guesses, not what it would think below its wrong ones. The true path is verified as far as its
nodes are among the best, and nodes below wrong guesses compete with it for places. So there are two answers:

* `upper`: nothing competes below wrong guesses. No drafter that thinks this below its right guesses accepts more.
* `estimate`: below a wrong guess the drafter is as sure, depth by depth, as it is below the right one. That is exact
  for parallel heads (Medusa), which never see the path. For a drafter that does it is an assumption: if it is less
  sure below wrong guesses, they take fewer places, and the truth lies between estimate and upper.

Both share one more assumption, for want of a record: the confidence that the K recorded ranks leave is spread over
the ranks behind them as right guesses are. A trace with K as large as its listed ranks does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.model import non_increasing
from treeopt.acceptance.replay import Replay, replay, replay_accepted
from treeopt.acceptance.trace import Trace
from treeopt.arrays import FloatArray, IntArray
from treeopt.tree import DraftTree

_CHUNK_CELLS = 1 << 23


@dataclass(frozen=True, kw_only=True)
class DynamicGain:
    """A static tree's replay beside the two answers for a dynamic tree of as many nodes."""

    nodes: int
    static: Replay
    estimate: Replay
    upper: Replay

    @property
    def gain(self) -> float:
        """Tokens per step of the estimate over those of the static tree, minus 1."""
        return self.estimate.tokens_per_step / self.static.tokens_per_step - 1.0

    @property
    def gain_upper(self) -> float:
        """The same of the upper answer, over all positions: in a replay, accepting more can lead to harder starts."""
        return self.upper.all_position_tokens / self.static.all_position_tokens - 1.0


def dynamic_gain(trace: Trace, tree: DraftTree) -> DynamicGain:
    """What EAGLE-2's rule would gain over the tree with as many nodes, on a trace with `topk_prob`.

    Raises:
        InputError: the trace has no `topk_prob`, or cannot be replayed with the tree.
    """
    if trace.topk_prob is None:
        raise EvidenceError(
            "the trace has no 'topk_prob' [T, D, K]",
            keys=("topk_prob",),
            hint="record the drafter's probabilities of its best guesses to judge a dynamic tree",
        )
    drafted = len(tree) - 1
    tail = _tail(trace.rank, trace.topk_prob.shape[2])
    estimate, upper = np.zeros((2, len(trace)), dtype=np.int64)
    chunk = max(_CHUNK_CELLS // (trace.topk_prob[0].size + tail.size + 8 * drafted), 1)
    for start in range(0, len(trace), chunk):
        rows = slice(start, start + chunk)
        rank, prob = trace.rank[rows], _extended(trace.topk_prob[rows].astype(np.float64), tail)
        upper[rows] = _accepted(rank, prob, drafted)
        estimate[rows] = _accepted(rank, prob, drafted, at_least=_last_verified(prob, drafted))
    return DynamicGain(
        nodes=len(tree),
        static=replay(trace, tree),
        estimate=replay_accepted(trace, estimate),
        upper=replay_accepted(trace, upper),
    )


def _tail(rank: npt.NDArray[np.integer], recorded: int) -> FloatArray:
    """`[D, R - K]` how right guesses beyond the K recorded ranks are spread over the other listed ones, by depth."""
    beyond = (rank >= recorded) | (rank == -1)
    unrecorded = np.arange(recorded, max(int(rank.max()) + 1, recorded))
    counts = np.array([[(guess == r).sum() for r in unrecorded] for guess in rank.T])
    return non_increasing(counts / np.maximum(beyond.sum(axis=0), 1)[:, None])


def _extended(prob: FloatArray, tail: FloatArray) -> FloatArray:
    """`[n, D, R]` the recorded probabilities `[n, D, K]` and what they leave, dealt out by the tail."""
    left = np.maximum(1.0 - prob.sum(axis=2, keepdims=True), 0.0)
    return np.concatenate([prob, np.minimum(left * tail, prob[:, :, -1:])], axis=2)


def _accepted(
    rank: npt.NDArray[np.integer], prob: FloatArray, drafted: int, *, at_least: FloatArray | float = 0.0
) -> IntArray:
    """`[n]` how deep the true path is verified, from its ranks `[n, D]` and the candidates beside it `[n, D, R]`.

    A node on the path needs a place for itself, for its ancestors, and for every candidate beside one of them that
    has more confidence than the node or a better rank than that ancestor. Its own confidence must reach `at_least
    [n]`. Ties are decided for the path.
    """
    n, D, R = prob.shape
    own = np.clip(rank, 0, R - 1).astype(np.int64)[:, :, None]
    value = np.cumprod(np.take_along_axis(prob, own, axis=2)[:, :, 0], axis=1)
    beside = prob * np.concatenate([np.ones((n, 1)), value[:, :-1]], axis=1)[:, :, None]
    np.put_along_axis(beside, own, -1.0, axis=2)
    accepted = np.zeros(n, dtype=np.int64)
    for depth in range(D):
        known = slice(0, depth + 1)
        ahead = (beside[:, known] > value[:, depth, None, None]).sum(axis=2)
        places = depth + 1 + np.maximum(ahead, rank[:, known]).sum(axis=1)
        verified = (rank[:, depth] >= 0) & (places <= drafted) & (value[:, depth] >= at_least)
        accepted += verified & (accepted == depth)
    return accepted


def _last_verified(prob: FloatArray, drafted: int) -> FloatArray:
    """`[n]` confidence of the last of the best nodes, if all nodes of a depth have the same candidates `[n, D, R]`."""
    n, D, R = prob.shape
    # With both sorted, candidate j of node i has (i + 1)(j + 1) - 1 products before it.
    node, candidate = np.nonzero(np.outer(np.arange(1, drafted + 1), np.arange(1, R + 1)) <= drafted)
    level = np.zeros((n, max(drafted, 1)))
    level[:, 0] = 1.0
    best = np.zeros_like(level)
    for depth in range(D):
        products = np.concatenate([level[:, node] * prob[:, depth, candidate], np.zeros_like(level)], axis=1)
        level = _largest(products, level.shape[1])
        best = _largest(np.concatenate([best, level], axis=1), level.shape[1])
    return np.asarray(best[:, -1])


def _largest(values: FloatArray, count: int) -> FloatArray:
    """`[n, count]` the largest of each row, sorted down."""
    return -np.sort(-values, axis=1)[:, :count]
