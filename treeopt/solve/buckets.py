"""Which neighbouring batch sizes share one tree: fewest trees for a stated loss, by dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.errors import SearchError


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How far neighbours may share: a batch size loses at most `max_loss` of its best, unless `max_trees` forces more.

    Raises:
        SearchError: a loss outside [0, 1) or fewer than one tree.
    """

    max_loss: float = 0.01
    max_trees: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.max_loss < 1.0:
            raise SearchError(
                f"a sharing loss of {self.max_loss:g}", hint="give a share from 0 to below 1, such as 0.01"
            )
        if self.max_trees is not None and self.max_trees < 1:
            raise SearchError(f"--max-trees {self.max_trees} leaves no bucket", hint="give 1 or more")


class Bucket(NamedTuple):
    """Ranges `first`..`last` run `option`; every batch size of them loses at most `loss` of its own best."""

    first: int
    last: int
    option: int
    loss: float


def share(
    loss: FloatArray, *, size: IntArray, tie: float, sharing: Sharing, kind: BoolArray | None = None
) -> list[Bucket]:
    """Split ranges of batch sizes into buckets.

    Args:
        loss: `[ranges, options]` share of the best value that an option loses, inf where it is not allowed.
        size: `[options]` nodes, by which ties are broken.
        tie: options within this share of the best one tie.
        sharing: how much may be lost for how many buckets.
        kind: `[ranges]` two kinds of ranges that share no bucket, unless there are fewer buckets than runs of a kind.

    Among all partitions into runs of neighbours the result has the fewest buckets whose losses stay within
    `sharing.max_loss`, and among those the smallest largest loss, then the smallest sum; if `sharing.max_trees` is
    fewer, the smallest largest loss with that many.
    """
    n = len(loss)
    most = n if sharing.max_trees is None else min(sharing.max_trees, n)
    least = _interval_losses(loss)
    if kind is not None and np.count_nonzero(np.diff(kind)) < most:
        run = np.concatenate([[0], np.cumsum(np.diff(kind))])
        least[run[:, None] != run] = np.inf
    worst = np.full((most + 1, n + 1), np.inf)
    total = np.full((most + 1, n + 1), np.inf)
    start = np.zeros((most + 1, n + 1), dtype=np.int64)
    worst[0, 0] = total[0, 0] = 0.0
    used = most
    for k in range(1, most + 1):
        for end in range(1, n + 1):
            highest = np.maximum(worst[k - 1, :end], least[:end, end - 1])
            summed = total[k - 1, :end] + least[:end, end - 1]
            best = np.lexsort((summed, highest))[0]
            worst[k, end], total[k, end], start[k, end] = highest[best], summed[best], best
        if worst[k, n] <= sharing.max_loss:
            used = k
            break
    edges = [n]
    for k in range(used, 0, -1):
        edges.append(int(start[k, edges[-1]]))
    edges.reverse()
    return [_pick(loss, size, tie, sharing, first, end - 1) for first, end in pairwise(edges)]


def _interval_losses(loss: FloatArray) -> FloatArray:
    """`[n, n]` least possible largest loss of one option over the batch sizes i..j."""
    n = len(loss)
    least = np.full((n, n), np.inf)
    for first in range(n):
        least[first, first:] = np.maximum.accumulate(loss[first:], axis=0).min(axis=1)
    return least


def _pick(loss: FloatArray, size: IntArray, tie: float, sharing: Sharing, first: int, last: int) -> Bucket:
    largest = loss[first : last + 1].max(axis=0)
    most = largest.min() + tie
    if first < last:
        most = min(most, max(sharing.max_loss, largest.min()))  # a tie is no reason to lose more than was allowed
    ties = np.flatnonzero(largest <= most)
    option = int(ties[np.lexsort((largest[ties], size[ties]))[0]])
    return Bucket(first, last, option, float(largest[option]))


def batches_in_words(batch_min: int, batch_max: int | None) -> str:
    """A range of batch sizes as messages name it."""
    if batch_max is None:
        return f"batch {batch_min} and up"
    return f"batch {batch_min}" if batch_min == batch_max else f"batch {batch_min}-{batch_max}"
