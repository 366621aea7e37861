"""What measured times add to a parametric form: the log ratio of near shapes, sweep point by sweep point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray, distinct

# How far two points of the sweep may lie apart, in natural logs, before the form is looked at in between.
_APART: Final = 0.1


def along(knots: FloatArray, rows: FloatArray, index: npt.NDArray[np.intp] | int, x: FloatArray) -> FloatArray:
    """`[...]` values at `x` `[...]` on the line through `rows[index]` over rising `knots`; constant beyond the ends.

    Args:
        knots: `[K]`.
        rows: `[P, K]`.
        index: `[...]` which row, broadcast with `x`.
        x: `[...]`.
    """
    if len(knots) == 1:
        return np.asarray(rows[index, np.zeros(np.shape(x), dtype=np.intp)])
    x = np.clip(x, knots[0], knots[-1])
    right = np.clip(np.searchsorted(knots, x), 1, len(knots) - 1)
    share = (x - knots[right - 1]) / (knots[right] - knots[right - 1])
    found: FloatArray = rows[index, right - 1] * (1.0 - share) + rows[index, right] * share
    return found


def rising(rows: FloatArray) -> FloatArray:
    """`[P, K]` the greatest rows below that never fall: what a size takes is the least of it and all larger ones.

    [1, 3, 2] gives [1, 2, 2]. Of five ways to level rows this one loses least where the shape was not measured
    (docs/cost-fits.md): the end of a level stretch, which a search prefers, keeps its own time.
    """
    found: FloatArray = np.minimum.accumulate(rows[:, ::-1], axis=1)[:, ::-1]
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Residuals:
    """`log(measured / form)` of `S` shapes over `M` points of a sweep (tokens, keys, or bytes).

    A shape that was measured gets its own curve, so spikes and cliffs survive; any other the mean of all curves,
    weighted by `exp(-distance)`; a size beyond all that were measured counts as the nearest of them. A short reach
    along a size means: only shapes of almost that size say something.
    An infinite reach along all of them is one residual per sweep point that all shapes share.

    Attributes:
        points: `[S, d]` natural logs of the sizes that tell shapes apart.
        sweep: `[M]` rising natural logs.
        values: `[S, M]` log ratios; NaN where a shape was not measured.
        reach: `[d]` distance, in natural logs, over which the weight falls by e.
        lends: whether measured shapes say anything about others; if not, those get the form alone.
    """

    points: FloatArray
    sweep: FloatArray
    values: FloatArray
    reach: tuple[float, ...]
    lends: bool = True

    def at(self, points: FloatArray, index: npt.NDArray[np.intp] | int, sweep: FloatArray) -> FloatArray:
        """`[...]` log ratios at `sweep` `[...]` (logs) for the shape `points[index]`; constant beyond the ends.

        Args:
            points: `[P, d]` logs of the sizes asked about.
            index: `[...]` rows of `points`, broadcast with `sweep`.
            sweep: `[...]` logs.
        """
        return along(self.sweep, self.curves(points), index, sweep)

    @cached_property
    def knots(self) -> FloatArray:
        """`[K]` the sweep with points between that are at most `_APART` apart, where the form bends."""
        count = 1 + int((self.sweep[-1] - self.sweep[0]) / _APART)
        return distinct(np.append(self.sweep, np.linspace(self.sweep[0], self.sweep[-1], count)))

    def at_knots(self, points: FloatArray) -> FloatArray:
        """`[P, K]` log ratios of the shapes at `points` `[P, d]`."""
        every = np.arange(len(points))[:, None]
        return along(self.sweep, self.curves(points), every, self.knots)

    def curves(self, points: FloatArray) -> FloatArray:
        """`[P, M]` log ratios over the sweep for shapes at `points` `[P, d]`."""
        if len(points) == 1:
            return self._curve(tuple(points[0].tolist()))
        # Whatever was not swept (queries, where rows have one) falls together: few distinct points are left.
        inside = np.clip(points, self.points.min(axis=0), self.points.max(axis=0))
        distinct, index = np.unique(inside, axis=0, return_inverse=True)
        mean: FloatArray = (self.weights(distinct) @ self._filled)[index.ravel()]
        return mean

    def weights(self, points: FloatArray) -> FloatArray:
        """`[P, S]` what each shape counts; the rows sum to 1, or to 0 where nothing is lent."""
        inside = np.clip(points, self.points.min(axis=0), self.points.max(axis=0))
        apart = np.abs(inside[:, None, :] - self.points[None, :, :])
        distance = np.sqrt(np.sum((apart / np.array(self.reach)) ** 2, axis=-1))
        same = np.max(apart, axis=-1) < 1e-4
        nearest = np.min(distance, axis=1, keepdims=True)
        others = np.exp(nearest - distance) if self.lends else np.zeros_like(distance)
        weights = np.where(same.any(axis=1, keepdims=True), same, others)
        total: FloatArray = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        return total

    # A step asks about the same few weights again and again.
    @cached_property
    def _curve(self) -> Callable[[tuple[float, ...]], FloatArray]:
        def curve(point: tuple[float, ...]) -> FloatArray:
            mean: FloatArray = self.weights(np.array([point])) @ self._filled
            return mean

        return lru_cache(maxsize=256)(curve)

    @cached_property
    def _filled(self) -> FloatArray:
        """`values` with each row's gaps closed along the sweep."""
        filled = self.values.copy()
        for row in filled:
            missing = np.isnan(row)
            if missing.any():
                row[missing] = np.interp(self.sweep[missing], self.sweep[~missing], row[~missing])
        return filled
