"""From recorded ranks to counted paths: every row a key of bytes, and the trie of the distinct keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.paths import MAX_RANKS, PathCounts, TrieLevel
from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.tree import DraftTree

CHUNK_ROWS = 1 << 20
MISS = 0  # the right token was beyond the recorded ranks
CUT = MAX_RANKS + 1  # the document ended before this depth


class _ChunkKeys(NamedTuple):
    """The distinct keys of a chunk, sorted, and `[T]` which of them each row has."""

    keys: npt.NDArray[np.generic]
    row: npt.NDArray[np.int32]


class PathCounter:
    """Counts rank paths over chunks of a trace, in memory that grows with the distinct paths only.

    Each row becomes one key of bytes, rank + 1 per depth, ended by a miss (0) or a cut (255): sorting the keys sorts
    the paths, so one sort per chunk counts all depths.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.keys: npt.NDArray[np.generic] = _pack(np.zeros((0, depth), dtype=np.uint8))
        self._counts = np.zeros(0)

    def add(self, rank: npt.NDArray[np.integer], weight: FloatArray | None = None) -> _ChunkKeys:
        """Count the rows of `rank [T, D]` (-1 beyond the recorded ranks, -2 beyond the document), weighted by `[T]`."""
        keys, inverse, counts = np.unique(_pack(_digits(rank)), return_inverse=True, return_counts=True)
        chunk = counts.astype(np.float64) if weight is None else _sums(inverse, weight, len(keys))
        merged, slot = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        self._counts = _sums(slot, np.concatenate([self._counts, chunk]), len(merged))
        self.keys = merged
        return _ChunkKeys(keys, inverse.astype(np.int32))

    def result(self) -> PathCounts:
        """The trie of everything counted.

        Raises:
            EvidenceError: nothing was counted, or no recorded rank was ever right.
        """
        return PathTrie.of(_unpack(self.keys, self.depth)).counts(self._counts)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Level:
    """One depth of a trie: `[n]` which of the distinct rows reach it, each one's node, and whether it is cut behind it.

    `parent [m]` and `rank [m]` are those of the nodes, sorted by both.
    """

    rows: IntArray
    node: IntArray
    cut: BoolArray
    parent: IntArray
    rank: IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class PathTrie:
    """The trie of distinct rows, which any weights of the rows count without sorting again.

    Which weights rows have depends on where a draft's own drafts start: a search asks for hundreds.
    """

    rows: int
    starting: BoolArray
    levels: tuple[_Level, ...]

    @classmethod
    def of(cls, digits: npt.NDArray[np.uint8]) -> PathTrie:
        """The trie of sorted rows of `_digits`."""
        return cls(rows=len(digits), starting=digits[:, 0] != CUT, levels=tuple(_trie_levels(digits)))

    def counts(self, weight: FloatArray) -> PathCounts:
        """The paths counted under `[rows]` weights; rows of weight 0 leave no trace.

        Raises:
            EvidenceError: nothing was counted, or no recorded rank was ever right.
        """
        starts = weight[self.starting]
        starts = starts[starts > 0]
        if not len(starts):
            raise EvidenceError("the trace is empty", keys=(), hint="record at least one position")
        above, levels = np.zeros(1, dtype=np.int64), []
        for level in self.levels:
            own, size = weight[level.rows], len(level.rank)
            count = _sums(level.node, own, size)
            kept = count > 0
            if not kept.any():
                break
            trials = count - _sums(level.node, own * level.cut, size)
            parent, rank = above[level.parent[kept]], level.rank[kept]
            levels.append(TrieLevel(parent=parent, rank=rank, count=count[kept], trials=trials[kept]))
            above = np.cumsum(kept) - 1
        if not levels:
            raise EvidenceError(
                "no recorded rank was ever the target's token",
                keys=(),
                hint="check how ranks were recorded: 0 is the top guess",
            )
        return PathCounts(starts=float(starts.sum()), levels=tuple(levels))

    def accepted(self, tree: DraftTree) -> IntArray:
        """`[rows]` depth of the tree's deepest node on each row; its ranks are below `MAX_RANKS`."""
        found = np.zeros(self.rows, dtype=np.int64)
        at = np.full(len(tree), -1)  # where each of the tree's nodes is on its level, -1 for nowhere
        at[0] = 0
        for depth, level in enumerate(self.levels[: tree.depth], start=1):
            nodes = np.flatnonzero(tree.depths == depth)
            above = at[tree.parents[nodes]]
            keys, wanted = level.parent * MAX_RANKS + level.rank, above * MAX_RANKS + tree.ranks[nodes]
            slot = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            at[nodes] = np.where((above >= 0) & (keys[slot] == wanted), slot, -1)
            in_tree = np.zeros(len(keys), dtype=np.bool_)
            in_tree[at[nodes][at[nodes] >= 0]] = True
            found[level.rows] += in_tree[level.node]
        return found


