"""What the search asks of a cost model: one function on arrays, and the ridge."""

from __future__ import annotations

from typing import Protocol

from treeopt.arrays import FloatArray, IntArray

IntLike = IntArray | int


class StepCost(Protocol):
    """The price of one serving step; kernel times (`ModelStep`) or a table of served steps can stand behind it.

    The search relies on two properties: at fixed batch, nodes and context the time does not fall when a tree gets
    deeper or one of its levels wider. One exception is allowed for: a chain (nodes = depth + 1) may be cheaper than
    the trees beside it, because it leaves nothing to compact. In `nodes` the time may do anything (tiles, padding and
    kernel switches do).
    """

    @property
    def ridge_tokens(self) -> float:
        """Tokens per step at which streaming the weights takes as long as the arithmetic."""

    def step_time_s(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: IntArray, context: IntLike
    ) -> FloatArray:
        """Seconds per step for every element of the broadcast inputs.

        Args:
            batch: `[...]` running requests B.
            nodes: `[...]` tokens a request verifies, root included; 1 is plain decoding, which runs no drafter.
            depth: `[...]` D, the deepest path.
            widths: `[..., D_max]` nodes with children at depth 0..D_max-1 (what the drafter's pass at that depth
                expands), 0 from `depth` on.
            context: `[...]` committed tokens L per request.
        """
