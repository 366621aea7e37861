"""Rows of CSV, JSONL and Parquet files, each with the place that an error about it points at."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treeopt.errors import FileFormatError
from treeopt.extras import require
from treeopt.files.evidence_lines import Line, SourceFile

_DELIMITERS: Final = ",;\t|"
# What a byte of a compressed file can hold: deflate, the densest of the usual ones, packs 1,032 to one.
_VALUES_PER_BYTE: Final = 1100


def csv_rows(file: SourceFile) -> Iterator[tuple[Line, list[str]]]:
    """The rows of a CSV file (comma, semicolon, tab or bar; any line ends), blank ones left out, the header first.

    Raises:
        FileFormatError: a quote that is not closed, or a cell that is too long, with its line.
    """
    import csv  # traces, which start with the command, need none

    text = file.text()
    first = text.lstrip("\r\n").replace("\r", "\n").partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first.count) if any(d in first for d in _DELIMITERS) else ","
    reader = csv.reader(io.StringIO(text, newline=None), delimiter=delimiter, strict=True)
    number = 1
    try:
        for cells in reader:
            line = Line(name=file.name, number=number, text=delimiter.join(cells), complete=True)
            number = reader.line_num + 1
            if any(cell.strip() for cell in cells):
                yield line, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise FileFormatError(f"{file.name}:{number}: not CSV: {error}", hint="give plain CSV") from None


def json_rows(file: SourceFile) -> Iterator[tuple[Line, dict[str, Any]]]:
    """The objects of a JSONL file, one on each line that is not blank.

    Raises:
        FileFormatError: a line that is no JSON object.
    """
    for line in file.lines():
        if line.text.strip():
            try:
                row = json.loads(line.text)
            except (ValueError, RecursionError) as error:
                reason = "nested too deeply" if isinstance(error, RecursionError) else getattr(error, "msg", str(error))
                raise line.error(f"not valid JSON: {reason}", hint="one JSON object on each line") from None
            if not isinstance(row, dict):
                raise line.error("not a JSON object", hint="one JSON object on each line")
            yield line, row


class ParquetRows:
    """A Parquet file that is read in batches of rows.

    Raises:
        InputError: pyarrow is not installed.
        FileFormatError: it is no Parquet file, or promises more values than its size can hold.
    """

    def __init__(self, file: SourceFile) -> None:
        self._name = file.name
        parquet = require("pyarrow.parquet", extra="arrow")
        with self._errors():
            # Reading ahead would hold the compressed file in memory before the first row is counted.
            self._file = parquet.ParquetFile(file.opened.stream(), pre_buffer=False)
            # Not the columns' own counts: of a damaged file pyarrow 26 ends the process when it is asked for them.
            meta = self._file.metadata
            claimed = [meta.num_rows, *(meta.row_group(i).num_rows for i in range(meta.num_row_groups))]
        if max(claimed) > _VALUES_PER_BYTE * file.opened.size:
            raise FileFormatError(
                f"{self._name}: {meta.num_rows} rows do not fit into {file.opened.size} bytes",
                hint="give the whole file",
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._file.schema_arrow.names)

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """What the writer noted beside the columns."""
        return dict(self._file.schema_arrow.metadata or {})

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Arrow record batches of so many rows with these columns.

        Raises:
            FileFormatError: a damaged page.
        """
        with self._errors():
            yield from self._file.iter_batches(rows, columns=list(columns), use_threads=False)

    def whole(self) -> dict[str, npt.NDArray[Any]]:
        """`[R]` every column.

        Raises:
            FileFormatError: a damaged page.
        """
        with self._errors():
            table = self._file.read(use_threads=False)
            return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (require("pyarrow", extra="arrow").ArrowException, OSError, ValueError, OverflowError) as error:
            reason = str(error).partition("\n")[0]
            raise FileFormatError(f"{self._name}: cannot be read as Parquet: {reason}", hint="write it anew") from error


def table_rows(file: SourceFile) -> Iterator[tuple[Line, list[str]]]:
    """The rows of tables in a text: Markdown with bars, CSV or tabs, whatever stands between them left out.

    Raises:
        FileFormatError: a line that is too long for a text file.
    """
    for line in file.lines():
        text = line.text.strip()
        delimiter = next((d for d in "|\t;," if d in text), None)
        if delimiter is None or set(text) <= set("|:-+= "):
            continue
        text = text.strip("|") if delimiter == "|" else text
        cells = [cell.strip().strip('"') for cell in text.split(delimiter)]
        if len(cells) > 1:
            yield line, cells
