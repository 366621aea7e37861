"""Tokens/s over batch sizes of a plan and of all that stands beside it: what pictures and tables of a plan draw.

At the largest batch of a bucket the numbers are the plan's own. At listed batch sizes in between, which share a draft,
they are priced anew from the plan's evidence, as `treeopt compare` prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from treeopt.answer import Estimate
from treeopt.cost.step_table import TableStep
from treeopt.draft_family import OFF
from treeopt.files.typed import Count
from treeopt.plan.plan import Plan
from treeopt.planner.compare import Rival
from treeopt.planner.inputs import Inputs
from treeopt.planner.price_interval import speedup_over, with_rate
from treeopt.solve.bucket import Bucket
from treeopt.solve.options import Option
from treeopt.solve.price import price
from treeopt.solve.problem import Point
from treeopt.tree import DraftTree


class CurveOf(StrEnum):
    """What a curve is of."""

    PLAN = "plan"
    CHAIN = "chain"
    """The best chain at each batch size."""

    PLAIN = "plain"
    RIVAL = "rival"


@dataclass(frozen=True, kw_only=True)
class AtSize:
    """A draft at one batch size; `measured` where its step was timed there, neither priced nor interpolated.

    `speedup` is over plain decoding, None where that is not known.
    """

    batch: Count
    option: Option
    speedup: Estimate | None
    measured: bool

    @property
    def per_user(self) -> float:
        """Tokens/s of one request: 3,200 of a batch of 32 are 100."""
        return self.option.tokens_per_s.value / self.batch


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One way to draft over the batch sizes, rising."""

    name: str
    of: CurveOf
    points: tuple[AtSize, ...]


def curves_of(plan: Plan, inputs: Inputs | None, rivals: Sequence[Rival] = ()) -> tuple[Curve, ...]:
    """The plan, the best chain, plain decoding and what runs today; `plan` is for one range of contexts.

    Without inputs only what the plan itself holds: the largest batch size of each bucket, and no rivals.
    """
    made = [
        Curve(name="the plan", of=CurveOf.PLAN, points=tuple(_points(plan, inputs, CurveOf.PLAN))),
        Curve(name="best chain", of=CurveOf.CHAIN, points=tuple(_points(plan, inputs, CurveOf.CHAIN))),
        Curve(name="plain decoding", of=CurveOf.PLAIN, points=tuple(_points(plan, inputs, CurveOf.PLAIN))),
    ]
    for rival in () if inputs is None else rivals:
        assert inputs is not None
        points = tuple(_of_rival(plan, inputs, rival))
        if any(at.option.depth for at in points):  # plain decoding is there already
            made.append(Curve(name=rival.name, of=CurveOf.RIVAL, points=points))
    return tuple(curve for curve in made if curve.points)


def sizes_of(plan: Plan, *, listed: bool = True) -> list[int]:
    """The batch sizes that a plan tells about: its buckets' largest, and those listed in between."""
    between = {at.batch for bucket in plan.buckets for at in bucket.by_batch} if listed else set()
    return sorted(between | {bucket.batch.max for bucket in plan.buckets})


def _points(plan: Plan, inputs: Inputs | None, of: CurveOf) -> Iterator[AtSize]:
    for batch in sizes_of(plan, listed=inputs is not None):
        bucket = plan.bucket_for(batch)
        if batch == bucket.batch.max:
            yield from _at_end(bucket, inputs, of)
        elif inputs is not None:
            yield from _between(plan, bucket, inputs, Point(batch, bucket.context.max), of)


def _at_end(bucket: Bucket, inputs: Inputs | None, of: CurveOf) -> Iterator[AtSize]:
    """As the plan has it."""
    chain = bucket.best_chain if bucket.best_chain.depth else None
    option, speedup = {
        CurveOf.PLAN: (bucket.choice, bucket.speedup),
        CurveOf.CHAIN: (chain, bucket.chain_speedup or _ratio(chain, bucket.plain)),
        CurveOf.PLAIN: (bucket.plain, Estimate.priced(1.0)),
    }[of]
    if option is not None:
        yield _told(option, bucket.batch.max, speedup, inputs)


def _between(plan: Plan, bucket: Bucket, inputs: Inputs, point: Point, of: CurveOf) -> Iterator[AtSize]:
    """Priced where several batch sizes share a draft."""
    plain = _plain(inputs, point)
    option = plain
    if of is CurveOf.PLAN:
        # E is that of the same draft at any batch size, with its interval.
        option = replace(
            price(bucket.draft, inputs.evidence, inputs.cost, point), acceptance_length=bucket.acceptance_length
        )
    elif of is CurveOf.CHAIN:
        option = _best_chain(plan, inputs, point)
    if option is not None:
        yield _with_errors(option, plain, point, inputs)


def _of_rival(plan: Plan, inputs: Inputs, rival: Rival) -> Iterator[AtSize]:
    for batch in sizes_of(plan):
        point = Point(batch, plan.bucket_for(batch).context.max)
        option = price(rival.draft_for(*point), inputs.evidence, inputs.cost, point)
        if np.isfinite(option.step_time_s):
            yield _with_errors(option, _plain(inputs, point), point, inputs)


def _plain(inputs: Inputs, point: Point) -> Option | None:
    """Plain decoding, where it has a time of its own."""
    from treeopt.planner.make import knows_plain  # imports the search

    if not knows_plain(inputs.cost, point.batch):
        return None
    return price(OFF, inputs.evidence, inputs.cost, point)


def _best_chain(plan: Plan, inputs: Inputs, point: Point) -> Option | None:
    limits = plan.limits
    longest = min(limits.depth_for(inputs.evidence.all_positions), limits.max_nodes - 1)
    if plan.budget_tokens is not None:
        longest = min(longest, int(plan.budget_tokens // point.batch) - 1)
    chains = [price(DraftTree.chain(K), inputs.evidence, inputs.cost, point) for K in range(1, longest + 1)]
    timed = [chain for chain in chains if np.isfinite(chain.step_time_s)]
    return max(timed, key=lambda chain: chain.tokens_per_s.value, default=None)


def _with_errors(option: Option, plain: Option | None, point: Point, inputs: Inputs) -> AtSize:
    error = inputs.price_error
    speedup = None if plain is None else speedup_over(option, plain, error)
    return _told(option if error is None else with_rate(option, error), point.batch, speedup, inputs)


def _told(option: Option, batch: int, speedup: Estimate | None, inputs: Inputs | None) -> AtSize:
    cost = None if inputs is None else inputs.cost
    measured = isinstance(cost, TableStep) and cost.was_timed(batch, option.nodes, option.depth)
    return AtSize(batch=batch, option=option, speedup=speedup, measured=measured)


def _ratio(option: Option | None, plain: Option | None) -> Estimate | None:
    if option is None or plain is None:
        return None
    return Estimate.priced(option.tokens_per_s.value / plain.tokens_per_s.value)
