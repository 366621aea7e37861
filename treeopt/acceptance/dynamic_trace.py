"""What a dynamic tree would have accepted on a recorded trace, dynamic by dynamic.

A trace holds, at each position, the drafter's confidence in its K best guesses along the true path: below the right
guesses, never below the wrong ones. The nodes below wrong guesses compete with the true path for beams and for the
N - 1 verified places, so what the engine would have accepted is known only between two bounds:

* `upper`: below wrong guesses the drafter is so unsure that nothing there competes. Only the recorded siblings do.
* `lower`: below a wrong guess of confidence c the drafter spreads its mass so that as many nodes as possible beat the
  true path's node of confidence v: floor(c / v) at each deeper level.
* `estimate`: below a wrong guess the drafter is as sure, depth by depth, as below the right one. The engine's rule is
  then run to the letter on each position's own [D, K] table. Parallel heads (Medusa) are exactly like that, for they
  never see the path; for a drafter that does see it this is an assumption. If it is less sure after wrong guesses
  than after right ones, the truth lies between estimate and upper.

Ties of confidence go to the lower number in the engine's numbering (to the true path in `upper`, against it in
`lower`). Triples of more than K guesses are not valued: nothing was recorded of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.dynamic_tree import DynamicTreeCaps
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.replay import Replay, replay, replay_accepted
from treeopt.acceptance.trace import Trace
from treeopt.arrays import FloatArray, IntArray
from treeopt.draft_family import MAX_TOPK, DynamicTree, pool_size
from treeopt.errors import InputError
from treeopt.tree import DraftTree

_CHUNK_CELLS: Final = 1 << 22
_NEVER: Final = np.iinfo(np.int32).max

Places = npt.NDArray[np.int32]


class Assumption(StrEnum):
    """What the drafter is taken to think below wrong guesses (see the module)."""

    LOWER = "lower"
    ESTIMATE = "estimate"
    UPPER = "upper"


_BELOW: Final = {
    Assumption.LOWER: "as much in the way as it can be",
    Assumption.ESTIMATE: "as sure as below right ones, depth by depth",
    Assumption.UPPER: "too unsure to matter",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceValues:
    """E of every dynamic tree on a trace, positions weighted by `weight [T]` (None: all recorded to depth D alike).

    `limits` are what the trace reaches; see `TraceValues.of`.
    """

    trace: Trace
    limits: DynamicTreeCaps
    assumption: Assumption = Assumption.ESTIMATE
    weight: FloatArray | None = None
    _tables: dict[int, list[Places]] = field(default_factory=dict, repr=False)
    """By k: one pass over the trace serves all S and N, and all weights."""

    @classmethod
    def of(cls, trace: Trace, limits: DynamicTreeCaps, *, assumption: Assumption = Assumption.ESTIMATE) -> TraceValues:
        """The values within limits, no deeper and no wider than the trace records confidence.

        Raises:
            EvidenceError: the trace has no `topk_prob`.
        """
        if trace.topk_prob is None:
            raise EvidenceError(
                "the trace has no 'topk_prob' [T, D, K]",
                keys=("topk_prob",),
                hint="record the drafter's probabilities of its best guesses to value a dynamic tree",
            )
        within = limits.within(depth=trace.depth, ranks=trace.topk_prob.shape[2])
        return cls(trace=trace, limits=within, assumption=assumption)

    @property
    def basis(self) -> str:
        """What the values rest on, in a few words for a report."""
        return f"from recorded confidence; below wrong guesses the drafter is taken to be {_BELOW[self.assumption]}"

    def tokens(self, steps: int, topk: int) -> FloatArray:
        """`[limits.num_draft_tokens + 1]` E by N (see `DynamicTreeValues`)."""
        weight = self.trace.complete.astype(np.float64) if self.weight is None else self.weight
        size = self.limits.num_draft_tokens + 1
        tokens = np.concatenate([[0.0], np.ones(size - 1)])
        for needed in self._needed(topk)[steps - 1].T:
            by_size = np.bincount(np.minimum(needed, size), weight, size + 1)[:size]
            tokens += np.cumsum(by_size) / weight.sum()
        return tokens

    def accepted(self, draft: DynamicTree) -> IntArray:
        """`[T]` true tokens that the tree holds at each position."""
        needed = self._needed(draft.topk)[draft.num_steps - 1]
        return np.asarray((needed <= draft.num_draft_tokens).sum(axis=1), dtype=np.int64)

    def replay(self, draft: DynamicTree) -> Replay:
        """What a decoder gets: drafts start where the last one ended."""
        return replay_accepted(self.trace, self.accepted(draft))

    def weighted(self, weight: npt.NDArray[np.floating | np.integer]) -> TraceValues:
        """The same with positions weighted by `[T]`."""
        return replace(self, weight=weight.astype(np.float64))

    def _needed(self, topk: int) -> list[Places]:
        if not 1 <= topk <= self.limits.topk:
            raise InputError(f"{topk} guesses, the trace records {self.limits.topk}", hint="record more guesses")
        if topk not in self._tables:
            self._tables[topk] = _needed(self.trace, self.limits.num_steps, topk, self.assumption)
        return self._tables[topk]


@dataclass(frozen=True, kw_only=True)
class DynamicGain:
    """A static tree's replay beside the two answers for a dynamic tree of as many nodes (see the module)."""

    nodes: int
    static: Replay
    estimate: Replay
    upper: Replay

    @property
    def gain(self) -> float:
        """Tokens per step of the estimate over those of the static tree, minus 1: 2.2 over 2.0 gains 0.1."""
        return self.estimate.tokens_per_step / self.static.tokens_per_step - 1.0

    @property
    def gain_upper(self) -> float:
        """The same of the upper answer, over all positions: in a replay, accepting more can lead to harder starts."""
        return self.upper.all_position_tokens / self.static.all_position_tokens - 1.0


