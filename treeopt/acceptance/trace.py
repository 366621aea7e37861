"""Traces: per position, the rank of the target's own token among the drafter's guesses at each depth."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.paths import PathCounter, PathCounts
from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.errors import FileFormatError
from treeopt.files.npz import open_npz, read_header
from treeopt.files.shipped import file_sha256

CHUNK_ROWS = 1 << 20
PAST_END = -2
_HINT = "a trace is an NPZ file with rank [T, D] (0: top guess, -1: not listed, -2: past the end), doc_id [T], pos [T]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """A trace in memory, one row per position, the rows of a document together and in order.

    Documents are numbered by their sorted ids, so nothing that is computed per document depends on the order in
    which they were recorded.

    Args:
        rank: `[T, D]` rank of the target's token; -1 beyond the listed ranks, -2 past the end of the document.
        doc_id: `[T]` document of each row.
        pos: `[T]` position in the document, counting up by one.
        topk_prob: `[T, D, K]` the drafter's own probabilities of its K best guesses, best first, or None.

    Raises:
        EvidenceError: wrong shapes, no rows, rows out of order, or a rank after the end of its document.
    """

    rank: npt.NDArray[np.integer]
    doc_id: npt.NDArray[np.generic]
    pos: npt.NDArray[np.integer]
    topk_prob: npt.NDArray[np.floating] | None = None

    def __post_init__(self) -> None:
        _check_rank(self.rank)
        if not len(self):
            raise EvidenceError("the trace is empty", keys=(), hint="record at least one position")
        _check_shape("doc_id", self.doc_id.shape, self.rank.shape[:1])
        _check_shape("pos", self.pos.shape, self.rank.shape[:1])
        if self.topk_prob is not None:
            _check_shape("topk_prob", self.topk_prob.shape[:-1], self.rank.shape)
        _check_order(self)
        _check_cuts(self)

    def __len__(self) -> int:
        """T, the recorded positions."""
        return len(self.rank)

    @property
    def depth(self) -> int:
        """D, the recorded depths."""
        return int(self.rank.shape[1])

    @cached_property
    def bounds(self) -> IntArray:
        """`[documents + 1]` first row of each document in the order of recording, and T."""
        new = self.doc_id[1:] != self.doc_id[:-1]
        return np.concatenate([[0], np.flatnonzero(new) + 1, [len(self)]])

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return len(self.bounds) - 1

    @cached_property
    def document(self) -> IntArray:
        """`[T]` number of each row's document."""
        _, number = np.unique(self.doc_id[self.bounds[:-1]], return_inverse=True)
        return np.repeat(number, np.diff(self.bounds))

    @cached_property
    def complete(self) -> BoolArray:
        """`[T]` whether the row is recorded to depth D; only the last rows of a document are not."""
        return np.asarray(self.rank[:, -1] != PAST_END)

    def select(self, documents: BoolArray) -> Trace:
        """The trace of the documents that `documents [documents]` marks."""
        rows = documents[self.document]
        topk_prob = None if self.topk_prob is None else self.topk_prob[rows]
        return Trace(rank=self.rank[rows], doc_id=self.doc_id[rows], pos=self.pos[rows], topk_prob=topk_prob)

    def count(self, weight: FloatArray | None = None) -> PathCounts:
        """The trie of rank paths over all rows, weighted by `[T]`; rows of weight 0 leave no trace in it.

        Raises:
            EvidenceError: no recorded rank was ever right.
        """
        counter = PathCounter(self.depth)
        if weight is None:
            counter.add(self.rank)
        else:
            counter.add(self.rank[weight > 0], weight[weight > 0])
        return counter.result()


