"""Which neighbouring batch sizes share one draft: fewest changes for a stated loss, by dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.errors import SearchError
from treeopt.solve.weights import weighed_runs

# Without a loss of its own, a plan's batch sizes lose no more than this so that fewer ranges change.
MOST_SHARED: Final = 0.02
# Losses are exact to this: a range's own best option must be within its limit.
EXACT_TO: Final = 1e-12


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How far neighbours may share: a batch size loses at most `max_loss` of its best, unless `max_trees` forces more.

    Without `max_loss` a batch size loses what cannot be told anyway (see `choose.allowed_losses`).

    Raises:
        SearchError: a loss outside [0, 1) or fewer than one tree.
    """

    max_loss: float | None = None
    max_trees: int | None = None

    @property
    def most(self) -> float:
        """What a batch size may lose at most."""
        return MOST_SHARED if self.max_loss is None else self.max_loss

    def __post_init__(self) -> None:
        if self.max_loss is not None and not 0.0 <= self.max_loss < 1.0:
            raise SearchError(
                f"a sharing loss of {self.max_loss:g}", hint="give a share from 0 to below 1, such as 0.01"
            )
        if self.max_trees is not None and self.max_trees < 1:
            raise SearchError(f"--max-trees {self.max_trees} leaves no bucket", hint="give 1 or more")


class Shared(NamedTuple):
    """Ranges `first`..`last` run `option`; every batch size of them loses at most `loss` of its own best."""

    first: int
    last: int
    option: int
    loss: float


def share(
    loss: FloatArray,
    *,
    size: IntArray,
    tie: float,
    limit: FloatArray,
    max_trees: int | None = None,
    kind: BoolArray | None = None,
    banned: BoolArray | None = None,
    gain: FloatArray | None = None,
) -> list[Shared]:
    """Split ranges of batch sizes into buckets.

    Args:
        loss: `[ranges, options]` share of the best value that an option loses, inf where it is not allowed.
        size: `[options]` nodes, by which ties are broken.
        tie: options within this share of the best one tie.
        limit: `[ranges]` what each range may lose so that fewer ranges change; one that loses more with any option
            may lose as much as with its best.
        max_trees: at most so many buckets.
        kind: `[ranges]` two kinds of ranges that share no bucket.
        banned: `[ranges, options]` options that a range never runs.
        gain: `[ranges, options]` what an option gives in a range, weighed by how often that runs.

    Among all partitions into runs of neighbours within the limits the result has the fewest buckets, then the smallest
    largest loss, then the smallest sum. Where `max_trees` allows none of these, it has the smallest largest loss of
    all partitions into so many, within no limits; with `gain`, and always for a single bucket with it, the most gain.
    """
    strict = loss if banned is None else np.where(banned, np.inf, loss)
    most = np.maximum(limit, strict.min(axis=1)) + EXACT_TO
    strict = np.where(strict <= most[:, None], strict, np.inf)
    runs = np.zeros(len(loss), dtype=np.int64) if kind is None else np.concatenate([[0], np.cumsum(np.diff(kind))])
    trees = len(loss) if max_trees is None else min(max_trees, len(loss))
    if gain is not None and max_trees == 1 and (one := _weighed(gain, loss, size, tie, 1)):
        return one
    edges = _edges(np.where(runs[:, None] != runs, np.inf, _interval_losses(strict)), trees)
    if edges is not None:
        return [_pick(strict, size, tie, first, end - 1) for first, end in pairwise(edges)]
    if gain is not None and (several := _weighed(gain, loss, size, tie, trees)):
        return several
    forced = _interval_losses(loss)
    if kind is not None and np.count_nonzero(np.diff(kind)) < trees:
        forced = np.where(runs[:, None] != runs, np.inf, forced)
    edges = _edges(forced, trees, fewest=False) or [0, len(loss)]
    # A tie is no reason to lose more than was allowed.
    return [
        _pick(loss, size, tie, first, end - 1, most=np.inf if end - first == 1 else float(limit[first:end].min()))
        for first, end in pairwise(edges)
    ]


def _weighed(gain: FloatArray, loss: FloatArray, size: IntArray, tie: float, trees: int) -> list[Shared]:
    """The buckets of most gain; none where no option is allowed everywhere."""
    runs = weighed_runs(np.where(np.isfinite(loss), gain, -np.inf), size=size, tie=tie, most=trees) or ()
    return [Shared(first, last, own, float(loss[first : last + 1, own].max())) for first, last, own in runs]


def _edges(least: FloatArray, most: int, *, fewest: bool = True) -> list[int] | None:
    """The borders of the best partition into at most `most` runs, None where none is possible.

    Args:
        least: `[n, n]` the loss of a bucket of ranges i..j, inf where it may not be.
        most: how many buckets there may be.
        fewest: whether fewer buckets come before a smaller loss.
    """
    n = len(least)
    worst = np.full((most + 1, n + 1), np.inf)
    total = np.full((most + 1, n + 1), np.inf)
    start = np.zeros((most + 1, n + 1), dtype=np.int64)
    worst[0, 0] = total[0, 0] = 0.0
    for k in range(1, most + 1):
        for end in range(1, n + 1):
            highest = np.maximum(worst[k - 1, :end], least[:end, end - 1])
            summed = total[k - 1, :end] + least[:end, end - 1]
            best = np.lexsort((summed, highest))[0]
            worst[k, end], total[k, end], start[k, end] = highest[best], summed[best], best
        if fewest and np.isfinite(worst[k, n]):
            break
    used = int(np.lexsort((-np.arange(most + 1), total[:, n], worst[:, n]))[0])
    if not np.isfinite(worst[used, n]):
        return None
    edges = [n]
    for k in range(used, 0, -1):
        edges.append(int(start[k, edges[-1]]))
    return edges[::-1]


def _interval_losses(loss: FloatArray) -> FloatArray:
    """`[n, n]` least possible largest loss of one option over the batch sizes i..j."""
    n = len(loss)
    least = np.full((n, n), np.inf)
    for first in range(n):
        least[first, first:] = np.maximum.accumulate(loss[first:], axis=0).min(axis=1)
    return least


def _pick(loss: FloatArray, size: IntArray, tie: float, first: int, last: int, *, most: float = np.inf) -> Shared:
    """The smallest option within a tie of the one that loses least, that loses no more than `most` if any does not;
    `loss` is inf where an option is not allowed."""
    largest = loss[first : last + 1].max(axis=0)
    ties = np.flatnonzero(largest <= min(largest.min() + tie, max(most, largest.min())))
    option = int(ties[np.lexsort((largest[ties], size[ties]))[0]])
    return Shared(first, last, option, float(largest[option]))


def batches_in_words(batch_min: int, batch_max: int | None) -> str:
    """A range of batch sizes as messages name it."""
    if batch_max is None:
        return f"batch {batch_min} and up"
    return f"batch {batch_min}" if batch_min == batch_max else f"batch {batch_min}-{batch_max}"
