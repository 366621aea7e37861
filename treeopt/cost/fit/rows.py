"""Timing rows of one family in one form, whatever file they came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.family import SIZES, Family


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """`R` measured times of one family and number format.

    Attributes:
        dtype: of the weights; for attention that of the KV cache.
        sizes: `[R, d]`, the columns in the order of `SIZES[family]`.
        time_s: `[R]` seconds of one call.
        origin: `[R]` index into `files`.
        lines: `[R]` line in that file.
    """

    family: Family
    dtype: Dtype
    sizes: FloatArray
    time_s: FloatArray
    origin: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    files: tuple[str, ...]

    def column(self, size: str) -> FloatArray:
        """`[R]` one of the sizes."""
        return self.sizes[:, SIZES[self.family].index(size)]

    def place(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"{self.files[self.origin[row]]}:{self.lines[row]}"

    def describe(self, row: int) -> str:
        """A row's sizes and time, for messages."""
        sizes = ", ".join(f"{name} {value:g}" for name, value in zip(SIZES[self.family], self.sizes[row], strict=True))
        return f"{self.family} {self.dtype}, {sizes}: {self.time_s[row] * 1e6:.6g} us"

    def where(self, keep: npt.NDArray[np.bool_]) -> Rows:
        """The rows that are marked."""
        return Rows(
            family=self.family,
            dtype=self.dtype,
            sizes=self.sizes[keep],
            time_s=self.time_s[keep],
            origin=self.origin[keep],
            lines=self.lines[keep],
            files=self.files,
        )

    def __len__(self) -> int:
        return len(self.time_s)


def joined(parts: list[Rows]) -> list[Rows]:
    """One `Rows` per family and number format, in the order of first appearance."""
    groups: dict[tuple[Family, Dtype], list[Rows]] = {}
    for part in parts:
        groups.setdefault((part.family, part.dtype), []).append(part)
    return [_concatenated(group) for group in groups.values()]


def _concatenated(group: list[Rows]) -> Rows:
    if len(group) == 1:
        return group[0]
    starts = np.cumsum([0, *(len(part.files) for part in group)])
    return Rows(
        family=group[0].family,
        dtype=group[0].dtype,
        sizes=np.concatenate([part.sizes for part in group]),
        time_s=np.concatenate([part.time_s for part in group]),
        origin=np.concatenate([part.origin + start for part, start in zip(group, starts, strict=False)]),
        lines=np.concatenate([part.lines for part in group]),
        files=tuple(_files(group)),
    )


def _files(group: list[Rows]) -> Iterator[str]:
    for part in group:
        yield from part.files
