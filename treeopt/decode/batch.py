"""The trees of a batch, one per request and each of its own shape, as padded arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from treeopt.arrays import IntArray
from treeopt.tree import DraftTree

NOTHING: Final = -1
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeBatch:
    """B trees padded to N nodes and C children.

    Args:
        trees: `[B]`.
        parents: `[B, N]`, -1 for roots and for padding.
        depths: `[B, N]`, 0 for padding.
        children: `[B, N, C]` by rank, -1 where there are fewer.
    """

    trees: tuple[DraftTree, ...]
    parents: IntArray
    depths: IntArray
    children: IntArray

    @classmethod
    def of(cls, trees: Sequence[DraftTree]) -> TreeBatch:
        """The batch of these trees."""
        B, N = len(trees), max(map(len, trees), default=1)
        C = max((len(kids) for tree in trees for kids in tree.children), default=0)
        batch = cls(
            trees=tuple(trees),
            parents=np.full((B, N), NOTHING),
            depths=np.zeros((B, N), dtype=np.int64),
            children=np.full((B, N, C), NOTHING),
        )
        for b, tree in enumerate(trees):
            batch.parents[b, : len(tree)] = tree.parents
            batch.depths[b, : len(tree)] = tree.depths
            for node, kids in enumerate(tree.children):
                batch.children[b, node, : len(kids)] = kids
        return batch

    @classmethod
    def repeat(cls, tree: DraftTree, requests: int) -> TreeBatch:
        """The same tree for every request, in no more memory than one takes."""
        one = cls.of([tree])
        return cls(
            trees=(tree,) * requests,
            parents=np.broadcast_to(one.parents, (requests, *one.parents.shape[1:])),
            depths=np.broadcast_to(one.depths, (requests, *one.depths.shape[1:])),
            children=np.broadcast_to(one.children, (requests, *one.children.shape[1:])),
        )

    def __len__(self) -> int:
        """B, the requests."""
        return len(self.trees)

    @property
    def nodes(self) -> int:
        """N, the nodes of the largest tree, root included."""
        return int(self.parents.shape[1])

    @property
    def depth(self) -> int:
        """D, the depth of the deepest tree."""
        return int(self.depths.max(initial=0))


def at(values: npt.NDArray[Scalar], node: IntArray) -> npt.NDArray[Scalar]:
    """`[B, N, ...]` values of nodes to `[B, ...]`, those of one node per request."""
    return values[np.arange(len(node)), node]
