"""What more nodes would give at one bucket: the best acceptance length and tokens/s of every size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Estimate
from treeopt.arrays import IntArray
from treeopt.files.typed import Count, NotNegative, Whole
from treeopt.plan.plan import Plan
from treeopt.planner.inputs import Inputs
from treeopt.solve.draft_starts import rivals_at
from treeopt.solve.prices import Prices
from treeopt.solve.problem import Point, Problem

_EVERY: Final = 6
_LARGE: Final = 8


@dataclass(frozen=True, kw_only=True)
class BestOfSize:
    """The most that drafts of one size give; null where there is none, or where none has a step time."""

    nodes: Count
    acceptance_length: NotNegative
    depth: Whole
    tokens_per_s: NotNegative | None
    chain_length: NotNegative | None


@dataclass(frozen=True, kw_only=True)
class ChosenSize:
    """What a bucket of the plan has."""

    batch: Count
    nodes: Count
    acceptance_length: Estimate


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The best drafts of many sizes at one batch size, each where its own drafts start.

    `evidence_depth` is the deepest guess that was counted; from `ends_at` nodes on the best tree is as deep as that, so
    that deeper evidence might give more (null where the trees stay shallower).
    """

    batch: Count
    context: Whole
    evidence_depth: Count
    ends_at: Count | None
    sizes: tuple[BestOfSize, ...]
    chosen: tuple[ChosenSize, ...]


def frontier_of(plan: Plan, inputs: Inputs) -> Frontier:
    """The frontier at the bucket with the most nodes, under the plan's own caps; `plan` is for one range of contexts.

    Raises:
        InputError: the step times have none for that batch size.
    """
    bucket = max(plan.buckets, key=lambda b: b.nodes)
    point = Point(bucket.batch.max, bucket.context.max)
    problem = Problem(
        batches=(point.batch,), context=point.context, limits=plan.limits, budget_tokens=plan.budget_tokens
    )
    own = rivals_at(problem, point, inputs.evidence, inputs.cost).lists[0].prices
    nodes = own.candidates.nodes
    deepest = inputs.evidence.all_positions.depth
    sizes = [_best_of(int(size), own, inputs.evidence) for size in _thinned(np.unique(nodes), bucket.nodes)]
    return Frontier(
        batch=point.batch,
        context=point.context,
        evidence_depth=deepest,
        ends_at=next((s.nodes for s in sizes if s.depth == deepest != plan.limits.max_depth), None),
        sizes=tuple(sizes),
        chosen=tuple(
            ChosenSize(batch=b.batch.max, nodes=b.nodes, acceptance_length=b.acceptance_length) for b in plan.buckets
        ),
    )


def _thinned(sizes: IntArray, chosen: int) -> list[int]:
    """All small sizes, and from `_EVERY` on one in so many: each is replayed; the chosen one is there."""
    large = [n for n in sizes.tolist() if n > _EVERY]
    places = np.geomspace(1, max(len(large), 1), _LARGE).round().astype(int) - 1  # closer where more changes
    kept = {large[i] for i in places.tolist()} if large else set()
    return sorted({n for n in sizes.tolist() if n <= _EVERY} | kept | ({chosen} & set(large)))


def _best_of(size: int, own: Prices, traffic: Traffic) -> BestOfSize:
    """The listed drafts of a size with the most tokens per step, the most tokens/s, and the chain."""
    listed = own.candidates
    of_size = np.flatnonzero(listed.nodes == size)
    longest, fastest = (int(of_size[value[of_size].argmax()]) for value in (listed.tokens, own.objective[0]))
    chains = of_size[listed.depth[of_size] == size - 1]
    batch, time_s = own.points[0].batch, float(own.time_s[0, fastest])
    return BestOfSize(
        nodes=size,
        acceptance_length=traffic.tokens(listed.draft(longest)),
        depth=int(listed.depth[longest]),
        tokens_per_s=batch * traffic.tokens(listed.draft(fastest)) / time_s if np.isfinite(time_s) else None,
        chain_length=traffic.tokens(listed.draft(int(chains[0]))) if len(chains) else None,
    )
