"""What an acceptance rule looks at, and what it decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray, IntArray
from treeopt.decode.batch import NOTHING, Scalar, TreeBatch, at


@dataclass(frozen=True, kw_only=True, eq=False)
class StepToVerify:
    """What a rule may look at; arrays that it does not need may be None.

    Args:
        tokens: `[B, N]` each node's token, -1 where the drafter had no guess: such a node is never accepted.
        best: `[B, N]` the target's likeliest token after each node.
        p: `[B, N, V]` the target's distribution after each node.
        q: `[B, N, V]` the drafter's distribution that each node's children were drawn from.
    """

    trees: TreeBatch
    tokens: IntArray
    best: IntArray | None = None
    p: FloatArray | None = None
    q: FloatArray | None = None


class AcceptedPaths(NamedTuple):
    """What a rule decided for B requests.

    `path [B, D + 1]` holds the accepted nodes, the root first, -1 beyond; `token [B]` follows the last of them, -1
    where the text ended inside the path.
    """

    path: IntArray
    token: IntArray

    @property
    def accepted(self) -> IntArray:
        """`[B]` accepted draft tokens."""
        return np.asarray(np.count_nonzero(self.path >= 0, axis=1) - 1, dtype=np.int64)

    @property
    def node(self) -> IntArray:
        """`[B]` the deepest accepted node."""
        return at(self.path, self.accepted)


def end_at(verdict: AcceptedPaths, tokens: IntArray, ends: frozenset[int]) -> AcceptedPaths:
    """A token of `ends` inside an accepted path is the text's last: what the path holds behind it is not accepted."""
    if not ends:
        return verdict
    path = verdict.path.copy()
    on_path = np.take_along_axis(tokens, np.maximum(path, 0), axis=1)
    ended = np.isin(on_path, list(ends)) & (path >= 0)
    ended[:, 0] = False  # the root was emitted by an earlier step
    behind = np.cumsum(ended, axis=1) - ended > 0
    path[behind] = NOTHING
    return AcceptedPaths(path, np.where(ended.any(axis=1), NOTHING, verdict.token))


def needed(array: npt.NDArray[Scalar] | None, name: str) -> npt.NDArray[Scalar]:
    """An array of the evidence that the rule cannot do without."""
    if array is None:
        raise ValueError(f"the rule needs '{name}'")
    return array
