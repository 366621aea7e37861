"""Adaptive verification: in every step, how many drafted tokens of the whole batch are worth verifying.

DSpark's rule, as vLLM and SGLang run it: a slot (request, depth) has a survival, the product of the drafter's
confidences down to it; T of them are verified, those that survive likeliest, where T is the one with the largest
(B + sum of the T largest survivals) / time(B + T). Survival falls along a request's chain, so what is chosen are
prefixes. The time is a staircase, so every T is tried. T rests on the survivals of the round before, which slots win on
the fresh ones. Sources: DSpark, arXiv 2607.05147, section 4.3.2; vLLM 0.33, `adaptive_verification.py`, whose stand-in
for a confidence head is the logistic regression of `calibrated`.

Trees have no such rule in any engine; chains alone are run here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.trace import PAST_END, Trace
from treeopt.arrays import BoolArray, FloatArray, IntArray

_FIT_STEPS: Final = 25
_RIDGE: Final = 1e-3
_LEAST: Final = 1e-4  # a probability that half precision rounds to 0 or 1


@dataclass(frozen=True, kw_only=True)
class BatchRun:
    """A batch decoded together: what it emitted, how long its steps took, and what they verified.

    Attributes:
        tokens: emitted.
        seconds: of all steps.
        steps: of the batch.
        requests: B.
        verified: tokens verified, roots included.
    """

    tokens: int
    seconds: float
    steps: int
    requests: int
    verified: int

    @property
    def tokens_per_s(self) -> float:
        """Of the whole batch."""
        return self.tokens / self.seconds

    @property
    def tokens_per_step(self) -> float:
        """E of a request."""
        return self.tokens / (self.steps * self.requests)

    @property
    def verified_per_request(self) -> float:
        """Tokens that a request verifies per step, the root included."""
        return self.verified / (self.steps * self.requests)


@dataclass(frozen=True, kw_only=True, eq=False)
class ConfidentChains:
    """Chains on a trace with what the drafter believed of them.

    Attributes:
        bounds: `[documents + 1]` first row of each document.
        accepted: `[T]` how many first guesses in a row are right, up to K.
        survival: `[T, K]` believed probability that the chain is accepted down to each depth.
        usable: `[T]` whether the row is recorded to depth K.
    """

    bounds: IntArray
    accepted: IntArray
    survival: FloatArray
    usable: BoolArray

    @classmethod
    def of(cls, trace: Trace, length: int) -> ConfidentChains:
        """Chains of up to `length` tokens, with calibrated confidence.

        Raises:
            EvidenceError: the trace has no `topk_prob`, or no row of that depth.
        """
        if trace.topk_prob is None:
            raise EvidenceError(
                "the trace has no 'topk_prob' [T, D, K]", keys=("topk_prob",), hint="record the drafter's probabilities"
            )
        rank = trace.rank[:, :length]
        usable = rank[:, -1] != PAST_END
        if not usable.any():
            raise EvidenceError(f"no row is recorded to depth {length}", keys=(), hint="record longer documents")
        top = trace.topk_prob[:, :length, 0].astype(np.float64)
        return cls(
            bounds=trace.bounds,
            accepted=np.cumprod(rank == 0, axis=1).sum(axis=1).astype(np.int64),
            survival=np.asarray(np.cumprod(calibrated(top, rank == 0, usable), axis=1), dtype=np.float64),
            usable=usable,
        )

    @property
    def length(self) -> int:
        """K."""
        return int(self.survival.shape[1])

    @property
    def auc(self) -> float:
        """How often a slot that is accepted was believed in more than one that is not; 0.5 tells nothing."""
        survival = self.survival[self.usable].ravel()
        right = (np.arange(1, self.length + 1) <= self.accepted[self.usable, None]).ravel()
        ranks = _mean_ranks(survival)
        n, m = int(right.sum()), int((~right).sum())
        return float((ranks[right].sum() - n * (n + 1) / 2) / (n * m)) if n and m else 0.5

    def adaptive(self, batch: int, time_s: FloatArray, *, steps: int, seed: int = 0) -> BatchRun:
        """A batch that verifies in every step as many tokens as pay.

        Args:
            batch: B.
            time_s: `[B K + 1]` seconds of a step that verifies B + T tokens, by T.
            steps: of the batch.
            seed: of the order of documents.
        """

        def chosen(before: FloatArray, fresh: FloatArray) -> IntArray:
            believed = np.concatenate([[0.0], np.cumsum(-np.sort(-before, axis=None))])
            T = int(np.argmax((batch + believed) / time_s))
            return _prefixes(fresh, T)

        return self._run(batch, time_s, chosen, steps=steps, seed=seed)

    def fixed(self, batch: int, K: int, time_s: FloatArray, *, steps: int, seed: int = 0) -> BatchRun:
        """The same batch where every request verifies K tokens in every step."""
        lengths = np.full(batch, K)
        return self._run(batch, time_s, lambda before, fresh: lengths, steps=steps, seed=seed)

    def _run(
        self,
        batch: int,
        time_s: FloatArray,
        lengths_of: Callable[[FloatArray, FloatArray], IntArray],
        *,
        steps: int,
        seed: int,
    ) -> BatchRun:
        texts = _Texts(self, batch, seed)
        before = self.survival[texts.at]
        tokens = verified = 0
        seconds = 0.0
        for _ in range(steps):
            fresh = self.survival[texts.at]
            lengths = lengths_of(before, fresh)
            emitted = np.minimum(self.accepted[texts.at], lengths) + 1
            drafted = int(lengths.sum())
            tokens, verified, seconds = (
                tokens + int(emitted.sum()),
                verified + batch + drafted,
                seconds + time_s[drafted],
            )
            before = fresh
            texts.advance(emitted)
        return BatchRun(tokens=tokens, seconds=seconds, steps=steps, requests=batch, verified=verified)


class _Texts:
    """Where every request of a batch stands; one that is through goes on with the next document."""

    def __init__(self, chains: ConfidentChains, batch: int, seed: int) -> None:
        usable = np.add.reduceat(chains.usable, chains.bounds[:-1])
        rng = np.random.default_rng(seed)
        documents = np.flatnonzero(usable > 0)
        self._first, self._last = chains.bounds[documents], chains.bounds[documents] + usable[documents]
        self._order = rng.permutation(len(documents))
        self._next = batch % len(documents)
        own = self._order[np.arange(batch) % len(documents)]
        # Requests are not all at their beginning.
        self.at = self._first[own] + rng.integers(0, self._last[own] - self._first[own])
        self._end = self._last[own]

    def advance(self, tokens: IntArray) -> None:
        """Every request as many tokens on."""
        self.at = self.at + tokens
        for request in np.flatnonzero(self.at >= self._end).tolist():
            document = self._order[self._next]
            self._next = (self._next + 1) % len(self._order)
            self.at[request], self._end[request] = self._first[document], self._last[document]


def calibrated(top: FloatArray, right: BoolArray, usable: BoolArray) -> FloatArray:
    """`[T, K]` how likely a first guess is right once those before it were: a logistic regression.

    Args:
        top: `[T, K]` the drafter's probability of its first guess.
        right: `[T, K]` whether it was right.
        usable: `[T]` rows to learn from.

    One slope on the log-odds of `top` and one intercept per position, as vLLM learns them while it serves.
    """
    K = top.shape[1]
    p = np.clip(top, _LEAST, 1 - _LEAST)
    odds = np.log(p / (1 - p))
    reached = np.concatenate(
        [np.ones((len(top), 1), np.bool_), np.cumprod(right, axis=1)[:, :-1].astype(np.bool_)], axis=1
    )
    learned = reached & usable[:, None]
    position = np.broadcast_to(np.arange(K), top.shape)[learned]
    features = np.concatenate([odds[learned][:, None], np.eye(K)[position]], axis=1)
    weight = _logistic(features, right[learned].astype(np.float64))
    found: FloatArray = 1.0 / (1.0 + np.exp(-(odds * weight[0] + weight[1:])))
    return found


def _logistic(features: FloatArray, right: FloatArray) -> FloatArray:
    """`[F]` weights by Newton's method; a little ridge keeps positions that are always right finite."""
    weight = np.zeros(features.shape[1])
    ridge = _RIDGE * max(len(right), 1) * np.eye(len(weight))
    for _ in range(_FIT_STEPS):
        p = 1.0 / (1.0 + np.exp(-features @ weight))
        gradient = features.T @ (right - p) - ridge @ weight
        hessian = (features * (p * (1 - p))[:, None]).T @ features + ridge
        step = np.linalg.solve(hessian, gradient)
        weight = weight + step
        if np.abs(step).max() < 1e-9:
            break
    return weight


def _prefixes(survival: FloatArray, tokens: int) -> IntArray:
    """`[B]` how many tokens of each request are among the `tokens` likeliest; equal ones: the shallower first."""
    B, K = survival.shape
    depth = np.broadcast_to(np.arange(K), (B, K)).ravel()
    order = np.lexsort((depth, -survival.ravel()))[:tokens]
    return np.bincount(order // K, minlength=B)


def _mean_ranks(values: FloatArray) -> FloatArray:
    """`[n]` ranks from 1, equal values sharing their mean."""
    _, at, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return ((last - count + 1 + last) / 2.0)[at]
