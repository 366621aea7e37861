"""Plans made by hand, for tests of what is done with a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treeopt.acceptance.intervals import Interval
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.acceptance.table import DepthRanks
from treeopt.acceptance.traffic import Part, Traffic
from treeopt.answer import Estimate, Span
from treeopt.plan.plan import CreatedWith, Plan, Verification
from treeopt.plan.sources import DrafterSource, HardwareSource, ModelSource, RanksSource, Sources
from treeopt.planner.compare import Comparison
from treeopt.planner.make import estimate
from treeopt.solve.bucket import Bucket
from treeopt.solve.options import Optimality, Option
from treeopt.solve.problem import Objective
from treeopt.tree import DraftTree


def bucket_of(
    tree: DraftTree,
    low: int,
    high: int,
    *,
    f: Sequence[float] | None = None,
    half_width: float | None = None,
    contexts: tuple[int, int] = (2048, 2048),
) -> Bucket:
    """A bucket whose nodes are accepted as `f [N]` says (default: half as often at each depth)."""
    accepted = 0.5**tree.depths if f is None else np.array(f)
    tokens = float(accepted.sum())
    ends = {} if half_width is None else {"low": tokens - half_width, "high": tokens + half_width}
    rate, plain = high * tokens / 0.01, high * tokens / 0.01 / 1.5
    return Bucket(
        batch=Span(low, high),
        context=Span(*contexts),
        tree=tree,
        acceptance_length=Estimate(value=tokens, **ends),
        tokens_per_s=Estimate.priced(rate),
        speedup=Estimate.priced(1.5),
        break_even_length=tokens / 1.5,
        step_time_s=0.01,
        best_chain=option_of(DraftTree.chain(1), 1.5, high * 90.0, high),
        plain=option_of(DraftTree(()), 1.0, plain, high),
        reason="made by hand",
        optimality=Optimality(exact=True, gap=0.0),
        path_probabilities=accepted,
        speedup_at_min=1.5,
        ridge_batch=10,
        sharing_loss=0.0,
    )


def option_of(tree: DraftTree, tokens: float, rate: float, batch: int) -> Option:
    """A draft of that E and those tokens/s of the whole batch."""
    return Option(
        draft=tree,
        acceptance_length=Estimate(value=tokens),
        step_time_s=batch * tokens / rate,
        tokens_per_s=Estimate.priced(rate),
    )


def plan_of(*buckets: Bucket, positions: int | None = None, documents: int | None = None) -> Plan:
    """A plan of these buckets."""
    known = {"name": "hand", "sha256": "0" * 64}
    return Plan(
        created_with=CreatedWith("0", "by hand"),
        verification=Verification(rule="greedy"),
        objective=Objective.THROUGHPUT,
        context=max(bucket.context.max for bucket in buckets),
        buckets=buckets,
        sources=Sources(
            ranks=RanksSource(evidence="paths", positions=positions, documents=documents, **known),
            hardware=HardwareSource(**known),
            model=ModelSource(**known),
            drafter=DrafterSource(kind="eagle"),
        ),
    )


def comparison_of(gain: float, interval: Interval | None, rival: str = "x") -> Comparison:
    """A plan that is faster than a rival by that share."""
    plan, other = (option_of(DraftTree.chain(1), 1.5, rate, 2) for rate in (1 + gain, 1.0))
    return Comparison(
        batch=2,
        context=1,
        rival=rival,
        gain=estimate(gain, interval),
        plan=plan,
        other=other,
        unmeasured_nodes=0,
    )


def traffic_of(*rates: Sequence[float]) -> Traffic:
    """Traffic of these rates by depth and rank, without counts."""
    width = max(map(len, rates))
    table = np.array([[*row, *[0.0] * (width - len(row))] for row in rates])
    profile = RankProfile(name="hand", evidence=DepthRanks(rates=table), conditions=Conditions(), sha256="")
    return Traffic(parts=(Part(name="hand", weight=1.0, profile=profile),))