@dataclass(frozen=True)
class TraceFile:
    """A trace on disk, read in chunks so that its size does not matter."""

    path: Path

    def count(self) -> PathCounts:
        """The trie of rank paths over all positions, in memory that does not grow with their number.

        Raises:
            InputError: the file cannot be read, is no trace, is empty, or holds ranks below -2.
        """
        counter: PathCounter | None = None
        try:
            for chunk in self.chunks("rank"):
                _check_rank(chunk)
                counter = counter or PathCounter(chunk.shape[1])
                counter.add(chunk.astype(np.int64))
            if counter is None:
                raise EvidenceError("the trace is empty", keys=(), hint="record at least one position")
            return counter.result()
        except EvidenceError as error:
            raise self._error(str(error), hint=error.hint) from None

    def load(self, *, confidence: bool = False) -> Trace:
        """The whole trace in memory; the drafter's probabilities (most of the file) only with `confidence`.

        Raises:
            InputError: the file cannot be read, is no trace, or its rows are out of order (see `Trace`).
        """
        names = ("rank", "doc_id", "pos", "topk_prob") if confidence else ("rank", "doc_id", "pos")
        arrays: dict[str, Any] = {}
        for name in names:
            chunks = list(self.chunks(name))
            arrays[name] = np.concatenate(chunks) if chunks else np.zeros((0, 1), dtype=np.int64)
        try:
            return Trace(**arrays)
        except EvidenceError as error:
            raise self._error(str(error), hint=error.hint) from None

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
        return file_sha256(self.path)

    def chunks(self, array: str) -> Iterator[npt.NDArray[Any]]:
        """One array of the file, `CHUNK_ROWS` rows at a time."""
        with self._open() as archive:
            if f"{array}.npy" not in archive.namelist():
                raise self._error(f"it has no array '{array}'")
            try:
                with archive.open(f"{array}.npy") as stream:
                    yield from _rows(stream, archive.getinfo(f"{array}.npy").file_size)
            except Exception as error:  # zipfile and its decompressors have a kind for each damage
                raise self._error(f"array '{array}' cannot be read: {error}") from error

    def _open(self) -> zipfile.ZipFile:
        return open_npz(self.path, what="trace", hint=_HINT)

    def _error(self, message: str, *, hint: str = _HINT) -> FileFormatError:
        return FileFormatError(f"{self.path}: {message}", hint=hint)


def _rows(stream: IO[bytes], held: int) -> Iterator[npt.NDArray[Any]]:
    shape, fortran, dtype = read_header(stream, held)
    if fortran and len(shape) > 1:
        raise ValueError("arrays in Fortran order are not read")
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    left = shape[0] if shape else 0
    if left and not row_bytes:  # any number of rows without values
        yield np.empty(shape, dtype=dtype)
        return
    while left > 0:
        rows = min(left, CHUNK_ROWS)
        data = stream.read(rows * row_bytes)
        if len(data) != rows * row_bytes:
            raise EOFError("the file ends early")
        yield np.frombuffer(data, dtype=dtype).reshape(rows, *shape[1:])
        left -= rows


def _check_rank(rank: npt.NDArray[Any]) -> None:
    if rank.ndim != 2 or rank.shape[1] == 0 or not np.issubdtype(rank.dtype, np.integer):
        raise EvidenceError(
            f"'rank' is {rank.dtype} {list(rank.shape)}, expected whole numbers [T, D]", keys=("rank",), hint=_HINT
        )
    if rank.size and rank.min() < PAST_END:
        raise EvidenceError(
            f"'rank' holds {rank.min()}; the lowest legal value is {PAST_END}", keys=("rank",), hint=_HINT
        )


def _check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise EvidenceError(
            f"'{name}' has {list(found)} entries, 'rank' needs {list(expected)}",
            keys=(name,),
            hint="give doc_id [T], pos [T] and topk_prob [T, D, K] for rank [T, D]",
        )


def _check_order(trace: Trace) -> None:
    ids, first = np.unique(trace.doc_id[trace.bounds[:-1]], return_index=True)
    if len(ids) < trace.documents:
        again = np.setdiff1d(np.arange(trace.documents), first)[0]
        row = int(trace.bounds[again])
        raise EvidenceError(
            f"row {row}: document {trace.doc_id[row]} goes on after another one",
            keys=("doc_id", row),
            hint="keep the rows of a document together, in the order of their positions",
        )
    gap = np.diff(trace.pos) != 1
    gap[trace.bounds[1:-1] - 1] = False
    if gap.any():
        row = int(np.argmax(gap)) + 1
        raise EvidenceError(
            f"row {row}: position {trace.pos[row]} follows {trace.pos[row - 1]} in document {trace.doc_id[row]}",
            keys=("pos", row),
            hint="record every position once, in order: replay jumps from row to row",
        )


def _check_cuts(trace: Trace) -> None:
    ended = trace.rank == PAST_END
    wrong = np.any(ended[:, :-1] & ~ended[:, 1:], axis=1)
    resumed = trace.complete[1:] & ~trace.complete[:-1]
    resumed[trace.bounds[1:-1] - 1] = False
    wrong[1:] |= resumed
    if wrong.any():
        row = int(np.argmax(wrong))
        raise EvidenceError(
            f"row {row}: a rank is recorded past the end of document {trace.doc_id[row]}",
            keys=("rank", row),
            hint=f"{PAST_END} means that the document is over: write -1 for a token that was not among the guesses",
        )
