"""The files that hold a trace or a shard of one, read in chunks: NPZ, Parquet and JSONL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.trace import TraceFile
from treeopt.errors import FileFormatError
from treeopt.extras import require
from treeopt.files.documents import os_error

Arrays = dict[str, npt.NDArray[Any]]

_DIMENSIONS: Final = {"rank": 1, "doc_id": 0, "pos": 0, "topk_prob": 2}  # of one row
_PARQUET_CHUNK_ROWS: Final = 1 << 16
_JSONL_CHUNK_ROWS: Final = 1 << 14
_MAX_LINE_BYTES: Final = 1 << 20
_METADATA: Final = "treeopt.conditions"  # in a Parquet file; an NPZ file has them as the array `conditions`
_FORMAT: Final = "a trace has rank [T, D] (0: top guess, -1: not listed, -2: past the end), doc_id [T] and pos [T]"


def is_trace(path: Path) -> bool:
    """Whether a path holds a trace: a folder, or a file by its ending; JSONL, which logs have too, by its first row."""
    if path.is_dir():
        return True
    if path.suffix != ".jsonl":
        return path.suffix in KINDS
    try:
        with path.open("rb") as stream:
            lines = iter(lambda: stream.readline(_MAX_LINE_BYTES + 1), b"")
            row = json.loads(next((line for line in lines if line.strip()), b""))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(row, dict) and {"rank", "doc_id"} <= row.keys()


def read_chunks(file: Path, names: tuple[str, ...]) -> Iterator[Arrays]:
    """The named arrays of a file in chunks of rows, alike in shape and kind, so that they can be joined.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it lacks an array, or holds something else (with the line of a JSONL file).
    """
    first: Arrays = {}
    try:
        for arrays in _READERS[file.suffix](file, names):
            if {len(array) for array in arrays.values()} == {0}:
                continue
            first = first or arrays
            for name, array in arrays.items():
                if array.shape[1:] != first[name].shape[1:] or array.dtype.kind != first[name].dtype.kind:
                    raise FileFormatError(f"{file}: '{name}' is not alike in all rows", hint=_FORMAT)
            yield arrays
    except OSError as error:
        raise os_error(error, file, what="trace", verb="read") from error


def _read_npz(file: Path, names: tuple[str, ...]) -> Iterator[Arrays]:
    trace = TraceFile(file)
    try:
        for chunks in zip(*(trace.chunks(name) for name in names), strict=True):
            yield dict(zip(names, chunks, strict=True))
    except ValueError:
        raise FileFormatError(f"{file}: its arrays are not equally long", hint=_FORMAT) from None


def _read_parquet(file: Path, names: tuple[str, ...]) -> Iterator[Arrays]:
    parquet, arrow = require("pyarrow.parquet", extra="arrow"), require("pyarrow", extra="arrow")
    try:
        # Reading ahead would hold the compressed file in memory before the first row is counted.
        with parquet.ParquetFile(file, pre_buffer=False) as opened:
            missing = [name for name in names if name not in opened.schema_arrow.names]
            if missing:
                raise FileFormatError(f"{file}: it has no column '{missing[0]}'", hint=_FORMAT)
            for batch in opened.iter_batches(_PARQUET_CHUNK_ROWS, columns=list(names), use_threads=False):
                yield {name: _column(file, name, batch.column(name)) for name in names}
    except arrow.ArrowInvalid as error:
        reason = str(error).partition("\n")[0]
        raise FileFormatError(f"{file}: cannot be read as Parquet: {reason}", hint=_FORMAT) from error


def _column(file: Path, name: str, column: Any) -> npt.NDArray[Any]:
    """An Arrow column of numbers, or of lists of equal length, as an array."""
    shape = [len(column)]
    while column.null_count == 0 and hasattr(column.type, "value_type") and hasattr(column, "flatten"):
        lengths = np.unique(require("pyarrow.compute", extra="arrow").list_value_length(column).to_numpy(False))
        if len(lengths) > 1:
            raise FileFormatError(f"{file}: the lists of '{name}' are not equally long", hint=_FORMAT)
        shape.append(int(lengths[0]) if len(lengths) else 0)
        column = column.flatten()
    if column.null_count:
        raise FileFormatError(f"{file}: '{name}' has gaps", hint="give a value for every position")
    values: npt.NDArray[Any] = np.asarray(column.to_numpy(zero_copy_only=False))
    return (values.astype(np.str_) if values.dtype == object else values).reshape(shape)


def _read_jsonl(file: Path, names: tuple[str, ...]) -> Iterator[Arrays]:
    with file.open("rb") as stream:
        raw = enumerate(iter(lambda: stream.readline(_MAX_LINE_BYTES + 1), b""), start=1)
        lines = ((number, line) for number, line in raw if line.strip())
        while chunk := list(islice(lines, _JSONL_CHUNK_ROWS)):
            rows = [_json_row(file, number, line, names) for number, line in chunk]
            yield {name: _json_array(file, name, rows, [number for number, _ in chunk]) for name in names}


def _json_row(file: Path, number: int, line: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    if len(line) > _MAX_LINE_BYTES:
        raise FileFormatError(f"{file}:{number}: longer than {_MAX_LINE_BYTES >> 20} MiB", hint=_FORMAT)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise FileFormatError(f"{file}:{number}: not valid JSON", hint=_FORMAT) from None
    missing = [name for name in names if not isinstance(row, dict) or name not in row]
    if missing:
        raise FileFormatError(f"{file}:{number}: it has no '{missing[0]}'", hint=_FORMAT)
    return dict(row)


def _json_array(file: Path, name: str, rows: list[dict[str, Any]], lines: list[int]) -> npt.NDArray[Any]:
    values = [_json_value(file, name, row[name], line) for row, line in zip(rows, lines, strict=True)]
    for value, line in zip(values, lines, strict=True):
        if value.shape != values[0].shape or (value.dtype.kind == "U") != (values[0].dtype.kind == "U"):
            raise FileFormatError(f"{file}:{line}: '{name}' is unlike that in line {lines[0]}", hint=_FORMAT)
    return np.stack(values)


def _json_value(file: Path, name: str, value: Any, line: int) -> npt.NDArray[Any]:
    kinds = {"doc_id": "iU", "topk_prob": "if"}.get(name, "i")
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal length
        array = np.empty(0, dtype=np.object_)
    if array.dtype.kind not in kinds or array.ndim != _DIMENSIONS[name]:
        raise FileFormatError(f"{file}:{line}: '{name}' is of the wrong kind", hint=_FORMAT)
    return array


def conditions_text(file: Path) -> str:
    """The JSON in which a file says what it was measured under; empty if it does not."""
    if file.suffix == ".npz" and "conditions" in TraceFile(file).arrays():
        with np.load(file) as archive:
            return str(archive["conditions"])
    if file.suffix == ".parquet":
        metadata = require("pyarrow.parquet", extra="arrow").read_schema(file).metadata or {}
        return str(metadata.get(_METADATA.encode(), b"").decode())
    return ""


_READERS: Final[dict[str, Callable[[Path, tuple[str, ...]], Iterator[Arrays]]]] = {
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
}

KINDS: Final = tuple(_READERS)
