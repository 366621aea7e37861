"""One file of a trace, whole or a shard of it, read in chunks of rows: NPZ, Parquet or JSONL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.trace import TRACE_FORMAT, check_rank
from treeopt.errors import FileFormatError
from treeopt.extras import require
from treeopt.files.evidence_lines import Line, SourceFile
from treeopt.files.npz import NpzFile
from treeopt.files.rows import ParquetRows, json_rows

Arrays = dict[str, npt.NDArray[Any]]

_NPZ_ROWS: Final = 1 << 20
_PARQUET_ROWS: Final = 1 << 16
_JSONL_ROWS: Final = 1 << 14
_DIMENSIONS: Final = {"rank": 1, "doc_id": 0, "pos": 0, "topk_prob": 2}  # of one row
_KINDS: Final = {"doc_id": "iU", "topk_prob": "if"}  # of what JSON holds; whole numbers elsewhere
_METADATA: Final = b"treeopt.conditions"  # in a Parquet file; an NPZ file has them as the array `conditions`


def trace_format(file: SourceFile) -> str | None:
    """`npz`, `parquet` or `jsonl` if the file's first bytes are those of a trace in that format, else None."""
    head = next(file.chunks(), b"")
    if head.startswith(b"PK"):
        return "npz" if b".npy" in head[:512] or file.path.suffix == ".npz" else None
    if head.startswith(b"PAR1"):
        return "parquet"
    return "jsonl" if _is_row(head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0]) else None


