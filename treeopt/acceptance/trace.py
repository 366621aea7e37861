"""Traces: per position, the rank of the target's own token among the drafter's guesses at each depth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.path_trie import PathCounter, PathTrie, path_trie
from treeopt.acceptance.paths import PathCounts
from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.tree import MAX_DEPTH

PAST_END: Final = -2
TRACE_FORMAT: Final = "a trace has rank [T, D] (0: top guess, -1: not listed, -2: past the end), doc_id [T] and pos [T]"
_CHUNK_ROWS: Final = 1 << 20
_MOST: Final = 1.001  # a probability in half precision


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
    def document(self) -> IntArray:
        """`[T]` number of each row's document."""
        _, number = np.unique(self.doc_id[self.bounds[:-1]], return_inverse=True)
        return np.repeat(number, np.diff(self.bounds))

    @cached_property
    def complete(self) -> BoolArray:
        """`[T]` whether the row is recorded to depth D; only the last rows of a document are not."""
        return np.asarray(self.rank[:, -1] != PAST_END)

    @cached_property
    def walk(self) -> tuple[BoolArray, IntArray, FloatArray]:
        """What every replay of the trace walks on.

        `[T + 1]` whether a draft may start at a row, `[T]` the first row behind the row's document, and `[T + 1]` 1
        where a walk starts: at each of the first D positions of a document. Row T is none.
        """
        size = np.diff(self.bounds)
        phase = np.arange(len(self)) - np.repeat(self.bounds[:-1], size)
        starts = np.append(self.complete & (phase < self.depth), False).astype(np.float64)
        return np.append(self.complete, False), np.repeat(self.bounds[1:], size), starts

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
        if weight is None and len(self) > _CHUNK_ROWS:  # sorting needs several times the memory of what it sorts
            counter = PathCounter(self.depth)
            for start in range(0, len(self), _CHUNK_ROWS):
                counter.add(self.rank[start : start + _CHUNK_ROWS])
            return counter.result()
        trie, row = self.paths
        return trie.counts(np.bincount(row, weight, trie.rows).astype(np.float64))

    @cached_property
    def paths(self) -> tuple[PathTrie, IntArray]:
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
    for start in range(0, flat.size, _CHUNK_ROWS):
        part = flat[start : start + _CHUNK_ROWS]
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
    gap = np.diff(trace.pos.astype(np.int64, copy=False)) != 1
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
