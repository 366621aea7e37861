"""The draft tree: which guesses a request verifies in one step, and every array that follows from that."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treeopt.arrays import BoolArray, IntArray, distinct
from treeopt.errors import TreeError

RankPath = tuple[int, ...]


MAX_NODES = 4096  # far more than pays anywhere
MAX_DEPTH = 1024  # far above what any drafter drafts
MAX_PREFIX = 10**9
MAX_RANK = 1 << 20  # beyond any vocabulary


@dataclass(frozen=True)
class DraftTree:
    """A set of rank paths closed under prefixes; node 0 is the root, nodes are sorted by (depth, path).

    `paths` holds the rank paths without the root, in any order; they are sorted when the tree is built.
    `DraftTree(())` has the root only: plain decoding.

    Raises:
        TreeError: a path that is empty (the root), negative, a duplicate, or without its parent.
    """

    paths: tuple[RankPath, ...]

    def __post_init__(self) -> None:
        paths = tuple(sorted((_checked_path(p) for p in self.paths), key=lambda p: (len(p), p)))
        known: set[RankPath] = {()}
        for path in paths:
            if path in known:
                raise TreeError(f"path {list(path)} is listed twice", hint="list every node once")
            if path[:-1] not in known:
                raise TreeError(
                    f"path {list(path)} has no parent {list(path[:-1])}",
                    hint="every prefix of a path must be a node too: add the parent or drop the path",
                )
            known.add(path)
        object.__setattr__(self, "paths", paths)

    def __hash__(self) -> int:
        return self._hash  # trees are the keys of what is known of them, asked for again and again

    @cached_property
    def _hash(self) -> int:
        return hash(self.paths)

    @classmethod
    def from_parents(cls, parents: Sequence[int], ranks: Sequence[int] | None = None) -> DraftTree:
        """The tree of a parent array.

        Args:
            parents: `[N]`, the parent of each node, -1 for the root; nodes may come in any order.
            ranks: `[N]`, the rank of each node among its siblings (the root's is ignored); without it siblings
                are ranked in the order in which they are listed, as Sequoia's growmaps do.

        Raises:
            TreeError: not exactly one root, a parent that does not exist, a cycle, or siblings of equal rank.
        """
        parents = [_whole(p, "parent") for p in parents]
        roots = [i for i, p in enumerate(parents) if p == -1]
        if len(roots) != 1:
            raise TreeError(
                f"a parent array needs one root (-1), found {len(roots)}", hint="mark only the root with -1"
            )
        if ranks is not None and len(ranks) != len(parents):
            raise TreeError(f"{len(parents)} parents but {len(ranks)} ranks", hint="give one rank per node")
        children: list[list[int]] = [[] for _ in parents]
        for node, parent in enumerate(parents):
            if parent != -1:
                if not 0 <= parent < len(parents):
                    raise TreeError(
                        f"node {node} has parent {parent}, but nodes go from 0 to {len(parents) - 1}",
                        hint="parents are indices into the same array, -1 for the root",
                    )
                children[parent].append(node)
        path_of: dict[int, RankPath] = {roots[0]: ()}
        queue = deque(roots)
        while queue:
            parent = queue.popleft()
            for order, node in enumerate(children[parent]):
                rank = order if ranks is None else _whole(ranks[node], "rank")
                path_of[node] = (*path_of[parent], rank)
                queue.append(node)
        if len(path_of) != len(parents):
            lost = next(i for i in range(len(parents)) if i not in path_of)
            raise TreeError(
                f"node {lost} is in a cycle: its parents never reach the root",
                hint="follow the parents of that node",
            )
        return cls(tuple(p for p in path_of.values() if p))

    @classmethod
    def from_widths(cls, widths: Sequence[int]) -> DraftTree:
        """The full tree in which every node at depth d has `widths[d]` children (Medusa's first format)."""
        level: list[RankPath] = [()]
        paths: list[RankPath] = []
        size = 1
        for depth, width in enumerate(widths):
            size += len(level) * max(width, 0)
            if size > MAX_NODES:  # before they are listed
                raise _too_large(size)
            if width < 1:
                raise TreeError(
                    f"width {width} at depth {depth + 1}",
                    hint="every level needs at least one child per node",
                )
            level = [(*path, rank) for path in level for rank in range(width)]
            paths += level
        return cls(tuple(paths))

    @classmethod
    def chain(cls, depth: int) -> DraftTree:
        """The top guess at every depth, `depth` tokens long; 0 is plain decoding."""
        if depth < 0:
            raise TreeError(f"a chain of depth {depth}", hint="give a depth of 0 or more")
        if depth > MAX_DEPTH:
            raise TreeError(f"a chain of {depth} tokens", hint=f"no drafter drafts more than {MAX_DEPTH}")
        return cls.from_widths([1] * depth)

    def __len__(self) -> int:
        """N, the tokens a request verifies per step, root included."""
        return len(self.paths) + 1

    @cached_property
    def nodes(self) -> tuple[RankPath, ...]:
        """`[N]` rank paths, the root `()` first."""
        return ((), *self.paths)

    @cached_property
    def parents(self) -> IntArray:
        """`[N]` parent index of each node, -1 for the root; a parent always precedes its children."""
        index = {path: i for i, path in enumerate(self.nodes)}
        return np.array([-1, *(index[p[:-1]] for p in self.paths)], dtype=np.int64)

    @cached_property
    def depths(self) -> IntArray:
        """`[N]` depth of each node; the root has 0."""
        return np.array([len(p) for p in self.nodes], dtype=np.int64)

    @cached_property
    def ranks(self) -> IntArray:
        """`[N]` rank of each node among its parent's guesses; -1 for the root."""
        return np.array([-1, *(p[-1] for p in self.paths)], dtype=np.int64)

    @property
    def depth(self) -> int:
        """D, the longest path; the drafter runs once per depth."""
        return len(self.paths[-1]) if self.paths else 0

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """`[N]` indices of each node's children, by rank."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for node, parent in enumerate(self.parents[1:].tolist(), start=1):
            found[parent].append(node)
        return tuple(tuple(c) for c in found)

    @property
    def level_sizes(self) -> IntArray:
        """`[D + 1]` nodes at each depth, the root's level first."""
        return np.bincount(self.depths, minlength=self.depth + 1).astype(np.int64)

    @property
    def expanded_widths(self) -> IntArray:
        """`[D]` nodes at depth 0..D-1 that have children: what the drafter's pass at that depth processes."""
        expanded = distinct(self.parents[1:])
        return np.bincount(self.depths[expanded], minlength=self.depth)[: self.depth].astype(np.int64)

    @property
    def has_rank_gaps(self) -> bool:
        """Whether some node lacks a better-ranked sibling: legal, but some engines cannot draft it."""
        return any([self.paths[c - 1][-1] for c in kids] != list(range(len(kids))) for kids in self.children)

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling; the empty tree is a chain of depth 0."""
        return len(self) == self.depth + 1

    @cached_property
    def ancestor_mask(self) -> BoolArray:
        """`[N, N]` attention among the tree's tokens: row i is true at i and at its ancestors."""
        mask = np.eye(len(self), dtype=np.bool_)
        for node, parent in enumerate(self.parents[1:].tolist(), start=1):
            mask[node] |= mask[parent]
        return mask

    def step_mask(self, prefix_len: int) -> BoolArray:
        """`[N, L + N]` attention of a step: every node sees the whole prefix, its ancestors and itself."""
        prefix = np.ones((len(self), _checked_length(prefix_len)), dtype=np.bool_)
        return np.concatenate([prefix, self.ancestor_mask], axis=1)

    def positions(self, prefix_len: int) -> IntArray:
        """`[N]` position ids: L + depth, so siblings share one."""
        return _checked_length(prefix_len) + self.depths

    @cached_property
    def ancestor_bits(self) -> npt.NDArray[np.uint64]:
        """`[N, ceil(N / 64)]` the ancestor mask packed: bit j % 64 of word j // 64 is column j."""
        words = -(-len(self) // 64)
        padded = np.zeros((len(self), words * 64), dtype=np.bool_)
        padded[:, : len(self)] = self.ancestor_mask
        packed = np.packbits(padded, axis=1, bitorder="little")
        return packed.view("<u8").astype(np.uint64).reshape(len(self), words)

    @cached_property
    def euler_intervals(self) -> IntArray:
        """`[N, 2]` (enter, exit) of a depth-first walk: node i sees node j iff enter_j <= enter_i < exit_j."""
        size = np.ones(len(self), dtype=np.int64)
        for node in range(len(self) - 1, 0, -1):
            size[self.parents[node]] += size[node]
        enter = np.zeros(len(self), dtype=np.int64)
        for node, kids in enumerate(self.children):
            offset = enter[node] + 1
            for kid in kids:
                enter[kid] = offset
                offset += size[kid]
        return np.stack([enter, enter + size], axis=1)


def _checked_path(path: Iterable[int]) -> RankPath:
    ranks = tuple(path)
    if not ranks:
        raise TreeError("the root is listed as a path", hint="leave the empty path out: node 0 is always the root")
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer):
            raise TreeError(f"path {list(ranks)} holds {rank!r}", hint="ranks are whole numbers, 0 for the top guess")
        if rank < 0:
            raise TreeError(f"path {list(ranks)} has a negative rank", hint="ranks start at 0, the top guess")
        if rank > MAX_RANK:
            raise TreeError(f"path {list(ranks)} has a rank above {MAX_RANK}", hint="no drafter lists so many guesses")
    return tuple(int(r) for r in ranks)


def _too_large(nodes: int) -> TreeError:
    return TreeError(f"a tree of {nodes} nodes", hint=f"give {MAX_NODES} or fewer")


def _whole(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TreeError(f"{what} {value!r}", hint="parents, ranks and lengths are whole numbers")
    return int(value)


def _checked_length(prefix_len: int) -> int:
    if not 0 <= _whole(prefix_len, "prefix length") <= MAX_PREFIX:
        raise TreeError(f"a context of {prefix_len} tokens is out of range", hint=f"give 0 to {MAX_PREFIX}")
    return prefix_len