def _small(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Whole numbers in as few bytes as hold them: ten million rows are kept for as long as a search takes."""
    if array.dtype.kind not in "iu" or not array.size:
        return array
    low, high = int(array.min()), int(array.max())
    for kind in (np.int16, np.int32):
        if array.dtype.itemsize > np.dtype(kind).itemsize and np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


def _is_row(line: bytes) -> bool:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and {"rank", "doc_id"} <= row.keys()


@dataclass(frozen=True)
class ShardFile:
    """A file that holds a trace or a shard of one, by its content or else by its ending; it is opened once."""

    file: SourceFile

    @cached_property
    def format(self) -> str:
        """`npz`, `parquet` or `jsonl`."""
        return trace_format(self.file) or self.file.path.suffix.removeprefix(".")

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the arrays in it; empty for JSONL, whose rows may differ."""
        if self.format == "jsonl":
            return ()
        return self._npz.arrays if self.format == "npz" else self._parquet.columns

    def has(self, *names: str) -> bool:
        """Whether it has those arrays, as far as its directory tells."""
        return self.format == "jsonl" or set(names) <= set(self.columns)

    def read(self, names: Sequence[str]) -> Arrays:
        """The named arrays, whole."""
        if self.format == "npz":
            read = self._npz.read
            return {name: _small(read(name)) if name in ("doc_id", "pos") else read(name) for name in names}
        chunks = list(self.chunks(names))
        empty = {name: np.zeros((0, 1), dtype=np.int64) for name in names}
        return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in names} if chunks else empty

    def chunks(self, names: Sequence[str]) -> Iterator[Arrays]:
        """The named arrays in chunks of rows, alike in shape and kind, so that they can be joined.

        Raises:
            InputError: the file cannot be read.
            FileFormatError: it lacks an array, or holds something else (with the line of a JSONL file).
        """
        first: Arrays = {}
        readers = {"npz": self._npz_chunks, "parquet": self._parquet_chunks}
        for arrays in readers.get(self.format, self._json_chunks)(names):
            if {len(array) for array in arrays.values()} == {0}:
                continue
            first = first or arrays
            for name, array in arrays.items():
                if array.shape[1:] != first[name].shape[1:] or array.dtype.kind != first[name].dtype.kind:
                    raise self.error(f"'{name}' is not alike in all rows")
            if "rank" in arrays:
                self._check_rank(arrays["rank"])
            yield arrays

    @property
    def conditions_text(self) -> str:
        """The JSON in which the file says what it was measured under; empty if it does not."""
        if self.format == "npz" and "conditions" in self.columns:
            return str(self._npz.read("conditions"))
        if self.format == "parquet":
            return self._parquet.metadata.get(_METADATA, b"").decode(errors="replace")
        return ""

    @cached_property
    def sha256(self) -> str:
        """Hash of the file's bytes."""
        return self.file.opened.sha256()

    def error(self, message: str, *, hint: str = TRACE_FORMAT) -> FileFormatError:
        """An error about the file."""
        return self.file.error(message, hint=hint)

    @cached_property
    def _npz(self) -> NpzFile:
        return NpzFile(self.file.opened, hint=TRACE_FORMAT)

    @cached_property
    def _parquet(self) -> ParquetRows:
        return ParquetRows(self.file)

    def _check_rank(self, rank: npt.NDArray[Any]) -> None:
        try:
            check_rank(rank)
        except EvidenceError as error:
            raise self.error(str(error), hint=error.hint) from None

    def _npz_chunks(self, names: Sequence[str]) -> Iterator[Arrays]:
        try:
            for chunks in zip(*(self._npz.chunks(name, _NPZ_ROWS) for name in names), strict=True):
                yield dict(zip(names, chunks, strict=True))
        except ValueError:
            raise self.error("its arrays are not equally long") from None

    def _parquet_chunks(self, names: Sequence[str]) -> Iterator[Arrays]:
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise self.error(f"it has no column '{missing[0]}'")
        for batch in self._parquet.batches(names, _PARQUET_ROWS):
            yield {name: self._column(name, batch.column(name)) for name in names}

    def _column(self, name: str, column: Any) -> npt.NDArray[Any]:
        """An Arrow column of numbers, or of lists of equal length, as an array."""
        compute, shape = require("pyarrow.compute", extra="arrow"), [len(column)]
        while column.null_count == 0 and hasattr(column.type, "value_type") and hasattr(column, "flatten"):
            lengths = np.unique(compute.list_value_length(column).to_numpy(False))
            if len(lengths) > 1:
                raise self.error(f"the lists of '{name}' are not equally long")
            shape.append(int(lengths[0]) if len(lengths) else 0)
            column = column.flatten()
        if column.null_count:
            raise self.error(f"'{name}' has gaps", hint="give a value for every position")
        values: npt.NDArray[Any] = np.asarray(column.to_numpy(zero_copy_only=False))
        if values.dtype == object and values.size and not all(isinstance(value, str) for value in values):
            raise self.error(f"'{name}' holds {column.type}, neither numbers nor text")
        return (values.astype(np.str_) if values.dtype == object else values).reshape(shape)

    def _json_chunks(self, names: Sequence[str]) -> Iterator[Arrays]:
        rows = json_rows(self.file)
        while chunk := list(islice(rows, _JSONL_ROWS)):
            lines = [line for line, _ in chunk]
            for line, row in chunk:
                if missing := [name for name in names if name not in row]:
                    raise line.error(f"it has no '{missing[0]}'", hint=TRACE_FORMAT)
            yield {name: _json_array(name, [row[name] for _, row in chunk], lines) for name in names}


def _json_array(name: str, rows: list[Any], lines: list[Line]) -> npt.NDArray[Any]:
    values = [_json_value(name, row, line) for row, line in zip(rows, lines, strict=True)]
    for value, line in zip(values, lines, strict=True):
        if value.shape != values[0].shape or (value.dtype.kind == "U") != (values[0].dtype.kind == "U"):
            raise line.error(f"'{name}' is unlike that in line {lines[0].number}", hint=TRACE_FORMAT)
    return np.stack(values)


def _json_value(name: str, value: Any, line: Line) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of unequal length, or numbers beyond 64 bits
        array = np.empty(0, dtype=np.object_)
    if array.dtype.kind not in _KINDS.get(name, "i") or array.ndim != _DIMENSIONS[name] or _holds_booleans(value):
        raise line.error(f"'{name}' is of the wrong kind", hint=TRACE_FORMAT)
    return array


def _holds_booleans(value: Any) -> bool:
    return any(map(_holds_booleans, value)) if isinstance(value, list) else isinstance(value, bool)
