"""One tree as the index tables that an engine captures into a CUDA graph, padded to a given size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeopt.arrays import BoolArray, IntArray
from treeopt.errors import InputError
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that tables are padded to: P nodes, F leaves, and per drafter pass X parents and Y children.

    Tables of one shape can stand in for each other in one captured graph.
    """

    nodes: int
    leaves: int
    parents: tuple[int, ...]
    children: tuple[int, ...]

    @property
    def depth(self) -> int:
        """D, the drafter passes."""
        return len(self.parents)

    @classmethod
    def of(cls, tree: DraftTree, *, multiple_of: int = 1) -> Shape:
        """The tree's own sizes, the nodes rounded up to a multiple.

        Raises:
            InputError: a multiple below 1.
        """
        if multiple_of < 1:
            raise InputError(f"multiples of {multiple_of} nodes", hint="give 1 or more")
        return cls(
            nodes=-(-len(tree) // multiple_of) * multiple_of,
            leaves=sum(not kids for kids in tree.children),
            parents=tuple(tree.expanded_widths.tolist()),
            children=tuple(tree.level_sizes[1:].tolist()),
        )

    def __or__(self, other: Shape) -> Shape:
        """The smallest shape that holds both."""
        return Shape(
            nodes=max(self.nodes, other.nodes),
            leaves=max(self.leaves, other.leaves),
            parents=_larger(self.parents, other.parents),
            children=_larger(self.children, other.children),
        )


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One drafter pass: which nodes it processes, and where each new node's token is found in what it lists.

    With K guesses listed per processed node, node `nodes[i]` of the tree gets the token at `parent_slot[i] * K +
    rank[i]` of the pass's flat `[X * K]` list.

    Args:
        parents: `[X]` nodes that the drafter processes; padding processes the root again.
        nodes: `[Y]` nodes that get a token; padding writes to node P, a spare place behind the tree.
        parent_slot: `[Y]` index into `parents`; padding reads slot 0.
        rank: `[Y]` rank among that parent's guesses; padding reads rank 0.
    """

    parents: IntArray
    nodes: IntArray
    parent_slot: IntArray
    rank: IntArray


@dataclass(frozen=True, kw_only=True)
class Tables:
    """A tree of N nodes in the places 0..N-1 of P; the others are padding that no real node sees or leads to.

    Padding attends to itself only (a softmax over nothing would be NaN), has the root's position, no parent and no
    links, and is not `valid`. What is missing elsewhere is -1.

    Args:
        valid: `[P]` whether the place holds a node.
        parents: `[P]` parent of each node; -1 for the root.
        depths: `[P]` depth, to be added to the committed length for position ids.
        ranks: `[P]` rank among the parent's guesses; -1 for the root.
        mask: `[P, P]` attention among the step's tokens: node, ancestors.
        bits: `[P, ceil(P / 64)]` the same mask, bit j % 64 of word j // 64 is column j, as int64.
        next_child: `[P]` first child; -1 for a leaf.
        next_sibling: `[P]` next child of the same parent, by rank; -1 for the last.
        leaves: `[F]` nodes without children; padded with -1.
        retrieve_paths: `[F, D + 1]` nodes from the root to each leaf, padded with -1.
        passes: one per drafter pass.
    """

    valid: BoolArray
    parents: IntArray
    depths: IntArray
    ranks: IntArray
    mask: BoolArray
    bits: IntArray
    next_child: IntArray
    next_sibling: IntArray
    leaves: IntArray
    retrieve_paths: IntArray
    passes: tuple[Pass, ...]


def tables_of(tree: DraftTree, shape: Shape | None = None) -> Tables:
    """The tables of a tree, padded to a shape (default: its own).

    Raises:
        InputError: the tree does not fit the shape.
    """
    own = Shape.of(tree)
    shape = own if shape is None else shape
    if own | shape != shape:
        raise InputError(f"a tree of {len(tree)} nodes does not fit {shape}", hint="pad to a larger shape")
    P, N = shape.nodes, len(tree)
    mask = np.eye(P, dtype=np.bool_)
    mask[:N, :N] = tree.ancestor_mask
    leaves = np.array([i for i, kids in enumerate(tree.children) if not kids], dtype=np.int64)
    return Tables(
        valid=np.arange(P) < N,
        parents=_padded(tree.parents, P, -1),
        depths=_padded(tree.depths, P, 0),
        ranks=_padded(tree.ranks, P, -1),
        mask=mask,
        bits=_packed(mask),
        next_child=_padded(np.array([min(kids, default=-1) for kids in tree.children]), P, -1),
        next_sibling=_padded(_next_sibling(tree), P, -1),
        leaves=_padded(leaves, shape.leaves, -1),
        retrieve_paths=_retrieve_paths(tree, leaves, shape),
        passes=tuple(_pass(tree, depth, shape) for depth in range(shape.depth)),
    )


def _larger(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    depth = max(len(a), len(b))
    return tuple(max(pair) for pair in zip(*(sizes + (0,) * (depth - len(sizes)) for sizes in (a, b)), strict=True))


def _padded(values: npt.NDArray[np.int64], size: int, fill: int) -> IntArray:
    return np.concatenate([values, np.full(size - len(values), fill)]).astype(np.int64)


def _packed(mask: BoolArray) -> IntArray:
    words = -(-len(mask) // 64)
    padded = np.zeros((len(mask), words * 64), dtype=np.bool_)
    padded[:, : len(mask)] = mask
    return np.packbits(padded, axis=1, bitorder="little").view("<i8").astype(np.int64)


def _next_sibling(tree: DraftTree) -> IntArray:
    links = np.full(len(tree), -1, dtype=np.int64)
    for kids in tree.children:
        links[list(kids[:-1])] = kids[1:]
    return links


def _retrieve_paths(tree: DraftTree, leaves: IntArray, shape: Shape) -> IntArray:
    paths = np.full((shape.leaves, shape.depth + 1), -1, dtype=np.int64)
    for row, leaf in enumerate(leaves.tolist()):
        walk = np.flatnonzero(tree.ancestor_mask[leaf])  # ancestors have smaller numbers, the root first
        paths[row, : len(walk)] = walk
    return paths


def _pass(tree: DraftTree, depth: int, shape: Shape) -> Pass:
    nodes = np.flatnonzero(tree.depths == depth + 1)
    parents, slot = np.unique(tree.parents[nodes], return_inverse=True)
    X, Y = shape.parents[depth], shape.children[depth]
    return Pass(
        parents=_padded(parents, X, 0),
        nodes=_padded(nodes, Y, shape.nodes),
        parent_slot=_padded(slot, Y, 0),
        rank=_padded(tree.ranks[nodes], Y, 0),
    )