def path_trie(rank: npt.NDArray[np.integer]) -> tuple[PathTrie, npt.NDArray[np.int32]]:
    """The trie of `rank [T, D]`, and `[T]` which of its distinct rows each row is."""
    depth = rank.shape[1]
    if len(rank) <= CHUNK_ROWS:
        keys, row = np.unique(_pack(_digits(rank)), return_inverse=True)
        return PathTrie.of(_unpack(keys, depth)), row.astype(np.int32)
    counter = PathCounter(depth)  # sorting needs several times the memory of what it sorts
    chunks = [counter.add(rank[start : start + CHUNK_ROWS]) for start in range(0, len(rank), CHUNK_ROWS)]
    row = np.empty(len(rank), dtype=np.int32)
    for i, chunk in enumerate(chunks):
        row[i * CHUNK_ROWS : (i + 1) * CHUNK_ROWS] = np.searchsorted(counter.keys, chunk.keys)[chunk.row]
        chunks[i] = _ChunkKeys(chunk.keys[:0], chunk.row[:0].copy())
    return PathTrie.of(_unpack(counter.keys, depth)), row


def _pack(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
    depth = digits.shape[1]
    words = -(-depth // 8)
    padded = np.zeros((len(digits), words * 8), dtype=np.uint8)
    padded[:, :depth] = digits
    packed = padded.view(">u8").astype(np.uint64)
    if words == 1:
        return packed.ravel()
    fields = [(f"w{i}", np.uint64) for i in range(words)]
    return np.ascontiguousarray(packed).view(fields).ravel()


def _unpack(keys: npt.NDArray[np.generic], depth: int) -> npt.NDArray[np.uint8]:
    words = -(-depth // 8)
    packed = keys.view(np.uint64).reshape(-1, words)
    return packed.astype(">u8").view(np.uint8).reshape(-1, words * 8)[:, :depth]


def _digits(rank: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
    digits = np.empty(rank.shape, dtype=np.uint8)
    ended = np.zeros(len(rank), dtype=np.bool_)
    most = min(MAX_RANKS, np.iinfo(rank.dtype).max)
    for d in range(rank.shape[1]):
        own = np.minimum(rank[:, d], most).astype(np.int16) + 1
        own[(own > MAX_RANKS) | ended] = MISS
        digits[:, d] = own.astype(np.uint8)  # -2, cut, wraps to 255
        ended |= own <= 0
    return digits


def _sums(slot: IntArray, weight: FloatArray, size: int) -> FloatArray:
    return np.bincount(slot, weight, size).astype(np.float64)


def _trie_levels(digits: npt.NDArray[np.uint8]) -> Iterator[_Level]:
    rows = np.arange(len(digits))
    node = np.zeros(len(digits), dtype=np.int64)  # each row's node on the level above
    for d in range(digits.shape[1]):
        alive = (digits[:, d] != MISS) & (digits[:, d] != CUT)
        digits, rows, node = digits[alive], rows[alive], node[alive]
        if not len(digits):
            return
        rank = digits[:, d].astype(np.int64) - 1
        new = np.ones(len(digits), dtype=np.bool_)
        new[1:] = (node[1:] != node[:-1]) | (rank[1:] != rank[:-1])
        child = np.cumsum(new) - 1
        cut = digits[:, d + 1] == CUT if d + 1 < digits.shape[1] else np.zeros(len(digits), dtype=np.bool_)
        yield _Level(rows=rows, node=child, cut=cut, parent=node[new], rank=rank[new])
        node = child
