"""Which bucket of a plan a measurement is about, and what the two can be compared by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from treeopt.answer import Estimate
from treeopt.arrays import FloatArray
from treeopt.check.measured import TOLERANCE, Measured
from treeopt.draft_family import Draft, chain_length, in_words
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError
from treeopt.plan.plan import Plan
from treeopt.solve.bucket import Bucket
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class PlannedBuckets:
    """The buckets that may have made a measurement: all of the plan, or that of a batch size that is known.

    `speculating` has one bucket per tree.
    """

    every: tuple[Bucket, ...]
    speculating: tuple[Bucket, ...]

    @classmethod
    def of(cls, plan: Plan, *, batch: int | None = None, context: int | None = None) -> PlannedBuckets:
        """Of a plan.

        Raises:
            InputError: the plan was not made for that batch size or context.
        """
        part = plan if context is None else plan.at_context(context)
        every = part.buckets if batch is None else (plan.bucket_for(batch, context),)
        by_tree = {bucket.tree: bucket for bucket in every if bucket.speculate}
        return cls(every=tuple(every), speculating=tuple(by_tree.values()))

    def at(self, batch: float | None) -> PlannedBuckets:
        """Those of the batch size that a file tells: the bucket that holds it, all where none does."""
        held = tuple(b for b in self.every if batch is not None and b.batch.min <= max(round(batch), 1) <= b.batch.max)
        return PlannedBuckets(every=held, speculating=tuple(b for b in held if b.speculate)) if held else self

    def that_draft(self, source: Measured) -> tuple[Bucket, ...]:
        """Those that draft as many tokens as the source: N - 1 of a tree, or the chain's K by its depth."""
        return tuple(b for b in self.speculating if any(map(source.drafts_about, {len(b.tree) - 1, b.tree.depth})))

    def mixes(self, source: Measured) -> bool:
        """Whether its drafts can be those of several of the plan's chains, added up."""
        lengths = [b.tree.depth for b in self.speculating if b.tree.is_chain]
        if source.drafted is None or source.draft_tokens not in lengths or len(lengths) < 2:
            return False
        return min(lengths) - TOLERANCE <= source.drafted <= max(lengths)

    @property
    def planned(self) -> str:
        """The draft tokens that the plan asks for, for messages, as export lists them."""
        by_length: dict[int, list[str]] = {}
        for b in self.every:
            by_length.setdefault(len(b.tree) - 1, []).append(b.batches)
        return ", ".join(f"{K} at batch {', '.join(batches)}" for K, batches in by_length.items())


def deployed_plan(plan: Plan, deployed: DraftSchedule) -> Plan:
    """The plan with the drafts that are deployed in place of its own: chains, with its f of them.

    Raises:
        InputError: a draft that is no chain, or a chain longer than any that the plan has f of.
    """
    return replace(plan, buckets=tuple(_deployed(b, deployed.at(b.batch.max), plan.buckets) for b in plan.buckets))


def _deployed(bucket: Bucket, draft: Draft, buckets: Sequence[Bucket]) -> Bucket:
    if draft == bucket.draft:
        return bucket
    length = chain_length(draft)
    if length is None:
        raise InputError(
            f"what is deployed, {in_words(draft)}, is no chain", hint="give what runs as chain:K, or the engine's file"
        )
    near = sorted(buckets, key=lambda b: (b is not bucket, abs(b.batch.max - bucket.batch.max)))
    f = next((f for b in near if len(f := chain_survival(b)) >= length and (f[:length] > 0.0).all()), None)
    if f is None:
        raise InputError(
            f"the plan has no acceptance of {in_words(draft)}",
            hint=f"price it: treeopt compare PLAN --with chain:{length}",
        )
    return replace(
        bucket,
        tree=DraftTree.chain(length),
        dynamic=None,
        path_probabilities=np.concatenate([[1.0], f[:length]]),
        acceptance_length=Estimate(value=float(1.0 + f[:length].sum())),
    )


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
    return f"batch {bucket.batches}"
