"""How often each rank was right at each depth, with its interval: the evidence as people look at it.

Rates along the path of first guesses, as `treeopt ranks show` prints them: what depends on the path has no other single
row per depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.acceptance.chain import ChainRanks
from treeopt.acceptance.intervals import CONFIDENCE, REPLICATES, Interval, bootstrap_ratios, interval_of
from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.profile import RankEvidence
from treeopt.acceptance.trace import PAST_END, Trace
from treeopt.acceptance.traffic import Part
from treeopt.answer import Estimate
from treeopt.arrays import FloatArray
from treeopt.files.typed import Count, Whole

MOST_RANKS: Final = 8
MOST_DEPTH: Final = 16


@dataclass(frozen=True, kw_only=True)
class RankRate:
    """How often the guess of a rank was right at a depth, of the drafts whose first guesses were right until there.

    Worked: of 1,000 drafts 850 had a right guess at depth 1, of these 510 a right first guess at depth 2: rank 0 at
    depth 2 has 510 / 850 = 0.6.
    """

    depth: Count
    rank: Whole
    rate: Estimate


@dataclass(frozen=True, kw_only=True)
class RankRates:
    """The rates of one kind of traffic, over all positions; `kind` is that of its evidence."""

    name: str
    kind: str
    rates: tuple[RankRate, ...]


def rank_rates(part: Part, *, seed: int = 0) -> RankRates:
    """The first `MOST_RANKS` ranks of the first `MOST_DEPTH` depths, with 95 % intervals where counts allow them.

    By document from a trace or a recorded chain; other counts take drafts as independent (see `counted_interval`).
    """
    model, found = part.measured, []
    for depth in range(min(model.depth, MOST_DEPTH)):
        row = model.conditional(np.zeros((1, depth), dtype=np.int64))[0, :MOST_RANKS]
        intervals = _intervals(part, depth, len(row), seed)
        for rank, rate in enumerate(row.tolist()):
            held = intervals[rank]
            ends = {} if held is None else {"low": min(held.low, rate), "high": max(held.high, rate)}
            found.append(RankRate(depth=depth + 1, rank=rank, rate=Estimate(value=rate, **ends)))
    return RankRates(name=part.name, kind=part.profile.kind, rates=tuple(found))


def _intervals(part: Part, depth: int, ranks: int, seed: int) -> list[Interval | None]:
    if part.trace is not None:
        return _by_document(part.trace, depth, ranks, seed)
    if isinstance(part.profile.evidence, ChainRanks):
        return _by_group(part.profile.evidence, depth, ranks, seed)
    outcomes = None if part.profile.evidence is None else _outcomes(part.profile.evidence, depth)
    if outcomes is None:
        return [None] * ranks
    # Perks' prior, as everywhere: one observation spread over all outcomes.
    drawn = np.random.default_rng(seed).dirichlet(outcomes + 1 / len(outcomes), size=REPLICATES)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    counted = [Interval(float(a), float(b)) for a, b in zip(low[:-1], high[:-1], strict=True)]
    return [*counted, *[None] * ranks][:ranks]


def _by_group(evidence: ChainRanks, depth: int, ranks: int, seed: int) -> list[Interval | None]:
    tried = evidence.group_reached[:, depth]
    used = np.flatnonzero(tried)
    below = np.repeat(tried[used, None], ranks, axis=1)
    drawn = bootstrap_ratios(evidence.group_counts[used, depth, :ranks], below, seed=seed)
    return [interval_of(drawn[:, rank], len(used)) for rank in range(ranks)]


def _outcomes(evidence: RankEvidence, depth: int) -> FloatArray | None:
    """`[K + 1]` how often each rank was right after right first guesses, last how often none; None uncounted."""
    if isinstance(evidence, MeanLength):
        return None
    if isinstance(evidence, PositionSurvival):
        if evidence.accepted is None or evidence.drafts is None:
            return None
        before = evidence.drafts if depth == 0 else float(evidence.accepted[depth - 1])
        right = np.array([float(evidence.accepted[depth])])
    elif isinstance(evidence, PathCounts):
        node = evidence.find(np.zeros((1, depth), dtype=np.int64))
        right, before = evidence.child_counts(depth, node)[0], float(evidence.node_trials(depth, node)[0])
    elif evidence.counts is None or evidence.reached is None:
        return None
    else:
        right, before = evidence.counts[depth], float(evidence.reached[depth])
    return np.append(right, max(before - float(right.sum()), 0.0))


def _by_document(trace: Trace, depth: int, ranks: int, seed: int) -> list[Interval | None]:
    tried = (trace.rank[:, :depth] == 0).all(axis=1) & (trace.rank[:, depth] != PAST_END)
    document, right = trace.document[tried], trace.rank[tried, depth]
    trials = np.bincount(document, minlength=trace.documents).astype(np.float64)
    hits = np.stack([np.bincount(document, right == r, trace.documents) for r in range(ranks)], axis=1)
    used = np.flatnonzero(trials)
    drawn = bootstrap_ratios(hits[used], np.repeat(trials[used, None], ranks, axis=1), seed=seed)
    return [interval_of(drawn[:, rank], len(used)) for rank in range(ranks)]
