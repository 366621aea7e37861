"""Rows of times made non-decreasing."""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.arrays import FloatArray

# How many columns are fitted together. Every entry must depend on this block and on what comes before it only, or a
# call with wider trees would price the narrow ones differently.
BLOCK: Final = 64


def non_decreasing(rows: FloatArray) -> FloatArray:
    """`[R, n]` rows as they are where they never fall, else the nearest ones that do not.

    The first `BLOCK` entries are a least-squares fit (pooled means of what falls), later ones the running maximum.
    `n` is at least `BLOCK`. Source: Barlow et al. 1972, "Statistical Inference under Order Restrictions".
    """
    found = rows.copy()
    for row in np.flatnonzero((np.diff(rows, axis=1) < 0).any(axis=1)):
        found[row, :BLOCK] = _isotonic(rows[row, :BLOCK])
        found[row] = np.maximum.accumulate(found[row])
    return found


def _isotonic(values: FloatArray) -> FloatArray:
    """`[n]` by the max-min formula: at i the largest, over starts j <= i, of the least mean of j..k, k >= i."""
    n = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    start, end = np.arange(n)[:, None], np.arange(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.where(end >= start, (sums[1:] - sums[:-1, None]) / (end - start + 1), np.inf)
    least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
    found: FloatArray = np.where(end >= start, least, -np.inf).max(axis=0)
    return found
