"""What the fit of one family of kernels needs to know of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Mask, Sample
from treeopt.cost.kernels.family import Family

# Of a table that one model's shapes were timed for a profile keeps everything, of larger ones what steps ask for.
KEPT_WHOLE: Final = 2000
# Steps beyond it are prompts, not drafts.
MOST_TOKENS: Final = 1024
KEPT_TOKENS: Final = (1536, 2048, 4096, 8192)


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """One layout of columns that files of a family come in.

    Attributes:
        needs: columns that tell it from the others.
        sizes: by size of the family, its column, or a number for all rows.
        scale: factors on sizes.
        plus: columns to add to a size.
        over: columns to divide a size by.
        dtype: the column with the number format, or a format for all rows.
        only: values that a column must have where it is there; other rows are another kernel and are left out.
    """

    name: str
    family: Family
    needs: tuple[str, ...]
    sizes: Mapping[str, str | float]
    dtype: str
    scale: Mapping[str, float] = field(default_factory=dict)
    plus: Mapping[str, str] = field(default_factory=dict)
    over: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class RowFamily(NamedTuple):
    """One family's rows.

    Attributes:
        layouts: of files, the richest first.
        reaches: distances over which near shapes' weights fall by e, in natural logs, to choose from.
        kept: `[R]` the rows that a profile's curves go through; others cost bytes and are never asked for.
        sample: the rows as arrays; the popularity exponent is that of skewed routing.
        swept: whether it is swept in one size only, with no shapes to leave out.
    """

    layouts: tuple[RowLayout, ...]
    reaches: tuple[tuple[float, ...], ...]
    kept: Callable[[Rows], Mask]
    sample: Callable[[Rows, float], Sample]
    swept: bool = False


def ids(*sizes: FloatArray) -> npt.NDArray[np.intp]:
    """`[R]` a number for each distinct set of sizes."""
    _, found = np.unique(np.stack(sizes, axis=1), axis=0, return_inverse=True)
    return found.ravel()
