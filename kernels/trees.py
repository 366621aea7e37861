"""The trees of a batch as engines hold them: the parents of all nodes in one tensor, request after request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from treeopt.errors import TreeError
from treeopt.kernels.tensors import Tensor, check_tensor, torch, wrong

MAX_NODES = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeTrees:
    """The draft trees of B requests, T nodes in all.

    Fields:
        parents: `[T]` int32, each node's parent as an index into its own tree, -1 for a root; parents come first.
        offsets: `[B + 1]` int32, where each tree starts; a request may have no nodes.
        max_nodes: a bound on the nodes of a tree that is known without reading the device.

    Raises:
        InputError: shapes or dtypes, or `max_nodes` outside 1..4096.
    """

    parents: Tensor
    offsets: Tensor
    max_nodes: int

    def __post_init__(self) -> None:
        check_tensor("trees.parents", self.parents, shape=("T",), dtype=torch.int32, like=self.parents, dense=True)
        check_tensor("trees.offsets", self.offsets, shape=("B + 1",), dtype=torch.int32, like=self.parents, dense=True)
        if self.offsets.shape[0] < 2:
            raise wrong("trees.offsets", "there is no request", hint="give B + 1 offsets for B requests")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise wrong("trees.max_nodes", f"{self.max_nodes} nodes", hint=f"a tree has 1 to {MAX_NODES} nodes")

    @classmethod
    def from_parents(cls, parents: Sequence[Sequence[int]], *, device: object = "cpu") -> NodeTrees:
        """The trees of parent lists, such as `DraftTree.parents`.

        Raises:
            TreeError: a parent that does not come before its child.
        """
        offsets, flat = [0], []
        for request, tree in enumerate(parents):
            _check_parents(request, [int(p) for p in tree])
            flat += [int(p) for p in tree]
            offsets.append(len(flat))
        return cls(
            parents=torch.tensor(flat, dtype=torch.int32, device=device),
            offsets=torch.tensor(offsets, dtype=torch.int32, device=device),
            max_nodes=max(1, *(len(tree) for tree in parents), 1),
        )

    @property
    def requests(self) -> int:
        """B."""
        return int(self.offsets.shape[0]) - 1

    @property
    def words(self) -> int:
        """64-bit words that a node's ancestors take."""
        return -(-self.max_nodes // 64)

    def lists(self) -> list[list[int]]:
        """The parent lists on the host; waits for the device."""
        offsets, parents = self.offsets.tolist(), self.parents.tolist()
        return [parents[a:b] for a, b in pairwise(offsets)]

    def check(self) -> None:
        """Read the trees and check what no shape shows; waits for the device.

        Raises:
            InputError: offsets that do not cover the nodes, or a tree larger than `max_nodes`.
            TreeError: a parent that does not come before its child.
        """
        offsets = self.offsets.tolist()
        if offsets != sorted(offsets) or offsets[0] != 0 or offsets[-1] != self.parents.shape[0]:
            raise wrong(
                "trees.offsets",
                f"they do not cover the {self.parents.shape[0]} nodes of trees.parents",
                hint="start at 0, never fall, end at the number of nodes",
            )
        for request, tree in enumerate(self.lists()):
            if len(tree) > self.max_nodes:
                raise wrong(
                    "trees.max_nodes", f"request {request} has {len(tree)} nodes", hint=f"it says {self.max_nodes}"
                )
            _check_parents(request, tree)


def _check_parents(request: int, parents: Sequence[int]) -> None:
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise TreeError(
                f"argument trees.parents: node {node} of request {request} has parent {parent}",
                hint="parents come before their children, and the root has -1",
            )
