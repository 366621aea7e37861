"""How often each guess was right: rates by hand, intervals against exact ones and a bootstrap of its own."""

from __future__ import annotations

import numpy as np
import pytest
from plans import traffic_of
from scipy import stats

from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.profile import Conditions, RankEvidence, RankProfile
from treeopt.acceptance.rates import rank_rates
from treeopt.acceptance.table import DepthRanks
from treeopt.acceptance.trace import Trace
from treeopt.acceptance.traffic import Part


def part_of(evidence: RankEvidence, trace: Trace | None = None) -> Part:
    profile = RankProfile(name="hand", evidence=evidence, conditions=Conditions(), sha256="", trace=trace)
    return Part(name="hand", weight=1.0, profile=profile, trace=trace)


def test_a_table_of_counts_has_its_rates_and_the_interval_of_a_beta_law() -> None:
    counts = np.array([[700.0, 150.0], [400.0, 100.0]])
    found = rank_rates(part_of(DepthRanks.from_counts(reached=np.array([1000.0, 800.0]), counts=counts)))
    assert [(r.depth, r.rank) for r in found.rates] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [r.rate.value for r in found.rates] == pytest.approx([0.7, 0.15, 0.5, 0.125])
    for r, reached in zip(found.rates, (1000, 1000, 800, 800), strict=True):
        right = counts[r.depth - 1, r.rank]
        exact = stats.beta(right + 1 / 3, reached - right + 2 / 3).interval(0.95)
        assert (r.rate.low, r.rate.high) == pytest.approx(exact, abs=0.006)


def test_positions_are_rates_of_those_that_got_there() -> None:
    found = rank_rates(part_of(PositionSurvival.from_counts(drafts=1000.0, accepted=np.array([800.0, 600.0]))))
    assert [r.rate.value for r in found.rates] == pytest.approx([0.8, 0.75])
    exact = stats.beta(600.5, 200.5).interval(0.95)
    assert (found.rates[1].rate.low, found.rates[1].rate.high) == pytest.approx(exact, abs=0.006)


def test_rates_without_counts_and_a_mean_have_no_interval() -> None:
    assert not any(r.rate.has_interval for r in rank_rates(traffic_of([0.6, 0.2], [0.5]).parts[0]).rates)
    mean = MeanLength(mean_accepted_length=2.4, draft_tokens=3)
    assert not any(r.rate.has_interval for r in rank_rates(part_of(mean)).rates)


def trace_of(documents: int, rows: int, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    good = np.repeat(rng.uniform(0.2, 0.9, documents), rows)
    rank = np.where(rng.random((documents * rows, 2)) < good[:, None], 0, rng.integers(1, 4, (documents * rows, 2)))
    numbers = np.repeat(np.arange(documents), rows)
    return Trace(rank=rank, doc_id=numbers, pos=np.tile(np.arange(rows), documents))


def test_a_trace_has_intervals_over_documents() -> None:
    trace = trace_of(40, 200)
    found = rank_rates(part_of(trace.count(), trace))
    first = trace.rank[:, 0].reshape(40, 200) == 0
    drawn = np.random.default_rng(7).integers(0, 40, (4000, 40))
    low, high = np.quantile(first.mean(axis=1)[drawn].mean(axis=1), [0.025, 0.975])
    own = next(r for r in found.rates if (r.depth, r.rank) == (1, 0))
    assert own.rate.value == pytest.approx(first.mean())
    assert (own.rate.low, own.rate.high) == pytest.approx((low, high), abs=0.012)
    second = next(r for r in found.rates if (r.depth, r.rank) == (2, 0))
    after = trace.rank[trace.rank[:, 0] == 0, 1] == 0
    assert second.rate.value == pytest.approx(after.mean(), abs=0.01)


def test_few_documents_have_none() -> None:
    trace = trace_of(4, 200)
    assert not any(r.rate.has_interval for r in rank_rates(part_of(trace.count(), trace)).rates)
