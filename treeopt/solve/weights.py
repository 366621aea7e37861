"""How often so many requests run at once: the weights by which one draft for all batch sizes is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import numpy as np

from treeopt.arrays import FloatArray, IntArray
from treeopt.files.typed import Count, Positive, Share


class BatchWeight(NamedTuple):
    """The share of the time at which `batch` requests run."""

    batch: Count
    share: Share


class OverWeights(NamedTuple):
    """What a plan gives over its weights: mean tokens/s, and that over plain decoding's (None where that is unknown).

    600 tokens/s at 1 request for 0.9 of the time and 3,000 at 8 for 0.1 are 840 tokens/s.
    """

    tokens_per_s: Positive
    speedup: Positive | None


class RateAt(Protocol):
    """Tokens/s of a draft at one batch size, and that over plain decoding's."""

    @property
    def batch(self) -> int:
        """The batch size."""

    @property
    def tokens_per_s(self) -> float:
        """Of the whole batch."""

    @property
    def speedup(self) -> float | None:
        """Over plain decoding."""


def expected(weights: Iterable[BatchWeight], rates: Iterable[RateAt]) -> OverWeights | None:
    """What drafts give over the weights; None without weights, or where a weighted batch size has no rate."""
    at, asked = {rate.batch: rate for rate in rates}, list(weights)
    if not asked or any(weight.batch not in at for weight in asked):
        return None
    pairs = [(weight.share, at[weight.batch]) for weight in asked]
    ours = sum(share * rate.tokens_per_s for share, rate in pairs)
    plain = [share * rate.tokens_per_s / rate.speedup for share, rate in pairs if rate.speedup]
    return OverWeights(ours, ours / sum(plain) if len(plain) == len(pairs) else None)


def weighed_runs(gain: FloatArray, *, size: IntArray, tie: float, most: int) -> Sequence[tuple[int, int, int]] | None:
    """The runs of ranges, and what each drafts, that gain most over all ranges together.

    Args:
        gain: `[ranges, options]` what an option gains in a range, weighed, -inf where it is not allowed.
        size: `[options]` nodes, by which ties are broken.
        tie: gains within this share of the best one tie; fewer runs and smaller options win.
        most: at most so many runs.

    Returns `(first, last, option)` of every run, or None where no so many runs are allowed.
    """
    n = len(gain)
    held = [[row.max() for row in accumulate(gain[first:], np.add)] for first in range(n)]
    best = np.full((most + 1, n + 1), -np.inf)
    start = np.zeros((most + 1, n + 1), dtype=np.int64)
    best[0, 0] = 0.0
    for k in range(1, most + 1):
        for end in range(1, n + 1):
            total = [best[k - 1, first] + held[first][end - 1 - first] for first in range(end)]
            start[k, end] = first = int(np.argmax(total))
            best[k, end] = total[first]
    highest = best[:, n].max()
    if not np.isfinite(highest):
        return None
    edges = [n]
    for k in range(int(np.argmax(best[:, n] >= highest * (1.0 - tie))), 0, -1):
        edges.append(int(start[k, edges[-1]]))
    return [(first, end - 1, _smallest(gain[first:end].sum(axis=0), size, tie)) for first, end in pairwise(edges[::-1])]


def _smallest(gain: FloatArray, size: IntArray, tie: float) -> int:
    ties = np.flatnonzero(gain >= gain.max() * (1.0 - tie))
    return int(ties[np.lexsort((-gain[ties], size[ties]))[0]])
