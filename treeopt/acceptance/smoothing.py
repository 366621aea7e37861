"""f for every path from sparse path counts: Dirichlet back-off from the path to its parent's rank to its depth.

For a path v with last rank q at depth d, t(v) trials and c(vr) successes of rank r:

    P_d(r)    = C_d(r) / T_d                                     over all paths of depth d, non-increasing in r
    P_dq(r)   = (C_dq(r) + a_d P_d(r)) / (T_dq + a_d)            over all paths of depth d that end in rank q
    P(r | v)  = (c(vr)   + b_d P_dq(r)) / (t(v) + b_d)           this path alone, then made non-increasing in r

This is the hierarchical Dirichlet estimator of MacKay and Peto (1995, "A hierarchical Dirichlet language model", eq.
23) with two levels of back-off. The strengths a_d, b_d (prior observations) maximise the leave-one-out likelihood, as
Zhai and Lafferty (2002, "Two-stage language models for information retrieval", section 4.1) do; "none of the ranks"
counts as an outcome of its own, so a row sums to at most 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from treeopt.acceptance.model import non_increasing
from treeopt.acceptance.paths import PathCounts
from treeopt.arrays import FloatArray, IntArray

# Prior observations to choose among: from "trust a single count" to "the path tells nothing new".
_STRENGTHS = 2.0 ** np.arange(-2, 21)


@dataclass(frozen=True)
class SmoothedPaths:
    """The path model of a trie of counts (see `PathModel` and this module's estimator).

    The strengths of another estimate of the same drafter's acceptance, `like`, are taken where there are any: those of
    all positions serve the few at which one draft's drafts start.
    """

    counts: PathCounts
    like: SmoothedPaths | None = None
    _priors: dict[int, _Prior] = field(default_factory=dict, compare=False, repr=False)

    product_form = False

    @property
    def depth(self) -> int:
        """Deepest counted path."""
        return self.counts.depth

    @property
    def ranks(self) -> int:
        """K of the counts."""
        return self.counts.ranks

    def conditional(self, paths: IntArray) -> FloatArray:
        """The estimator's row for every path, counted or not."""
        n, depth = paths.shape
        prior = self._prior(depth)
        node = self.counts.find(paths)
        last = paths[:, -1] if depth else np.zeros(n, dtype=np.int64)
        return non_increasing(
            _posterior(
                self.counts.child_counts(depth, node),
                self.counts.node_trials(depth, node),
                prior.rows[last],
                prior.node_strength,
            )
        )

    def _prior(self, depth: int) -> _Prior:
        if depth not in self._priors:
            like = None if self.like is None or depth >= self.like.depth else self.like._prior(depth)
            self._priors[depth] = _prior(self.counts, depth, like)
        return self._priors[depth]


@dataclass(frozen=True, kw_only=True)
class _Prior:
    """What a path of one depth backs off to: `rows [K, K]` by its last rank (one row at the root), and how strongly."""

    rows: FloatArray
    rank_strength: float
    node_strength: float


def _prior(counts: PathCounts, depth: int, like: _Prior | None) -> _Prior:
    size = 1 if depth == 0 else len(counts.levels[depth - 1].rank)
    nodes, K, below = np.arange(size), counts.ranks, counts.levels[depth]
    trials = counts.node_trials(depth, nodes)
    seen = np.bincount(below.rank, below.count, K)
    at_depth = non_increasing(seen[None] / max(trials.sum(), np.finfo(np.float64).tiny))
    if depth == 0:
        return _Prior(rows=at_depth, rank_strength=0.0, node_strength=0.0)
    last = counts.levels[depth - 1].rank
    by_rank = np.bincount(last[below.parent] * K + below.rank, below.count, K * K).astype(np.float64).reshape(K, K)
    rank_trials = np.bincount(last, trials, K).astype(np.float64)
    if like is None:
        rank_strength = _leave_one_out(by_rank, rank_trials, np.broadcast_to(at_depth, by_rank.shape))
    else:
        rank_strength = like.rank_strength
    rows = _posterior(by_rank, rank_trials, at_depth, rank_strength)
    if like is not None:
        return _Prior(rows=rows, rank_strength=rank_strength, node_strength=like.node_strength)
    child = counts.child_counts(depth, nodes)
    node_strength = _leave_one_out(child, trials, rows[last])
    return _Prior(rows=rows, rank_strength=rank_strength, node_strength=node_strength)


def _posterior(counts: FloatArray, trials: FloatArray, prior: FloatArray, strength: float) -> FloatArray:
    total = trials[:, None] + strength
    return np.divide(
        counts + strength * prior, total, out=np.array(np.broadcast_to(prior, counts.shape)), where=total > 0
    )


def _leave_one_out(counts: FloatArray, trials: FloatArray, prior: FloatArray) -> float:
    """The strength under which each observation is best predicted by the others of its row and the prior."""
    outcomes = np.concatenate([counts, (trials - counts.sum(axis=1))[:, None]], axis=1)
    expected = np.concatenate([prior, (1.0 - prior.sum(axis=1))[:, None]], axis=1)
    row, column = np.nonzero((outcomes > 0) & (expected > 0))
    seen, p, t = outcomes[row, column], expected[row, column], trials[row]
    others, total = np.maximum(seen - 1.0, 0.0), np.maximum(t - 1.0, 0.0)
    scores = [float(seen @ np.log((others + s * p) / (total + s))) for s in _STRENGTHS]
    return float(_STRENGTHS[int(np.argmax(scores))])
