"""The file that timed points go to, one JSON line each, as they come: a run that was killed goes on from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import read_text
from treeopt.files.writing import append_line, write_atomically
from treeopt.profile.points import Point
from treeopt.profile.timer import Timing

_WHAT: Final = "file of timing rows"
_NOT_SIZES: Final = ("operator", "dtype", "time_s", "spread", "calls", "error", "device")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One point's row.

    Attributes:
        error: the worst error of its result against float64, as a share of the largest exact value.
    """

    point: Point
    timing: Timing
    error: float

    def row(self, device: str) -> dict[str, Any]:
        """The row as the file holds it; sizes as `treeopt profile fit --rows` reads them."""
        return {
            "operator": self.point.operator,
            "dtype": str(self.point.dtype),
            **dict(self.point.sizes),
            "time_s": float(f"{self.timing.time_s:.6g}"),
            "spread": float(f"{self.timing.spread:.3g}"),
            "calls": self.timing.calls,
            "error": float(f"{self.error:.3g}"),
            "device": device,
        }


@dataclass(frozen=True, kw_only=True)
class RowFile:
    """A JSONL file of timing rows of one device (`Device.key`)."""

    path: Path
    device: str

    def times(self, points: Iterable[Point]) -> Mapping[Point, float]:
        """The seconds of those points that the file already has.

        Raises:
            InputError: it cannot be read, or holds rows of another device.
            FileFormatError: a line that is no row; the last may be cut short, since a killed run leaves it so.
        """
        known = {(row["operator"], row["dtype"], *_sizes(row)): float(row["time_s"]) for row in self._rows()}
        keys = {point: (point.operator, str(point.dtype), *sorted(point.sizes)) for point in points}
        return {point: known[key] for point, key in keys.items() if key in known}

    def append(self, timed: Timed) -> None:
        """Add one row, on disk when this returns.

        Raises:
            InputError: it cannot be written.
        """
        append_line(self.path, json.dumps(timed.row(self.device)), what=_WHAT)

    def _rows(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        text = read_text(self.path, what=_WHAT)
        whole, _, rest = text.rpartition("\n")
        if rest:  # a row that a killed run did not finish
            write_atomically(self.path, whole + "\n" if whole else "", what=_WHAT, own=True)
        return [self._row(line, number) for number, line in enumerate(whole.split("\n"), start=1) if line]

    def _row(self, line: str, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
            needed = {"operator", "dtype", "time_s", "device"} <= row.keys()
        except (ValueError, AttributeError):
            needed = False
        if not needed or not isinstance(row["time_s"], int | float):
            raise FileFormatError(f"{self.path}:{number}: not a timing row", hint="delete that line, or start anew")
        if row["device"] != self.device:
            raise InputError(
                f"{self.path}:{number} was timed on {row['device']}, this is {self.device}",
                hint="give each device, number of threads and version its own file with --rows",
            )
        found: dict[str, Any] = row
        return found


def _sizes(row: Mapping[str, Any]) -> list[tuple[str, int]]:
    return sorted((name, value) for name, value in row.items() if name not in _NOT_SIZES)
