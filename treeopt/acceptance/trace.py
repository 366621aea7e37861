"""Traces: per position, the rank of the target's own token among the drafter's guesses at each depth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.path_trie import CHUNK_ROWS, PathTrie, path_trie
from treeopt.acceptance.paths import PathCounts
from treeopt.arrays import BoolArray, IntArray
from treeopt.tree import MAX_DEPTH

PAST_END: Final = -2
TRACE_FORMAT: Final = "a trace has rank [T, D] (0: top guess, -1: not listed, -2: past the end), doc_id [T] and pos [T]"
_WALK_ROWS: Final = 1 << 16
_WIDE_ROWS: Final = 1 << 18
# From so many documents on a step for all of them is faster than doublings, up to so many cells for each row.
_SIDE_BY_SIDE: Final = 48
_PADDED: Final = 4
_MOST: Final = 1.001  # a probability in half precision


@dataclass(frozen=True, kw_only=True, eq=False)
class Walk:
    """A block of n rows of whole documents, as replays walk on it; row n takes the walks that are over.

    Args:
        rows: where the block is in the trace.
        firsts: `[documents]` first row of each document in the block.
        numbers: `[documents]` which document of the trace it is.
        begun: `[n + 1]` whether a draft may start at a row.
        starts: `[n + 1]` whether a walk starts at a row: at each of the first D positions of a document.
        depth: D.
    """

    rows: slice
    firsts: IntArray
    numbers: IntArray
    begun: BoolArray
    starts: BoolArray
    depth: int

    @property
    def sizes(self) -> IntArray:
        """`[documents]` rows of each."""
        return np.diff(self.firsts, append=self.rows.stop - self.rows.start)

    @property
    def end(self) -> IntArray:
        """`[n]` the first row behind the row's document."""
        return np.repeat(self.firsts + self.sizes, self.sizes)

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """`[n]` values of the rows as `[documents, longest]`, 0 behind a document's end."""
        if self._cells.all():
            return values.reshape(self._cells.shape)
        found = np.zeros(self._cells.shape, dtype=values.dtype)
        found[self._cells] = values
        return found

    def gathered(self, cells: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """`[n]` the values of the rows from what is spread."""
        return np.asarray(cells[self._cells])

    @cached_property
    def _cells(self) -> BoolArray:
        return np.asarray(np.arange(self.sizes.max()) < self.sizes[:, None])

    @cached_property
    def is_wide(self) -> bool:
        """Whether its documents are many and of like length, so that they are walked side by side."""
        size = self.sizes
        return bool(len(size) >= _SIDE_BY_SIDE and len(size) * size.max() <= _PADDED * size.sum())


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
        check_rank(self.rank)
        if not len(self):
            raise EvidenceError("the trace is empty", keys=(), hint="record at least one position")
        _check_array("doc_id", self.doc_id, self.rank.shape[:1], kinds="iuUS")
        _check_array("pos", self.pos, self.rank.shape[:1], kinds="iu")
        if self.topk_prob is not None:
            _check_array("topk_prob", self.topk_prob, (*self.rank.shape, *self.topk_prob.shape[2:][-1:]), kinds="f")
            _check_probabilities(self.topk_prob)
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
    def numbers(self) -> IntArray:
        """`[documents]` number of each document, in the order of recording."""
        return np.asarray(np.unique(self.doc_id[self.bounds[:-1]], return_inverse=True)[1])

    @property
    def document(self) -> IntArray:
        """`[T]` number of each row's document."""
        return np.repeat(self.numbers, np.diff(self.bounds))

    @cached_property
    def complete(self) -> BoolArray:
        """`[T]` whether the row is recorded to depth D; only the last rows of a document are not."""
        return np.asarray(self.rank[:, -1] != PAST_END)

    @cached_property
    def walks(self) -> tuple[Walk, ...]:
        """What every replay of the trace walks on, by blocks of whole documents that a processor's cache holds."""
        wide = len(self) / self.documents < _WIDE_ROWS / _SIDE_BY_SIDE
        size = _WIDE_ROWS if wide else _WALK_ROWS
        every = np.searchsorted(self.bounds, np.arange(0, len(self), size), side="right") - 1
        firsts = [*dict.fromkeys(every.tolist()), self.documents]
        return tuple(self._walk(low, high) for low, high in pairwise(firsts))

    def _walk(self, low: int, high: int) -> Walk:
        bounds = self.bounds[low : high + 1]
        size, rows = np.diff(bounds), slice(int(bounds[0]), int(bounds[-1]))
        phase = np.arange(int(size.sum())) - np.repeat(bounds[:-1] - bounds[0], size)
        complete = np.asarray(self.rank[rows, -1] != PAST_END)
        return Walk(
            rows=rows,
            firsts=bounds[:-1] - bounds[0],
            numbers=self.numbers[low:high],
            begun=np.append(complete, False),
            starts=np.append(complete & (phase < self.depth), False),
            depth=self.depth,
        )

    def select(self, documents: BoolArray) -> Trace:
        """The trace of the documents that `documents [documents]` marks."""
        rows = documents[self.document]
        topk_prob = None if self.topk_prob is None else self.topk_prob[rows]
        return Trace(rank=self.rank[rows], doc_id=self.doc_id[rows], pos=self.pos[rows], topk_prob=topk_prob)

    def count(self, weight: npt.NDArray[np.number] | None = None, *, unit: float = 1.0) -> PathCounts:
        """The trie of rank paths over all rows, weighted by `[T]` in parts of `unit`; rows of weight 0 leave no trace.

        Raises:
            EvidenceError: no recorded rank was ever right.
        """
        trie, row = self.paths
        total = np.zeros(trie.rows)
        for start in range(0, len(self), _WIDE_ROWS):  # bincount copies what it counts
            part = slice(start, start + _WIDE_ROWS)
            total += np.bincount(row[part], None if weight is None else weight[part], trie.rows)
        return trie.counts(total / unit)

    @cached_property
    def paths(self) -> tuple[PathTrie, npt.NDArray[np.int32]]:
        """The trie of the recorded paths, and `[T]` which of its distinct rows each row is."""
        return path_trie(self.rank)


def check_rank(rank: npt.NDArray[Any]) -> None:
    """Refuse what cannot be ranks.

    Raises:
        EvidenceError: no whole numbers `[T, D]`, one below -2, or more than `MAX_DEPTH` depths.
    """
    if rank.ndim != 2 or rank.shape[1] == 0 or rank.dtype.kind not in "iu":
        raise EvidenceError(
            f"'rank' is {rank.dtype} {list(rank.shape)}, expected whole numbers [T, D]",
            keys=("rank",),
            hint=TRACE_FORMAT,
        )
    if rank.shape[1] > MAX_DEPTH:
        raise EvidenceError(
            f"'rank' records {rank.shape[1]} depths",
            keys=("rank",),
            hint=f"expected 1 to {MAX_DEPTH}: [T, D], not [D, T]",
        )
    if rank.size and rank.min() < PAST_END:
        raise EvidenceError(
            f"'rank' holds {rank.min()}; the lowest legal value is {PAST_END}", keys=("rank",), hint=TRACE_FORMAT
        )


def _check_array(name: str, array: npt.NDArray[Any], expected: tuple[int, ...], *, kinds: str) -> None:
    if array.dtype.kind not in kinds:
        what = {"iuUS": "whole numbers or text", "iu": "whole numbers", "f": "numbers with a fraction"}[kinds]
        raise EvidenceError(f"'{name}' is {array.dtype}, expected {what}", keys=(name,), hint=TRACE_FORMAT)
    if array.shape != expected:
        raise EvidenceError(
            f"'{name}' has {list(array.shape)} entries, 'rank' needs {list(expected)}",
            keys=(name,),
            hint="give doc_id [T], pos [T] and topk_prob [T, D, K] for rank [T, D]",
        )


def _check_probabilities(prob: npt.NDArray[np.floating]) -> None:
    flat = prob.reshape(-1)
    for start in range(0, flat.size, CHUNK_ROWS):
        part = flat[start : start + CHUNK_ROWS]
        wrong = ~((part >= 0) & (part <= _MOST))  # which no NaN is
        if wrong.any():
            at = tuple(int(i) for i in np.unravel_index(start + int(np.argmax(wrong)), prob.shape))
            raise EvidenceError(
                f"row {at[0]}: 'topk_prob' is {prob[at]:g} at depth {at[1] + 1}, guess {at[2]}",
                keys=("topk_prob", *at),
                hint="probabilities are 0 to 1: record softmax values, not logits",
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
    gap = np.zeros(len(trace) - 1, dtype=np.bool_)
    for start in range(0, len(gap), CHUNK_ROWS):
        pos = trace.pos[start : start + CHUNK_ROWS + 1].astype(np.int64)
        gap[start : start + CHUNK_ROWS] = np.diff(pos) != 1
    gap[trace.bounds[1:-1] - 1] = False
    if gap.any():
        row = int(np.argmax(gap)) + 1
        raise EvidenceError(
            f"row {row}: position {trace.pos[row]} follows {trace.pos[row - 1]} in document {trace.doc_id[row]}",
            keys=("pos", row),
            hint="record every position once, in order: replay jumps from row to row",
        )


def _check_cuts(trace: Trace) -> None:
    wrong = np.zeros(len(trace), dtype=np.bool_)
    for start in range(0, len(trace), CHUNK_ROWS):
        ended = trace.rank[start : start + CHUNK_ROWS] == PAST_END
        wrong[start : start + CHUNK_ROWS] = np.any(ended[:, :-1] & ~ended[:, 1:], axis=1)
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