def dynamic_gain(trace: Trace, tree: DraftTree) -> DynamicGain:
    """What the dynamic tree of as many nodes would gain over a tree, as deep and wide as the trace records confidence.

    Raises:
        EvidenceError: the trace has no `topk_prob`.
        InputError: it cannot be replayed with the tree.
    """
    nodes = max(len(tree), 2)
    values = {
        end: TraceValues.of(
            trace, DynamicTreeCaps(num_steps=trace.depth, topk=MAX_TOPK, num_draft_tokens=nodes), assumption=end
        )
        for end in (Assumption.ESTIMATE, Assumption.UPPER)
    }
    limits = values[Assumption.ESTIMATE].limits
    steps, topk = limits.num_steps, limits.topk
    widest = DynamicTree(steps, topk, min(nodes, pool_size(steps, topk) + 1))
    replays = {end: found.replay(widest) for end, found in values.items()}
    static = replay(trace, tree)
    if len(tree) == 1:
        return DynamicGain(nodes=1, static=static, estimate=static, upper=static)
    return DynamicGain(
        nodes=len(tree), static=static, estimate=replays[Assumption.ESTIMATE], upper=replays[Assumption.UPPER]
    )


def _needed(trace: Trace, steps: int, topk: int, assumption: Assumption) -> list[Places]:
    """For each S, `[T, S]` the smallest N with which the true path is verified to that depth; `_NEVER` if with none."""
    assert trace.topk_prob is not None
    found = [np.full((len(trace), s), _NEVER, dtype=np.int32) for s in range(1, steps + 1)]
    cells = topk**2 * steps**2 if assumption is Assumption.ESTIMATE else topk * steps**2
    chunk = max(_CHUNK_CELLS // cells, 1)
    for start in range(0, len(trace), chunk):
        rows = slice(start, start + chunk)
        rank = trace.rank[rows, :steps].astype(np.int64)
        prob = trace.topk_prob[rows, :steps, :topk].astype(np.float64)
        by_steps = _estimated(rank, prob) if assumption is Assumption.ESTIMATE else _bounded(rank, prob, assumption)
        for needed, places in zip(found, by_steps, strict=True):
            needed[rows] = np.maximum.accumulate(places, axis=1)  # a node needs its ancestors too
    return found


def _estimated(rank: IntArray, prob: FloatArray) -> Iterator[IntArray]:
    """For each S, `[n, S]` N that each true node needs by itself, from ranks `[n, S_max]`, guesses `[n, S_max, k]`.

    All nodes of a depth have the same guesses, so the engine's rule is a beam search over one table per row.
    """
    n, steps, topk = prob.shape
    value = np.full((n, steps), -1.0)  # confidence of the true node, -1 where it was not even a candidate
    ahead = np.zeros((n, steps), dtype=np.int64)
    beams = np.ones((n, 1))
    above = np.zeros((n, 0))  # candidates of the levels so far
    slot = np.zeros(n, dtype=np.int64)  # the true node's slot among the beams, -1 once it has left them
    for step in range(steps):
        level = (beams[:, :, None] * prob[:, step, None, :]).reshape(n, -1)
        own = np.where((slot >= 0) & (rank[:, step] >= 0) & (rank[:, step] < topk), slot * topk + rank[:, step], -1)
        at = np.maximum(own, 0)[:, None]
        value[:, step] = np.where(own >= 0, np.take_along_axis(level, at, axis=1)[:, 0], -1.0)
        for depth in range(step):  # candidates of a deeper level come later in the numbering: ties are not ahead
            ahead[:, depth] += (level > value[:, depth, None]).sum(axis=1)
        before = np.arange(level.shape[1]) < own[:, None]
        same = value[:, step, None]
        same_level = ((level > same) | ((level == same) & before)).sum(axis=1)
        ahead[:, step] = same_level + (above >= same).sum(axis=1)  # of smaller depth: among equals they come first
        yield np.where(value[:, : step + 1] >= 0, ahead[:, : step + 1] + 2, _NEVER)
        order = np.argsort(-level, axis=1, kind="stable")[:, :topk]
        beams = np.take_along_axis(level, order, axis=1)
        slot = np.where((own >= 0) & (same_level < topk), same_level, -1)
        above = np.concatenate([above, level], axis=1)


def _bounded(rank: IntArray, prob: FloatArray, assumption: Assumption) -> Iterator[IntArray]:
    """The same from the recorded siblings alone, and with at most or at least what can hang below them."""
    n, steps, topk = prob.shape
    lower = assumption is Assumption.LOWER
    listed = (rank >= 0) & (rank < topk)
    own = np.where(listed, rank, 0)[:, :, None]
    value = np.cumprod(np.take_along_axis(prob, own, axis=2)[:, :, 0], axis=1)
    beside = prob * np.concatenate([np.ones((n, 1)), value[:, :-1]], axis=1)[:, :, None]
    np.put_along_axis(beside, own, -1.0, axis=2)
    reached = np.cumprod(listed, axis=1).astype(np.bool_)
    siblings = np.zeros(
        (n, steps), dtype=np.int64
    )  # that come before the true node of that depth, at its depth or above
    below = np.zeros((n, steps, steps), dtype=np.int64)  # [n, depth, above]: more of them on each level under `above`
    in_beam = np.ones((n, steps), dtype=np.bool_)
    for depth in range(steps):
        v = value[:, depth, None]
        crowd = np.zeros(n, dtype=np.int64)
        for above in range(depth + 1):
            wrong = beside[:, above]
            before = wrong >= v if lower else wrong > v
            # A sibling of better rank comes first, however close its confidence.
            ahead = np.maximum(before.sum(axis=1), own[:, above, 0])
            siblings[:, depth] += ahead
            if lower:
                below[:, depth, above] = _most_below(wrong, v, before)
                crowd += below[:, depth, above] if above < depth else ahead
        in_beam[:, depth] = crowd < topk
    alive = np.concatenate([np.ones((n, 1), dtype=np.bool_), np.cumprod(in_beam, axis=1).astype(np.bool_)], axis=1)
    for total in range(1, steps + 1):
        levels = total - 1 - np.arange(steps)  # that lie under each depth
        places = np.arange(total) + siblings[:, :total] + below[:, :total] @ np.maximum(levels, 0)
        yield np.where(reached[:, :total] & alive[:, :total], places + 2, _NEVER)


def _most_below(
    wrong: npt.NDArray[np.floating], v: npt.NDArray[np.floating], before: npt.NDArray[np.bool_]
) -> IntArray:
    """`[n]` the most nodes of one level under wrong guesses `[n, k]` that can have confidence v: their mass allows."""
    most = np.divide(wrong, v, out=np.zeros_like(wrong), where=before & (v > 0.0))
    # Float error must not turn a tie into a miss; a level has no more than k^2 candidates.
    most = np.where(before & (v <= 0.0), np.inf, np.floor(most * (1.0 + 1e-12)))
    return np.asarray(np.minimum(most.sum(axis=1), wrong.shape[1] ** 2), dtype=np.int64)
