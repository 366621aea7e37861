"""CSV, JSONL and Parquet files as columns, each row with the place it came from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.errors import FileFormatError, InputError, UnknownNameError
from treeopt.extras import require
from treeopt.files.documents import read_text


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
            FileFormatError: a cell that is no number, with its line.
        """
        cells = self.columns[column]
        if cells.dtype.kind in "iuf":
            return cells.astype(np.float64)
        found = np.empty(len(cells))
        for row, cell in enumerate(cells):
            try:
                found[row] = float(cell) if cell != "" else np.nan
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
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix == ".jsonl":
        return _read_jsonl(path)
    if path.suffix != ".csv":
        raise FileFormatError(f"{path}: rows come as .csv, .jsonl or .parquet", hint="convert or rename the file")
    return _read_csv(path)


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


def _read_csv(path: Path) -> Table:
    reader = csv.reader(io.StringIO(read_text(path, what="file of timing rows")))
    header = next(reader, None)
    if not header:
        raise FileFormatError(f"{path}: the file is empty", hint="give a CSV file with a header")
    cells, lines = [], []
    for row in reader:
        if not row:
            continue
        if len(row) != len(header):
            raise FileFormatError(
                f"{path}:{reader.line_num}: {len(row)} cells under {len(header)} columns", hint="correct that row"
            )
        cells.append(row)
        lines.append(reader.line_num)
    return _table(path, header, cells, lines)


def _read_jsonl(path: Path) -> Table:
    header: list[str] = []
    found, lines = [], []
    for line, text in enumerate(read_text(path, what="file of timing rows").splitlines(), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            raise FileFormatError(f"{path}:{line}: not JSON: {error}", hint="one JSON object on each line") from None
        if not isinstance(row, dict):
            raise FileFormatError(f"{path}:{line}: not a JSON object", hint="one JSON object on each line")
        header += [key for key in row if key not in header]
        found.append(row)
        lines.append(line)
    return _table(path, header, [[str(row.get(key, "")) for key in header] for row in found], lines)


def _table(path: Path, header: list[str], cells: list[list[str]], lines: list[int]) -> Table:
    if not cells:
        raise FileFormatError(f"{path}: no rows", hint="give a file with timing rows")
    twice = [name for at, name in enumerate(header) if name in header[:at]]
    if twice:
        raise FileFormatError(f"{path}: two columns are called {twice[0]}", hint="remove or rename one")
    columns = {name: np.array([row[at] for row in cells], dtype=np.object_) for at, name in enumerate(header)}
    return Table(name=str(path), columns=columns, lines=np.array(lines, dtype=np.int64))


def _read_parquet(path: Path) -> Table:
    read_text_or_fail(path)
    parquet = require("pyarrow.parquet", extra="arrow")
    arrow_error = require("pyarrow", extra="arrow").ArrowInvalid
    try:
        table = parquet.read_table(path)
    except arrow_error as error:
        raise FileFormatError(f"{path}: not a Parquet file: {error}", hint="give a Parquet file") from None
    columns = {name: np.asarray(table[name].to_numpy(zero_copy_only=False)) for name in table.column_names}
    return Table(name=str(path), columns=columns, lines=np.arange(1, table.num_rows + 1))


def read_text_or_fail(path: Path) -> None:
    """Turn a Parquet file that cannot be opened into the InputError that text files give."""
    from treeopt.files.documents import os_error

    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise os_error(error, path, what="file of timing rows", verb="read") from error
