"""One made-up price of a step for all tests: a sum of what a step can be charged for, each part 0 unless given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.step_cost import IntLike


@dataclass(frozen=True, kw_only=True)
class FakeCost:
    """`step_s + request_s B + token_s B N + context_s B L`, and the parts named below.

    pass_s: per drafter pass, so times D. drafted_s: per request and node with children. wide_s: per node with children
    beyond one a level. level_s `[D]`: per node with children at that depth. stair_s: per started block of `stair`
    tokens B N. table `[B, N]`: looked up.
    """

    step_s: float = 0.0
    request_s: float = 0.0
    token_s: float = 0.0
    context_s: float = 0.0
    pass_s: float = 0.0
    drafted_s: float = 0.0
    wide_s: float = 0.0
    level_s: FloatArray | None = None
    stair: int = 1
    stair_s: float = 0.0
    table: FloatArray | None = None
    ridge_tokens: float = 295.2

    def step_time_s(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: np.ndarray, context: IntLike
    ) -> FloatArray:
        B, N, D, L = map(np.asarray, (batch, nodes, depth, context))
        expanded = np.sum(widths, axis=-1)
        seconds = self.step_s + self.request_s * B + self.token_s * B * N + self.context_s * B * L + self.pass_s * D
        seconds = seconds + self.drafted_s * B * expanded + self.wide_s * np.maximum(expanded - D, 0)
        seconds = seconds + self.stair_s * np.ceil(B * N / self.stair)
        if self.level_s is not None:
            seconds = seconds + widths @ self.level_s
        if self.table is not None:
            seconds = seconds + self.table[B, N]
        return np.asarray(seconds, dtype=np.float64)


def staircase(rng: np.random.Generator, batches: int, nodes: int) -> FloatArray:
    """A table `[batches, nodes]`: flat pieces with jumps, now and then a step that costs less than the one before."""
    jumps = rng.exponential(0.4, (batches, nodes)) * (rng.random((batches, nodes)) < 0.4)
    return 1.0 + np.cumsum(jumps, axis=1) - 0.2 * (rng.random((batches, nodes)) < 0.1)


def drafting_cost(rng: np.random.Generator) -> FakeCost:
    """A staircase in B N, a price per drafter pass and per token in it."""
    stair, pass_s, drafted_s = int(rng.integers(1, 40)), rng.uniform(0, 0.2), rng.uniform(0, 0.004)
    return FakeCost(step_s=1.0, stair=stair, stair_s=0.07, pass_s=pass_s, drafted_s=drafted_s)
