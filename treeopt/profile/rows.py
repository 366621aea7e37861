"""The file that timed points go to, one JSON line each, as they come: a run that was killed goes on from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import read_text
from treeopt.files.writing import append_line, write_atomically
from treeopt.profile.points import KernelPoint
from treeopt.profile.timer import Timing

_WHAT: Final = "file of timing rows"
_NOT_SIZES: Final = ("operator", "dtype", "time_s", "spread", "calls", "error", "device", "failed")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One point's row.

    Attributes:
        error: the worst error of its result against float64, as a share of the largest exact value.
    """

    point: KernelPoint
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

    def times(self, points: Iterable[KernelPoint]) -> Mapping[KernelPoint, float]:
        """The seconds of those points that the file already has.

        Raises:
            InputError: it cannot be read, or holds rows of another device.
            FileFormatError: a line that is no row; the last may be cut short, since a killed run leaves it so.
        """
        known = {_key(row): float(row["time_s"]) for row in self._rows(self.path, "time_s")}
        return {point: known[key] for point, key in _keys(points) if key in known}

    def failures(self, points: Iterable[KernelPoint]) -> Mapping[KernelPoint, str]:
        """Why those points have no time; they are not tried again while the file of failures has them.

        Raises:
            InputError, FileFormatError: see `times`.
        """
        known = {_key(row): str(row["failed"]) for row in self._rows(self.failed, "failed")}
        return {point: known[key] for point, key in _keys(points) if key in known}

    @property
    def failed(self) -> Path:
        """Where points that failed are noted: `mine.rows.jsonl` has `mine.rows.failed.jsonl` beside it."""
        return self.path.with_suffix(f".failed{self.path.suffix}")

    def note(self, point: KernelPoint, reason: str) -> None:
        """Note that a point failed, on disk when this returns.

        Raises:
            InputError: it cannot be written.
        """
        row = {"operator": point.operator, "dtype": str(point.dtype), **dict(point.sizes)}
        append_line(self.failed, json.dumps(row | {"failed": reason, "device": self.device}), what=_WHAT)

    def append(self, timed: Timed) -> None:
        """Add one row, on disk when this returns.

        Raises:
            InputError: it cannot be written.
        """
        append_line(self.path, json.dumps(timed.row(self.device)), what=_WHAT)

    def _rows(self, path: Path, value: str) -> list[dict[str, Any]]:
        if not path.exists():
            return []
        text = read_text(path, what=_WHAT)
        whole, _, rest = text.rpartition("\n")
        if rest:  # a row that a killed run did not finish
            write_atomically(path, whole + "\n" if whole else "", what=_WHAT, own=True)
        return [self._row(path, line, number, value) for number, line in enumerate(whole.split("\n"), start=1) if line]

    def _row(self, path: Path, line: str, number: int, value: str) -> dict[str, Any]:
        try:
            row = json.loads(line)
            needed = {"operator", "dtype", value, "device"} <= row.keys()
        except (ValueError, AttributeError):
            needed = False
        if not needed or not isinstance(row[value], str if value == "failed" else int | float):
            raise FileFormatError(f"{path}:{number}: not a timing row", hint="delete that line, or start anew")
        if row["device"] != self.device:
            raise InputError(
                f"{path}:{number} was timed on {row['device']}, this is {self.device}",
                hint="give each device, number of threads and version its own file with --rows",
            )
        found: dict[str, Any] = row
        return found


def _keys(points: Iterable[KernelPoint]) -> Iterator[tuple[KernelPoint, tuple[Any, ...]]]:
    for point in points:
        yield point, (point.operator, str(point.dtype), *sorted(point.sizes))


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    sizes = sorted((name, value) for name, value in row.items() if name not in _NOT_SIZES)
    return row["operator"], row["dtype"], *sizes
