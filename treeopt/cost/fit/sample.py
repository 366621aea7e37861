"""The rows of one family as arrays that every form is fitted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.cost.kernels.curves import Residuals
from treeopt.cost.kernels.roofline import Roofline, Tiling, Work

Mask = npt.NDArray[np.bool_]


class Seen(NamedTuple):
    """`[R]` measured times beside what a fit says of the same rows."""

    name: str
    measured_s: FloatArray
    fitted_s: FloatArray


class Cells(NamedTuple):
    """Which curve and which sweep point each of `R` rows belongs to."""

    points: FloatArray
    point_of: npt.NDArray[np.intp]
    sweep: FloatArray
    sweep_of: npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """`R` measured rows of one family and number format.

    Attributes:
        work: what the rows moved and computed; a tiling changes the operations that count.
        points: `[R, d]` logs of what tells shapes apart.
        sweep: `[R]` logs of the swept size.
        time_s: `[R]` measured.
        shape: `[R]` the group that is left out as one.
        judged: `[R]` the rows that the form is fitted to and that errors are taken over.
    """

    work: Callable[[Tiling | None], Work]
    points: FloatArray
    sweep: FloatArray
    time_s: FloatArray
    shape: npt.NDArray[np.intp]
    judged: Mask

    @cached_property
    def cells(self) -> Cells:
        """The distinct points and sweep points, and which ones each row is at."""
        points, point_of = np.unique(np.round(self.points, 6), axis=0, return_inverse=True)
        sweep, sweep_of = np.unique(np.round(self.sweep, 9), return_inverse=True)
        return Cells(points, point_of.ravel(), sweep, sweep_of)

    def log_ratio(self, form: Roofline, tiling: Tiling | None) -> FloatArray:
        """`[R]` log of measured over form."""
        ratio: FloatArray = np.log(self.time_s / form.time_s(self.work(tiling)))
        return ratio

    def residuals(self, log_ratio: FloatArray, rows: Mask, reach: tuple[float, ...]) -> Residuals:
        """The curves through the `rows` of `log_ratio`; rows at the same place are averaged."""
        points, point_of, sweep, sweep_of = self.cells
        total, count = np.zeros((2, len(points), len(sweep)))
        np.add.at(total, (point_of[rows], sweep_of[rows]), log_ratio[rows])
        np.add.at(count, (point_of[rows], sweep_of[rows]), 1.0)
        there = count.any(axis=1)
        with np.errstate(invalid="ignore"):
            values = total[there] / count[there]
        return Residuals(points=points[there], sweep=sweep, values=values, reach=reach)


def fixed(work: Work) -> Callable[[Tiling | None], Work]:
    """Work that no tiling changes."""
    return lambda tiling: work
