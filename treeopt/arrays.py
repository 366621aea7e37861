"""The kinds of arrays that are passed around, and the distinct values of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MARKED: Final = 1 << 20
T = TypeVar("T", bound=np.generic)


def distinct(values: npt.NDArray[T]) -> npt.NDArray[T]:
    """The distinct values of an array of any shape, rising: those of `np.unique`, which imports `numpy.ma` for it."""
    ordered = np.sort(values, axis=None)
    new = np.ones(len(ordered), dtype=np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]


def quantiles(values: FloatArray, shares: Sequence[float]) -> list[float]:
    """The values below which so large a share of an array lies, between two of them in proportion.

    Those of `np.quantile` to the last bit, which imports `numpy.ma` for them: of 1, 2, 4 at 0.75 it is 3.
    """
    ordered, found = np.sort(values, axis=None), []
    for share in shares:
        place = share * (len(ordered) - 1)
        below = int(place)
        low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
        part, step = place - below, high - low
        found.append(low + step * part if part < 0.5 else high - step * (1.0 - part))
    return found


class Axis(NamedTuple):
    """Distinct values, rising, and the `[...]` place of each element of an array among them.

    Most arguments of the search take few values, and only those need a price.
    """

    values: tuple[int, ...]
    at: IntArray

    @classmethod
    def of(cls, argument: IntArray | FloatArray | int) -> Axis:
        """The axis of an array of whole numbers >= 0, of any shape."""
        array = np.asarray(argument, dtype=np.int64)
        if array.size == 1:
            return cls((int(array.item()),), np.zeros(array.shape, dtype=np.int64))
        largest = int(array.max(initial=0))
        if largest > _MARKED:
            values, at = np.unique(array, return_inverse=True)
            return cls(tuple(values.tolist()), at.reshape(array.shape))
        # Sizes are small as a rule, and marking those that occur is far faster than sorting.
        occurs = np.zeros(largest + 1, dtype=np.bool_)
        occurs[array] = True
        return cls(tuple(np.flatnonzero(occurs).tolist()), (np.cumsum(occurs) - 1)[array])
