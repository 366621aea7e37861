"""Path evidence: how often the target followed exactly this rank path, as a trie of counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.acceptance.errors import EvidenceError
from treeopt.arrays import FloatArray, IntArray
from treeopt.tree import RankPath

MAX_RANKS = 254  # that are told apart: a digit holds rank + 1, a miss or a cut in a byte


@dataclass(frozen=True, kw_only=True)
class TrieLevel:
    """The nodes of one depth, sorted by (parent, rank).

    `parent` indexes the level above, `count` is how often the path was followed, `trials` how many of those went
    on to a recorded next depth (the rest were cut off by the end of the document).
    """

    parent: IntArray
    rank: IntArray
    count: FloatArray
    trials: FloatArray


@dataclass(frozen=True)
class PathCount:
    """One line of a paths profile: the path, how often it was followed, and how often its next depth was recorded."""

    path: RankPath
    count: float
    trials: float


@dataclass(frozen=True, kw_only=True)
class PathCounts:
    """A trie of counted rank paths; `starts` are the positions whose first depth was recorded."""

    starts: float
    levels: tuple[TrieLevel, ...]

    @property
    def depth(self) -> int:
        """Deepest counted path."""
        return len(self.levels)

    @cached_property
    def ranks(self) -> int:
        """K, one more than the largest counted rank."""
        return 1 + max(int(level.rank.max(initial=0)) for level in self.levels)

    @property
    def trials(self) -> float:
        """Drafts behind the evidence."""
        return self.starts

    def find(self, paths: IntArray) -> IntArray:
        """`[n, d]` rank paths to `[n]` indices into level d (0 for the root), -1 where never followed."""
        at = np.zeros(len(paths), dtype=np.int64)
        for level, rank in zip(self.levels, paths.T, strict=False):
            keys = level.parent * self.ranks + level.rank
            wanted = np.where((at >= 0) & (rank < self.ranks), at * self.ranks + rank, -1)
            slot = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            at = np.where(keys[slot] == wanted, slot, -1)
        return at

    def child_counts(self, depth: int, nodes: IntArray) -> FloatArray:
        """`[n]` node indices of level `depth` (0: the root; -1: none) to `[n, K]` counts of each next rank."""
        level = self.levels[depth]
        first = np.searchsorted(level.parent, nodes, side="left")
        length = np.where(nodes >= 0, np.searchsorted(level.parent, nodes, side="right") - first, 0)
        row = np.repeat(np.arange(len(nodes)), length)
        offset = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        child = np.repeat(first, length) + offset
        rows = np.zeros((len(nodes), self.ranks))
        rows[row, level.rank[child]] = level.count[child]
        return rows

    def node_trials(self, depth: int, nodes: IntArray) -> FloatArray:
        """`[n]` node indices of level `depth` to how often the next depth was recorded there (0 for none)."""
        if depth == 0:
            return np.full(len(nodes), self.starts)
        return np.where(nodes >= 0, self.levels[depth - 1].trials[nodes], 0.0)

    def __iter__(self) -> Iterator[PathCount]:
        """All counted paths, by (depth, path)."""
        paths: list[RankPath] = [()]
        for level in self.levels:
            paths = [(*paths[p], r) for p, r in zip(level.parent.tolist(), level.rank.tolist(), strict=True)]
            yield from map(PathCount, paths, level.count.tolist(), level.trials.tolist())

    @classmethod
    def from_items(cls, starts: float, items: Iterable[PathCount]) -> PathCounts:
        """From listed paths in any order.

        Raises:
            EvidenceError: a path without its parent, listed twice, or followed more often than its parent.
        """
        listed = list(items)
        position = {item.path: i for i, item in enumerate(listed)}
        if len(position) != len(listed):
            i = next(i for i, item in enumerate(listed) if position[item.path] != i)
            raise EvidenceError(
                f"path {list(listed[i].path)} is listed twice", keys=("paths", i), hint="add the two counts"
            )
        order = sorted(range(len(listed)), key=lambda i: (len(listed[i].path), listed[i].path))
        index: dict[RankPath, int] = {(): 0}
        by_depth: list[list[PathCount]] = []
        used: dict[RankPath, float] = {}
        for i in order:
            item = listed[i]
            parent = item.path[:-1]
            if parent not in index:
                raise EvidenceError(
                    f"path {list(item.path)} has no parent {list(parent)}",
                    keys=("paths", i),
                    hint="a path is followed only through its parent: list the parent's count too",
                )
            trials = starts if not parent else listed[position[parent]].trials
            used[parent] = used.get(parent, 0.0) + item.count
            if used[parent] > trials * (1 + 1e-9):
                raise EvidenceError(
                    f"path {list(item.path)}: the children of {list(parent)} were followed {used[parent]:g} times, "
                    f"their parent {trials:g}",
                    keys=("paths", i),
                    hint="counts never rise along a path: check the order of count and path",
                )
            if len(item.path) > len(by_depth):
                by_depth.append([])
            index[item.path] = len(by_depth[-1])
            by_depth[-1].append(item)
        if not by_depth:
            raise EvidenceError("no path was ever followed", keys=("paths",), hint="record a longer trace")
        return cls(starts=starts, levels=tuple(_level(items, index) for items in by_depth))


def _level(items: list[PathCount], index: dict[RankPath, int]) -> TrieLevel:
    return TrieLevel(
        parent=np.array([index[i.path[:-1]] for i in items], dtype=np.int64),
        rank=np.array([i.path[-1] for i in items], dtype=np.int64),
        count=np.array([i.count for i in items], dtype=np.float64),
        trials=np.array([i.trials for i in items], dtype=np.float64),
    )
