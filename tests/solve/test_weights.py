"""One draft for all batch sizes, by how often each of them runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from costs import FakeCost
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import TableModel, all_trees, random_product_model
from traffics import traffic_of

from treeopt.draft_family import ANY_TREE, OFF, Chains, Draft
from treeopt.errors import InputError
from treeopt.solve.buckets import Sharing
from treeopt.solve.price import price
from treeopt.solve.problem import TIE, Limits, Point, Problem
from treeopt.solve.search import search
from treeopt.solve.time_limit import NO_LIMIT, TimeLimit
from treeopt.solve.weights import BatchWeight, OverWeights, expected, weighed_runs
from treeopt.tree import DraftTree

BATCHES = (1, 3, 8, 20)


def weights_of(shares: list[float]) -> tuple[BatchWeight, ...]:
    return tuple(BatchWeight(b, s / sum(shares)) for b, s in zip(BATCHES, shares, strict=True) if s)


def question(shares: list[float], *, chains: bool = False, limit: TimeLimit = NO_LIMIT) -> Problem:
    return Problem(
        batches=BATCHES,
        only_listed=True,
        context=0,
        limits=Limits(max_nodes=5),
        sharing=Sharing(max_trees=1),
        family=Chains(may_be_off=True) if chains else ANY_TREE,
        time_limit=limit,
        weights=weights_of(shares),
    )


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4).filter(lambda s: sum(s) > 0.1),
    st.booleans(),
)
def test_one_draft_for_all_is_the_best_of_all_drafts_over_the_weights(
    seed: int, shares: list[float], chains: bool
) -> None:
    rng = np.random.default_rng(seed)
    model = random_product_model(rng, 3, 2)
    traffic, stair = traffic_of(model), int(rng.integers(2, 40))
    cost = FakeCost(step_s=1.0, stair=stair, stair_s=rng.uniform(0.0, 0.8), pass_s=rng.uniform(0.0, 0.3))
    asked = question(shares, chains=chains)
    drafts: list[Draft] = [DraftTree(tuple(paths)) for paths in all_trees(2, 3, 5)]
    if chains:
        drafts = [OFF, *(DraftTree.chain(k) for k in (1, 2, 3))]

    def mean(draft: Draft) -> float:
        rates = {w.batch: price(draft, traffic, cost, Point(w.batch, 0)).tokens_per_s.value for w in asked.weights}
        return sum(w.share * rates[w.batch] for w in asked.weights)

    def worst(draft: Draft) -> float:
        found = []
        for batch in BATCHES:
            rates = [price(d, traffic, cost, Point(batch, 0)).tokens_per_s.value for d in drafts]
            found.append(1.0 - price(draft, traffic, cost, Point(batch, 0)).tokens_per_s.value / max(rates))
        return max(found)

    (bucket,) = search(asked, traffic, cost)
    best = max(map(mean, drafts))
    told = expected(asked.weights, bucket.by_batch)
    assert told is not None
    assert told.tokens_per_s == pytest.approx(mean(bucket.draft))
    assert told.speedup == pytest.approx(mean(bucket.draft) / mean(OFF))
    assert mean(bucket.draft) >= best * (1.0 - TIE - 1e-9)
    assert bucket.minimax is not None
    assert bucket.minimax.loss == pytest.approx(worst(bucket.minimax.option.draft), abs=1e-9)
    assert bucket.minimax.mean_tokens_per_s == pytest.approx(mean(bucket.minimax.option.draft))
    (unweighed,) = search(replace(asked, weights=()), traffic, cost)
    assert unweighed.draft == bucket.minimax.option.draft
    assert unweighed.minimax is None


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4))
def test_runs_equal_brute_force(seed: int, ranges: int, most: int) -> None:
    gain = np.random.default_rng(seed).uniform(0.0, 1.0, (ranges, 3))
    found = weighed_runs(gain, size=np.arange(3), tie=0.0, most=most)
    assert found is not None

    def of(cuts: tuple[int, ...]) -> float:
        return sum(gain[a:b].sum(axis=0).max() for a, b in pairwise((0, *cuts, ranges)))

    every = [of(cuts) for k in range(most) for cuts in combinations(range(1, ranges), k)]
    assert [first for first, _, _ in found] == [0, *(last + 1 for _, last, _ in found[:-1])]
    assert sum(gain[first : last + 1, own].sum() for first, last, own in found) == pytest.approx(max(every))


def test_what_is_allowed_nowhere_is_never_chosen() -> None:
    gain = np.array([[3.0, 1.0], [-np.inf, 1.0]])
    assert weighed_runs(gain, size=np.arange(2), tie=0.0, most=1) == [(0, 1, 1)]
    assert weighed_runs(gain, size=np.arange(2), tie=0.0, most=2) == [(0, 0, 0), (1, 1, 1)]
    assert weighed_runs(np.full((2, 2), -np.inf), size=np.arange(2), tie=0.0, most=2) is None


def test_tokens_that_come_too_late_count_as_none() -> None:
    """Half of the guesses are right: 15 tokens/s, not 1, at 1 request; at 20 requests 15, not 20, 1.33 s a token."""
    table = np.full((21, 3), 1.0)
    table[1, 2], table[20, 2] = 0.1, 2.0
    traffic, cost = traffic_of(TableModel(1, 1, lambda path: np.array([0.5]))), FakeCost(table=table)
    free = Problem(
        batches=(1, 20),
        only_listed=True,
        context=0,
        limits=Limits(max_nodes=2),
        sharing=Sharing(max_trees=1),
        weights=(BatchWeight(1, 0.3), BatchWeight(20, 0.7)),
    )
    table[2:20] = table[20]
    assert search(free, traffic, cost)[0].nodes == 2  # 15 tokens/s over 14.3
    (held,) = search(replace(free, time_limit=TimeLimit(max_mean_s=1.0)), traffic, cost)
    assert held.nodes == 1  # 14.3 over 4.5


def test_the_mean_is_by_hand() -> None:
    class Rate:
        def __init__(self, batch: int, tokens_per_s: float, speedup: float | None) -> None:
            self.batch, self.tokens_per_s, self.speedup = batch, tokens_per_s, speedup

    weights = (BatchWeight(1, 0.9), BatchWeight(8, 0.1))
    assert expected(weights, [Rate(1, 600.0, 2.0), Rate(8, 3000.0, 1.5)]) == OverWeights(
        pytest.approx(840.0), pytest.approx(840.0 / 470.0)
    )
    assert expected(weights, [Rate(1, 600.0, 2.0), Rate(8, 3000.0, None)]) == OverWeights(pytest.approx(840.0), None)
    assert expected(weights, [Rate(1, 600.0, 2.0)]) is None
    assert expected((), [Rate(1, 600.0, 2.0)]) is None


def test_a_weight_of_an_unlisted_batch_size_is_refused() -> None:
    with pytest.raises(InputError, match="batch 5 has a weight and is not listed"):
        Problem(batches=(1, 8), weights=(BatchWeight(5, 1.0),))
