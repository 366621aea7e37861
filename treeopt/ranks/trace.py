"""Traces: per position, the rank of the target's own token among the drafter's guesses at each depth."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from treeopt.documents import os_error
from treeopt.errors import FileFormatError
from treeopt.ranks.errors import EvidenceError
from treeopt.ranks.paths import PathCounter, PathCounts

CHUNK_ROWS = 1 << 20
_HINT = "a trace is an NPZ file with rank [T, D] (0: top guess, -1: not listed, -2: past the end), doc_id [T], pos [T]"


@dataclass(frozen=True)
class TraceFile:
    """A trace on disk, read in chunks so that its size does not matter."""

    path: Path

    def count(self) -> PathCounts:
        """The trie of rank paths over all positions.

        Raises:
            InputError: the file cannot be read, is no trace, is empty, or holds ranks below -2.
        """
        counter: PathCounter | None = None
        for chunk in self.chunks("rank"):
            if chunk.ndim != 2 or chunk.shape[1] == 0 or not np.issubdtype(chunk.dtype, np.integer):
                raise self._error(f"'rank' is {chunk.dtype} {list(chunk.shape)}, expected whole numbers [T, D]")
            if chunk.size and chunk.min() < -2:
                raise self._error(f"'rank' holds {chunk.min()}; the lowest legal value is -2")
            counter = counter or PathCounter(chunk.shape[1])
            counter.add(chunk.astype(np.int64))
        try:
            if counter is None:
                raise EvidenceError("the trace is empty", keys=(), hint="record at least one position")
            return counter.result()
        except EvidenceError as error:
            raise FileFormatError(f"{self.path}: {error}", hint=error.hint) from None

    def documents(self) -> int:
        """How many documents the positions came from; 0 if the trace does not say."""
        if "doc_id" not in self.arrays():
            return 0
        found: npt.NDArray[np.generic] = np.zeros(0, dtype=np.int64)
        for chunk in self.chunks("doc_id"):
            found = np.union1d(found, chunk)
        return len(found)

    def arrays(self) -> list[str]:
        """Names of the arrays in the file."""
        with self._open() as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]

    def sha256(self) -> str:
        """Hash of the file's bytes."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def chunks(self, array: str) -> Iterator[npt.NDArray[np.generic]]:
        """One array of the file, `CHUNK_ROWS` rows at a time."""
        with self._open() as archive:
            if f"{array}.npy" not in archive.namelist():
                raise self._error(f"it has no array '{array}'")
            try:
                with archive.open(f"{array}.npy") as stream:
                    yield from _rows(stream)
            except (ValueError, EOFError, zipfile.BadZipFile, OSError) as error:
                raise self._error(f"array '{array}' cannot be read: {error}") from error

    def _open(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.path)
        except zipfile.BadZipFile:
            raise self._error("not an NPZ file") from None
        except OSError as error:
            raise os_error(error, self.path, what="trace", verb="read") from error

    def _error(self, message: str) -> FileFormatError:
        return FileFormatError(f"{self.path}: {message}", hint=_HINT)


def _rows(stream: IO[bytes]) -> Iterator[npt.NDArray[np.generic]]:
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    if dtype.hasobject or (fortran and len(shape) > 1):
        raise ValueError("arrays of objects and in Fortran order are not read")
    row_bytes = dtype.itemsize * int(np.prod(shape[1:]))
    left = shape[0] if shape else 0
    while left > 0:
        rows = min(left, CHUNK_ROWS)
        data = stream.read(rows * row_bytes)
        if len(data) != rows * row_bytes:
            raise EOFError("the file ends early")
        yield np.frombuffer(data, dtype=dtype).reshape(rows, *shape[1:])
        left -= rows
