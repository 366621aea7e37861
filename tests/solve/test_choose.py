"""The search under limits on the time per token, and over ranges of contexts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from costs import FakeCost, staircase
from oracles import TableModel, all_trees, random_path_model, random_product_model
from traffics import traffic_of

from treeopt.acceptance.model import exact_lengths, path_probabilities
from treeopt.acceptance.table import DepthRankModel
from treeopt.errors import InputError, SearchError
from treeopt.solve.bucket import Bucket
from treeopt.solve.buckets import Sharing
from treeopt.solve.price import price
from treeopt.solve.problem import TIE, Limits, Objective, Point, Problem
from treeopt.solve.search import search
from treeopt.solve.time_limit import TimeLimit, steps_needed
from treeopt.tree import DraftTree

TOKENS = 24


class Tried(NamedTuple):
    tokens_per_s: float
    expected_tokens: float
    mean_s: float
    p99_s: float


def every_tree(model: TableModel, cost: FakeCost, batch: int, max_nodes: int) -> list[Tried]:
    """All trees, priced one by one."""
    trees = [DraftTree(tuple(paths)) for paths in all_trees(model.ranks, model.depth, max_nodes)]
    lengths = np.zeros((len(trees), model.depth + 1))
    priced = []
    for row, tree in zip(lengths, trees, strict=True):
        row[: tree.depth + 1] = exact_lengths(tree, path_probabilities(model, tree))
        priced.append(price(tree, traffic_of(model), cost, Point(batch, 0)))
    steps = steps_needed(lengths, TOKENS)
    return [
        Tried(p.tokens_per_s.value, E, p.step_time_s / E, n * p.step_time_s / TOKENS)
        for p, n in zip(priced, steps.tolist(), strict=True)
        for E in [p.acceptance_length.value]
    ]


def of_choice(choice: Bucket, tried: list[Tried]) -> Tried:
    """The choice among the trees tried (its E and speed are its own)."""
    return min(
        tried,
        key=lambda t: (
            abs(t.tokens_per_s - choice.tokens_per_s.value) + abs(t.expected_tokens - choice.acceptance_length.value)
        ),
    )


def found(choice: Bucket) -> float:
    other = choice.runner_up.tokens_per_s.value if choice.runner_up else 0.0
    return max(choice.tokens_per_s.value, other)


def answered(problem: Problem, model: TableModel, cost: FakeCost) -> Bucket | str:
    try:
        return search(problem, traffic_of(model), cost)[0]
    except SearchError as error:
        return str(error)


CASES = [(2, 3, 6), (3, 2, 6), (2, 4, 5), (3, 3, 5)]


@pytest.mark.parametrize("make", [random_path_model, random_product_model])
@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("seed", range(12))
def test_the_best_tree_within_a_mean_limit_equals_brute_force(make, objective: Objective, seed: int) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    K, D, N = CASES[seed % 4]
    model, cost = make(rng, D, K), FakeCost(table=staircase(rng, 4, N + 1), pass_s=0.1 * (seed % 3))
    tried = every_tree(model, cost, 3, N)
    limit = float(np.quantile([t.mean_s for t in tried], 0.3))
    latency = TimeLimit(max_mean_s=limit, output_tokens=TOKENS)
    question = Problem(batches=(3,), limits=Limits(max_nodes=N), objective=objective, time_limit=latency)
    (choice,) = search(question, traffic_of(model), cost)
    within = [t for t in tried if t.mean_s <= limit]
    assert choice.meets_limit
    assert choice.step_time_s / choice.acceptance_length.value <= limit
    if objective is Objective.LENGTH:
        assert choice.acceptance_length.value == pytest.approx(max(t.expected_tokens for t in within), rel=1e-12)
    else:
        best = max(t.tokens_per_s for t in within)
        assert found(choice) == pytest.approx(best, rel=1e-12)
        assert choice.tokens_per_s.value >= best * (1 - TIE) - 1e-12
        assert choice.optimality.gap == 0.0


@pytest.mark.parametrize("make", [random_path_model, random_product_model])
@pytest.mark.parametrize("width_s", [0.0, 0.1])
@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_gap_bounds_every_tree_within_a_percentile_limit(make, width_s: float, tight: bool, seed: int) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    K, D, N = CASES[seed % 4]
    model, cost = make(rng, D, K), FakeCost(table=staircase(rng, 4, N + 1), pass_s=0.05, wide_s=width_s)
    tried = every_tree(model, cost, 2, N)
    (free,) = search(Problem(batches=(2,), limits=Limits(max_nodes=N)), traffic_of(model), cost)
    # A tight limit excludes the tree that is best without it.
    limit = 0.999 * of_choice(free, tried).p99_s if tight else float(np.quantile([t.p99_s for t in tried], 0.25))
    mean_limit = float(np.quantile([t.mean_s for t in tried], 0.6))
    latency = TimeLimit(max_mean_s=mean_limit, max_p99_s=limit, output_tokens=TOKENS)
    question = Problem(batches=(2,), limits=Limits(max_nodes=N), time_limit=latency)
    within = [t for t in tried if t.p99_s <= limit and t.mean_s <= mean_limit]
    answer = answered(question, model, cost)
    if isinstance(answer, str):
        assert not within or "no draft was found that meets" in answer
        return
    choice = answer
    best = max(t.tokens_per_s for t in within)
    ours = of_choice(choice, tried)
    assert choice.meets_limit
    assert ours.p99_s <= limit * (1 + 1e-9)
    assert ours.mean_s <= mean_limit * (1 + 1e-9)
    assert found(choice) <= best * (1 + 1e-9)
    assert best <= found(choice) * (1 + choice.optimality.gap) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_where_nothing_is_within_the_quickest_is_told(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K, D, N = CASES[seed % 4]
    model, cost = random_product_model(rng, D, K), FakeCost(table=staircase(rng, 4, N + 1), wide_s=0.05 * (seed % 2))
    tried = every_tree(model, cost, 3, N)
    mean_s, p99_s = min(t.mean_s for t in tried), min(t.p99_s for t in tried)
    for name, quickest_s, limit in (
        ("--max-tpot-ms", mean_s, TimeLimit(max_mean_s=0.8 * mean_s)),
        ("--max-p99-tpot-ms", p99_s, TimeLimit(max_p99_s=0.8 * p99_s, output_tokens=TOKENS)),
    ):
        question = Problem(batches=(3,), limits=Limits(max_nodes=N), time_limit=limit)
        with pytest.raises(SearchError, match=f"{name} {800 * quickest_s:g}; the fastest takes") as caught:
            search(question, traffic_of(model), cost)
        told = float(str(caught.value).split()[-2])
        assert told >= 1e3 * quickest_s * (1 - 5e-3)
        if "was found" not in str(caught.value):
            assert told == pytest.approx(1e3 * quickest_s, rel=5e-3)


def test_a_percentile_limit_passes_over_a_faster_tree() -> None:
    # Two guesses: 0.9 tokens in nearly every step. A chain of two: 2 tokens or none, each half of the time.
    model = TableModel(2, 2, lambda path: np.array([[0.5, 0.4], [1.0, 0.0]][len(path)] if path != (1,) else [0.0, 0.0]))
    cost = FakeCost(table=np.ones((2, 4)), pass_s=0.01)
    limits = Limits(max_nodes=3)
    (free,) = search(Problem(batches=(1,), limits=limits), traffic_of(model), cost)
    assert free.tree == DraftTree.chain(2)  # 2 / 1.02 against 1.9 / 1.01
    # 8 tokens: n + Binomial(n, 0.9) >= 8 for 99 % needs n = 5, n + 2 Binomial(n, 0.5) >= 8 needs n = 7.
    latency = TimeLimit(max_p99_s=6 * 1.01 / 8, output_tokens=8)
    (bound,) = search(Problem(batches=(1,), limits=limits, time_limit=latency), traffic_of(model), cost)
    assert bound.tree == DraftTree(((0,), (1,)))
    assert bound.meets_limit
    (loose,) = search(
        Problem(batches=(1,), limits=limits, time_limit=TimeLimit(max_p99_s=7 * 1.02 / 8 + 1e-9, output_tokens=8)),
        traffic_of(model),
        cost,
    )
    assert loose.tree == free.tree


def test_batches_within_and_over_the_limit_share_no_bucket() -> None:
    model = DepthRankModel(np.tile([0.7, 0.15], (6, 1)))
    batch, nodes = np.meshgrid(np.arange(65), np.arange(65), indexing="ij")
    cost = FakeCost(table=np.maximum(1.0, batch * nodes / 100.0), pass_s=0.01)
    question = Problem(
        batches=tuple(range(1, 65)), sharing=Sharing(max_loss=0.2), time_limit=TimeLimit(max_mean_s=0.45)
    )
    choices = search(question, traffic_of(model), cost)
    assert {c.meets_limit for c in choices} == {True, False}
    for choice in choices:
        for b in range(choice.batch.min, choice.batch.max + 1):
            alone = Problem(batches=(b,), time_limit=question.time_limit)
            if not choice.meets_limit:
                with pytest.raises(SearchError, match="no draft meets"):
                    search(alone, traffic_of(model), cost)
            else:
                assert search(alone, traffic_of(model), cost)[0].meets_limit
                here = price(choice.tree, traffic_of(model), cost, Point(b, 2048))
                assert here.step_time_s / here.acceptance_length.value <= 0.45
    # One tree for all has to be allowed if that is asked for.
    one = search(
        Problem(batches=(1, 64), sharing=Sharing(max_trees=1), time_limit=question.time_limit), traffic_of(model), cost
    )
    assert [(c.batch.min, c.batch.max, c.meets_limit) for c in one] == [(1, 64, False)]


@pytest.mark.parametrize("make", [random_path_model, random_product_model])
@pytest.mark.parametrize("quantile", [0.02, 0.3])
@pytest.mark.parametrize("seed", range(12))
def test_what_a_shared_range_loses_is_told_though_a_limit_is_missed(make, quantile: float, seed: int) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    K, D, N = CASES[seed % 4]
    model, cost = make(rng, D, K), FakeCost(table=staircase(rng, 4, N + 1) * np.array([1, 1, 1.5, 2.5])[:, None])
    tried = {batch: every_tree(model, cost, batch, N) for batch in (1, 2, 3)}
    limit = float(np.quantile([t.mean_s for batch in (1, 3) for t in tried[batch]], quantile))
    latency = TimeLimit(max_mean_s=limit)
    question = Problem(
        batches=(1, 3), only_listed=True, limits=Limits(max_nodes=N), time_limit=latency, sharing=Sharing(max_trees=1)
    )
    (choice,) = search(question, traffic_of(model), cost)
    ends = [price(choice.tree, traffic_of(model), cost, Point(b, question.context)) for b in (1, 2, 3)]
    # At one batch size the quickest tree per token is the fastest one, so a limit on the mean never changes it.
    losses = [1.0 - ends[b - 1].tokens_per_s.value / max(t.tokens_per_s for t in tried[b]) for b in tried]
    assert choice.sharing_loss == pytest.approx(max(losses), abs=1e-9)
    assert choice.meets_limit == all(end.step_time_s / end.acceptance_length.value <= limit for end in ends)


def test_a_budget_and_a_limit_that_no_tree_meets_together_still_have_an_answer() -> None:
    model = DepthRankModel(np.tile([0.7, 0.15], (6, 1)))
    cost = FakeCost(table=np.ones((188, 65)) + np.arange(188)[:, None] / 100.0)
    latency = TimeLimit(max_mean_s=0.9)  # plain decoding takes 1 s
    question = Problem(
        batches=(2, 187), only_listed=True, budget_tokens=179, time_limit=latency, sharing=Sharing(max_trees=1)
    )
    (choice,) = search(question, traffic_of(model), cost)
    assert len(choice.tree) == 1  # no draft stays under the budget at batch 187
    assert not choice.meets_limit
    assert 0.0 < choice.sharing_loss < 1.0
    assert choice.optimality.gap >= 0.0


@pytest.mark.parametrize("seed", range(12))
def test_a_limit_of_six_digits_from_an_answer_is_met_by_that_answer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K, D, N = CASES[seed % 4]
    model, cost = random_path_model(rng, D, K), FakeCost(table=staircase(rng, 4, N + 1), pass_s=0.05)
    tried = every_tree(model, cost, 2, N)
    question = Problem(batches=(2,), limits=Limits(max_nodes=N), time_limit=TimeLimit(output_tokens=TOKENS))
    (free,) = search(question, traffic_of(model), cost)
    own = of_choice(free, tried)
    latency = TimeLimit(
        max_mean_s=float(f"{own.mean_s:.6g}"), max_p99_s=float(f"{own.p99_s:.6g}"), output_tokens=TOKENS
    )
    (again,) = search(Problem(batches=(2,), limits=Limits(max_nodes=N), time_limit=latency), traffic_of(model), cost)
    assert again.meets_limit
    assert again.tokens_per_s.value == pytest.approx(free.tokens_per_s.value, rel=1e-12)


def test_a_tree_for_a_range_of_contexts_is_judged_at_both_ends() -> None:
    model = DepthRankModel(np.tile([0.7, 0.15], (6, 1)))
    batch, nodes = np.meshgrid(np.arange(33), np.arange(33), indexing="ij")
    cost = FakeCost(table=1.0 + batch * nodes / 60.0, pass_s=0.05, context_s=1e-5)
    question = Problem(
        batches=(4, 32),
        only_listed=True,
        context=40_000,
        first_context=1_000,
        limits=Limits(max_nodes=32),
        sharing=Sharing(max_loss=0.0),
    )
    choices = search(question, traffic_of(model), cost)
    assert [(c.batch.min, c.batch.max) for c in choices] == [(4, 4), (5, 32)]
    for choice in choices:
        losses = []
        for b in (choice.batch.min, choice.batch.max):
            for context in (1_000, 40_000):
                (alone,) = search(question.at(Point(b, context)), traffic_of(model), cost)
                here = price(choice.tree, traffic_of(model), cost, Point(b, context))
                losses.append(1.0 - here.tokens_per_s.value / found(alone))
        assert choice.sharing_loss == pytest.approx(max(losses), abs=1e-9)
        assert choice.sharing_loss > 0.0
        last = price(choice.tree, traffic_of(model), cost, Point(choice.batch.max, 40_000))
        assert choice.tokens_per_s.value == pytest.approx(last.tokens_per_s.value)


def test_contexts_answer_for_those_above_the_previous_one() -> None:
    question = Problem(batches=(8,))
    parts = question.over((1024, 8192, 32768))
    assert [(q.context_min, q.context) for q in parts] == [(1024, 1024), (1025, 8192), (8193, 32768)]
    assert [len(q.ends) for q in parts] == [1, 2, 2]
    for wrong in ((8192, 1024), (5, 5), (-1,), (10**12,)):
        with pytest.raises(InputError, match="context"):
            question.over(wrong)
