"""Deployments made up from requests that differ: each has an acceptance of its own, and its drafts are alike.

They differ so much that standard errors are about three times those of independent drafts, as on the project's traces.
"""

from __future__ import annotations

import numpy as np
from plans import bucket_of, plan_of

from treeopt.acceptance.position import PositionSurvival
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.check.measured import Measured, Metrics, of_profile
from treeopt.plan.plan import Plan
from treeopt.tree import DraftTree

K = 4
DRAFTS_PER_REQUEST = 100
ALIKE = 28.0  # the beta distribution's a + b


def accepted_by_request(rng: np.random.Generator, requests: int, rate: float) -> np.ndarray:
    """`[requests, K]` how many of a request's drafts were accepted to each position of a chain."""
    own = rng.beta(rate * ALIKE, (1.0 - rate) * ALIKE, size=requests)
    reached = np.full(requests, DRAFTS_PER_REQUEST)
    counts = []
    for _ in range(K):
        reached = rng.binomial(reached, own)
        counts.append(reached)
    return np.stack(counts, axis=1)


def planned(rng: np.random.Generator, rate: float, *, requests: int = 160) -> Plan:
    """A plan for chains of K from that many requests, with the interval by request that a search would give."""
    by_request = accepted_by_request(rng, requests, rate) / DRAFTS_PER_REQUEST
    survival = by_request.mean(axis=0)
    half_width = 1.96 * by_request.sum(axis=1).std(ddof=1) / np.sqrt(requests)
    bucket = bucket_of(DraftTree.chain(K), 1, 16, f=[1.0, *survival], half_width=half_width)
    return plan_of(bucket, positions=requests * DRAFTS_PER_REQUEST, documents=requests)


def chain_metrics(accepted: np.ndarray, drafts: int, *, name: str = "fresh") -> Metrics:
    return metrics_of(chain(accepted, drafts, name=name))


def chain(accepted: np.ndarray, drafts: int, *, name: str = "fresh") -> Measured:
    evidence = PositionSurvival.from_counts(drafts=drafts, accepted=np.asarray(accepted, dtype=np.float64))
    return of_profile(RankProfile(name=name, evidence=evidence, conditions=Conditions(), sha256="0" * 64))


def metrics_of(*sources: Measured) -> Metrics:
    return Metrics(kind="test", sources=sources, windows=(), drafted_nothing=not sources, warnings=())


def measured(rng: np.random.Generator, rate: float, drafts: int) -> Metrics:
    requests = drafts // DRAFTS_PER_REQUEST
    return chain_metrics(accepted_by_request(rng, requests, rate).sum(axis=0), drafts)


def expected(rate: float) -> float:
    """E of chains of K whose requests differ: 1 + the moments of the beta distribution."""
    a, b = rate * ALIKE, (1.0 - rate) * ALIKE
    moments = np.cumprod([(a + i) / (a + b + i) for i in range(K)])
    return float(1.0 + moments.sum())
