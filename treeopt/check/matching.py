"""Which bucket of a plan a measurement is about, and what the two can be compared by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.check.measured import Measured
from treeopt.plan.bucket import Bucket
from treeopt.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The buckets that may have made the metrics: all of the plan, or that of the batch size that was given.

    `speculating` has one bucket per tree.
    """

    every: tuple[Bucket, ...]
    speculating: tuple[Bucket, ...]

    @classmethod
    def of(cls, plan: Plan, *, batch: int | None, context: int | None) -> Candidates:
        """Of a plan.

        Raises:
            InputError: the plan was not made for that batch size or context.
        """
        part = plan if context is None else plan.at_context(context)
        every = part.buckets if batch is None else (plan.bucket_for(batch, context),)
        by_tree = {bucket.tree: bucket for bucket in every if bucket.speculate}
        return cls(every=tuple(every), speculating=tuple(by_tree.values()))

    def that_draft(self, source: Measured) -> tuple[Bucket, ...]:
        """Those that draft as many tokens per step as the source: N - 1 of a tree, or the chain's K by its depth."""
        return tuple(b for b in self.speculating if source.draft_tokens in (len(b.tree) - 1, b.tree.depth))

    @property
    def lengths(self) -> str:
        """The drafted tokens per step that the plan asks for, for messages."""
        found = sorted({len(b.tree) - 1 for b in self.every})
        return ", ".join(map(str, found))


def planned_survival(bucket: Bucket) -> FloatArray:
    """`[D]` probability that the bucket's tree is accepted to each depth: the sum of f over its nodes there."""
    return np.bincount(bucket.tree.depths, bucket.path_probabilities, minlength=1)[1:].astype(np.float64)


def chain_survival(bucket: Bucket) -> FloatArray:
    """`[D]` f of the top guesses alone: what a chain as deep as the bucket's tree would be accepted to."""
    f = dict(zip(bucket.tree.nodes, bucket.path_probabilities.tolist(), strict=True))
    return np.array([f.get((0,) * depth, 0.0) for depth in range(1, bucket.tree.depth + 1)])


def common_depths(source: Measured, buckets: Sequence[Bucket]) -> int:
    """How many depths every draft had, so that they can be compared: fewer than K where lengths were mixed."""
    assert source.survival is not None
    depths = [len(source.survival), *(bucket.tree.depth for bucket in buckets)]
    return min(depths)


def where(bucket: Bucket) -> str:
    """A bucket, for messages."""
    low, high = bucket.batch_min, bucket.batch_max
    return f"batch {high}" if low == high else f"batch {low}-{high}"
