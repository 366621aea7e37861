"""What can be wrong with timing rows: impossible times, contradictions, mixed units, times that fall as work grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Mask, Sample
from treeopt.cost.kernels.family import FLAGS, SIZES, Family
from treeopt.errors import FileFormatError, TooFewRowsError

# Two times of the same kernel further apart than this are not two runs of one thing.
_CONTRADICTION: Final = 1.5
# A row this far from what the other rows say is in another unit.
_OTHER_UNIT: Final = 100.0
# Noise between two sweep points stays below this.
_FALLS: Final = 0.05
# Kernels that are a bad choice for one size take up to 1.7 times as long as for the sizes beside it.
_SPIKE: Final = 2.0
MIN_ROWS: Final = 12
MIN_SHAPES: Final = 3
# Families that one size is swept in have no shapes to leave out.
MIN_SWEPT: Final = 6
# Of sizes: tokens, keys, widths; and of those that count bytes, which no device holds more of.
_LARGEST, _LARGEST_BYTES = 1 << 27, 1 << 40
_SHORTEST_S, _LONGEST_S = 1e-9, 1e3


@dataclass(frozen=True, kw_only=True)
class Falls:
    """Rows that take longer than a row of the same shape with more work: real, and kept.

    `worst` is the largest of these ratios, at `where`.
    """

    rows: int
    worst: float
    where: str


def refuse_impossible(rows: Rows) -> None:
    """Refuse times and sizes that no measurement gives.

    Raises:
        FileFormatError: the first row with a time or size that is missing, zero, negative or beyond all kernels.
    """
    sizes = SIZES[rows.family]
    may_be_zero = np.array([size in FLAGS for size in sizes])
    largest = np.array([_LARGEST_BYTES if size.endswith("_bytes") else _LARGEST for size in sizes])
    with np.errstate(invalid="ignore"):
        bad_size = ~(rows.sizes <= largest) | (rows.sizes < 0) | ((rows.sizes == 0) & ~may_be_zero)
    bad_time = ~((rows.time_s >= _SHORTEST_S) & (rows.time_s <= _LONGEST_S))  # which no NaN is
    for row in np.flatnonzero(bad_time | bad_size.any(axis=1))[:1]:
        what = "time" if bad_time[row] else sizes[int(np.argmax(bad_size[row]))]
        raise FileFormatError(
            f"{rows.place(row)}: the {what} is not a positive number: {rows.describe(row)}",
            hint="remove the row or measure it again: no kernel has such a one",
        )


def refuse_too_few(rows: Rows, shapes: int, *, swept: bool = False) -> None:
    """Refuse to fit what could not be judged; `swept` families have one size only.

    Raises:
        TooFewRowsError: too few rows, or too few shapes to leave one out.
    """
    need_rows, need_shapes = (MIN_SWEPT, 1) if swept else (MIN_ROWS, MIN_SHAPES)
    if rows.family is Family.EXPERTS:  # few models are in each format, with two routings and several widths
        need_shapes = 2
    if len(rows) < need_rows or shapes < need_shapes:
        raise TooFewRowsError(
            f"{len(rows)} rows of {shapes} shapes are too few to fit {rows.family} {rows.dtype}",
            hint=f"a fit needs {need_rows} rows and {need_shapes} shapes: it is judged on what it has not seen",
        )


def without_duplicates(rows: Rows) -> tuple[Rows, int]:
    """One row per set of sizes, the median where there are several, and how many went.

    Raises:
        FileFormatError: two rows of the same sizes that contradict each other.
    """
    order = np.lexsort((rows.time_s, *rows.sizes.T[::-1]))
    sizes, time_s = rows.sizes[order], rows.time_s[order]
    starts = np.flatnonzero(np.r_[True, (sizes[1:] != sizes[:-1]).any(axis=1)])
    ends = np.r_[starts[1:], len(order)]
    wide = np.flatnonzero(time_s[ends - 1] > _CONTRADICTION * time_s[starts])
    for at in wide[:1]:
        low, high = order[starts[at]], order[ends[at] - 1]
        raise FileFormatError(
            f"{rows.place(high)}: {rows.describe(high)}, but {rows.time_s[low] * 1e6:.6g} us in {rows.place(low)}",
            hint="two kernels or two machines in one file: choose one with --select, or remove a row",
        )
    return rows.where(np.sort(order[(starts + ends - 1) // 2])), len(order) - len(starts)


def refuse_other_units(rows: Rows, log_ratio: FloatArray) -> None:
    """Refuse rows that are hundreds of times off the fit that all others agree on.

    Args:
        rows: `[R]` rows.
        log_ratio: `[R]` log of measured over fitted.

    Raises:
        FileFormatError: the row that is furthest off.
    """
    apart = np.abs(log_ratio - np.median(log_ratio))
    worst = int(np.argmax(apart))
    if apart[worst] > np.log(_OTHER_UNIT):
        ratio = float(np.exp(log_ratio[worst] - np.median(log_ratio)))
        times = f"{ratio:,.0f} times what" if ratio > 1 else f"1/{1 / ratio:,.0f} of what"
        raise FileFormatError(
            f"{rows.place(worst)}: {rows.describe(worst)} is {times} the other rows say",
            hint="another unit (ms for us) or a broken run: correct or remove the row",
        )


def spikes(rows: Rows, sample: Sample) -> Mask:
    """`[R]` rows that take over twice as long as both sweep points beside them on the same shape; the first, as one."""
    found = np.zeros(len(rows), dtype=np.bool_)
    point_of = sample.cells.point_of
    order = np.lexsort((sample.sweep, point_of))
    for start, end in _runs(point_of[order]):
        time_s = rows.time_s[order[start:end]]
        before = np.r_[0.0, time_s[:-2]]
        found[order[start : end - 1]] = time_s[:-1] > _SPIKE * np.maximum(before, time_s[1:])
    return found


def falls(rows: Rows, sample: Sample) -> Falls | None:
    """Rows whose time exceeds that of a later sweep point of the same shape by more than 5 %."""
    worst, found, where = 1.0, 0, ""
    _, point_of, _, _ = sample.cells
    order = np.lexsort((sample.sweep, point_of))
    point, time_s = point_of[order], rows.time_s[order]
    for start, end in _runs(point):
        least_later = np.minimum.accumulate(time_s[start:end][::-1])[::-1]
        ratio = time_s[start : end - 1] / least_later[1:]
        found += int((ratio > 1 + _FALLS).sum())
        if len(ratio) and ratio.max() > worst:
            at = start + int(np.argmax(ratio))
            worst, where = float(ratio.max()), f"{rows.place(order[at])} ({rows.describe(order[at])})"
    return Falls(rows=found, worst=worst, where=where) if found else None


def _runs(values: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(values)], strict=True))
