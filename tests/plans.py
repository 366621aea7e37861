"""Plans made by hand, for tests of what is done with a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treeopt.plan.bucket import Alternative, Bucket, Estimate
from treeopt.plan.plan import Plan, Source
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
    known = half_width is not None
    estimate = Estimate(
        value=tokens, low=tokens - half_width if known else None, high=tokens + half_width if known else None
    )
    chain = Alternative(nodes=2, depth=1, expected_tokens=1.5, tokens_per_s=90.0, loss=0.1)
    return Bucket(
        batch_min=low,
        batch_max=high,
        context_min=contexts[0],
        context_max=contexts[1],
        tree=tree,
        path_probabilities=accepted,
        expected_tokens=estimate,
        held_out_tokens=None,
        step_time_s=0.01,
        time_per_token=None,
        meets_limit=None,
        tokens_per_s=high * tokens / 0.01,
        speedup=Estimate(value=1.5),
        speedup_at_min=1.5,
        break_even_tokens=1.2,
        ridge_batch=10,
        best_chain=chain,
        plain_tokens_per_s=high * 80.0,
        runner_up=None,
        sharing_loss=0.0,
        resolvable=None,
        categories=(),
        cost_sensitivity=None,
        optimality="exact",
        reason="made by hand",
    )


def plan_of(*buckets: Bucket, positions: int | None = None, documents: int | None = None) -> Plan:
    """A plan of these buckets."""
    source = Source(name="hand", reference="hand", sha256="0" * 64)
    facts = (("evidence", "paths"), ("positions", positions), ("documents", documents))
    return Plan(
        version="0",
        command="by hand",
        rule="greedy",
        notes=(),
        ranks=Source(name="hand", reference="hand", sha256="0" * 64, facts=facts),
        hardware=source,
        model=source,
        drafter="eagle",
        context=max(bucket.context_max for bucket in buckets),
        objective="throughput",
        buckets=buckets,
    )
