"""What every check of a dumped step starts from: the tree in the dump's own order, and how a difference is told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treeopt.acceptance.dynamic_tree import Triple
from treeopt.arrays import BoolArray, IntArray
from treeopt.tree import DraftTree
from treeopt.verify.dump import StepDump


class Difference(NamedTuple):
    """A kind of mistake, by the name that `docs/decoding.md` explains it under, and where it shows first."""

    name: str
    detail: str


class Expected:
    """The tree in the dump's own order of nodes."""

    def __init__(self, dump: StepDump, tree: DraftTree, dynamic: Triple | None) -> None:
        self.tree = tree
        self.dynamic = dynamic
        self.parents = tree.parents if dump.parents is None else dump.parents
        N = len(self.parents)
        self.ancestors: BoolArray = np.eye(N, dtype=np.bool_)
        self.depths: IntArray = np.zeros(N, dtype=np.int64)
        for node in range(N):
            parent = int(self.parents[node])
            while parent >= 0:
                self.ancestors[node, parent] = True
                self.depths[node] += 1
                parent = int(self.parents[parent])

    def children(self, node: int) -> list[int]:
        """A node's children, in the order in which they are listed."""
        return [int(child) for child in np.flatnonzero(self.parents == node)]
