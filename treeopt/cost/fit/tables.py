"""CSV, JSONL and Parquet files as columns, each row with the place it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.errors import FileFormatError, InputError, UnknownNameError
from treeopt.files.evidence_lines import SourceFile
from treeopt.files.numbers import plain_number
from treeopt.files.rows import ParquetRows, csv_rows, json_rows


class Selection(NamedTuple):
    """Keep only rows whose `column` says `value`."""

    column: str
    value: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A file's columns, all `[R]`; `lines` is each row's line in the file, counted from 1 (rows for Parquet)."""

    name: str
    columns: Mapping[str, npt.NDArray[Any]]
    lines: npt.NDArray[np.int64]

    def place(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"{self.name}:{self.lines[row]}"

    def numbers(self, column: str) -> FloatArray:
        """A column as numbers; empty cells are NaN.

        Raises:
            FileFormatError: there is no such column, or a cell is no number, with its line.
        """
        if column not in self.columns:
            raise FileFormatError(f"{self.name}: it has no column {column}", hint="these rows need it")
        cells = self.columns[column]
        if cells.dtype.kind in "iuf":
            return cells.astype(np.float64)
        found = np.empty(len(cells))
        for row, cell in enumerate(cells):
            try:
                found[row] = plain_number(str(cell)) if cell != "" else np.nan
            except ValueError:
                raise FileFormatError(
                    f"{self.place(row)}: '{cell}' in column {column} is not a number", hint="correct that row"
                ) from None
        return found

    def texts(self, column: str) -> npt.NDArray[np.str_]:
        """A column as text."""
        return self.columns[column].astype(np.str_)

    def rows(self, keep: npt.NDArray[np.bool_]) -> Table:
        """The rows that are marked."""
        columns = {key: cells[keep] for key, cells in self.columns.items()}
        return Table(name=self.name, columns=columns, lines=self.lines[keep])

    def select(self, selections: list[Selection]) -> Table:
        """The rows that every selection keeps; a file without the column keeps all of its rows."""
        keep = np.ones(len(self.lines), dtype=np.bool_)
        for column, value in selections:
            if column in self.columns:
                keep &= self.texts(column) == value
        return self.rows(keep)


def read_table(path: Path) -> Table:
    """Read a file of rows by its ending: .csv, .jsonl, .parquet.

    Raises:
        InputError: it cannot be read, or pyarrow is missing for Parquet.
        FileFormatError: another ending, no rows, or a line that is not as long as the header.
    """
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise FileFormatError(f"{path}: rows come as .csv, .jsonl or .parquet", hint="convert or rename the file")
    return readers[path.suffix](SourceFile(path, what="file of timing rows"))


def parse_selections(text: str) -> list[Selection]:
    """`gpu=h100_sxm,engine=vllm-0.24.0` as selections.

    Raises:
        InputError: an item that is not column=value.
    """
    found = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        column, equals, value = item.partition("=")
        if not equals or not column or not value:
            raise InputError(f"'{item}' selects nothing", hint="write column=value, for example gpu=h100_sxm")
        found.append(Selection(column.strip(), value.strip()))
    return found


def check_selections(tables: list[Table], selections: list[Selection]) -> None:
    """Refuse selections that no file knows, or that leave nothing.

    Raises:
        UnknownNameError: a column or a value that no file has.
    """
    for column, value in selections:
        holders = [table for table in tables if column in table.columns]
        if not holders:
            raise UnknownNameError("column", column, {name for table in tables for name in table.columns})
        values = {str(v) for table in holders for v in np.unique(table.texts(column))}
        if value not in values:
            raise UnknownNameError(f"{column} in the rows", value, values)


def _read_csv(file: SourceFile) -> Table:
    rows = csv_rows(file)
    _, header = next(rows, (None, []))
    if not header:
        raise file.error("the file is empty", hint="give a CSV file with a header")
    cells, lines = [], []
    for line, row in rows:
        if len(row) != len(header):
            raise line.error(f"{len(row)} cells under {len(header)} columns", hint="correct that row")
        cells.append(row)
        lines.append(line.number)
    return _table(file, header, cells, lines)


def _read_jsonl(file: SourceFile) -> Table:
    found = list(json_rows(file))
    header = list(dict.fromkeys(key for _, row in found for key in row))
    cells = [[str(row.get(key, "")) for key in header] for _, row in found]
    return _table(file, header, cells, [line.number for line, _ in found])


def _table(file: SourceFile, header: list[str], cells: list[list[str]], lines: list[int]) -> Table:
    if not cells:
        raise file.error("no rows", hint="give a file with timing rows")
    twice = [name for at, name in enumerate(header) if name in header[:at]]
    if twice:
        raise file.error(f"two columns are called {twice[0]}", hint="remove or rename one")
    columns = {name: np.array([row[at] for row in cells], dtype=np.object_) for at, name in enumerate(header)}
    return Table(name=file.name, columns=columns, lines=np.array(lines, dtype=np.int64))


def _read_parquet(file: SourceFile) -> Table:
    columns = ParquetRows(file).whole()
    rows = len(next(iter(columns.values()), ()))
    if not rows:
        raise file.error("no rows", hint="give a file with timing rows")
    return Table(name=file.name, columns=columns, lines=np.arange(1, rows + 1))
