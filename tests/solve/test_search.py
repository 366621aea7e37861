from __future__ import annotations

import numpy as np
import pytest
from costs import FakeCost, staircase
from oracles import TableModel, all_trees, random_path_model, random_product_model
from traffics import traffic_of

from treeopt.acceptance.table import DepthRankModel
from treeopt.cost.hardware import break_even_batch
from treeopt.errors import InputError, UnknownNameError
from treeopt.solve.bucket import Bucket
from treeopt.solve.buckets import Sharing
from treeopt.solve.price import price
from treeopt.solve.problem import TIE, Limits, Point, Problem, parse_objective
from treeopt.solve.search import search
from treeopt.tree import DraftTree


def tokens(model: TableModel, tree: frozenset[tuple[int, ...]]) -> float:
    return 1.0 + sum(model.f(path) for path in tree)


def brute_force(model: TableModel, cost: FakeCost, batch: int, max_nodes: int, max_children: int | None) -> float:
    """Largest tokens/s over all trees."""
    best = 0.0
    for paths in all_trees(model.ranks, model.depth, max_nodes, max_children=max_children):
        tree = DraftTree(tuple(paths))
        widths = np.zeros(model.depth, dtype=np.int64)
        widths[: tree.depth] = tree.expanded_widths
        time_s = float(cost.step_time_s(batch, len(tree), tree.depth, widths, 0))
        best = max(best, batch * tokens(model, paths) / time_s)
    return best


def found(choice: Bucket) -> float:
    """Tokens/s of the best option: the choice may be a smaller tree within the tie margin."""
    other = choice.runner_up.tokens_per_s.value if choice.runner_up else 0.0
    return max(choice.tokens_per_s.value, other)


@pytest.mark.parametrize("cap", [None, 1, 2])
@pytest.mark.parametrize("make", [random_path_model, random_product_model])
@pytest.mark.parametrize("seed", range(40))
def test_throughput_equals_brute_force_under_a_random_staircase(make, cap: int | None, seed: int) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    K, D, N = [(2, 3, 6), (3, 2, 7), (2, 4, 6), (3, 3, 5)][seed % 4]
    model = make(rng, D, K)
    cost = FakeCost(table=staircase(rng, 4, N + 1), pass_s=0.1 * (seed % 3))
    for batch in (1, 3):
        question = Problem(batches=(batch,), limits=Limits(max_nodes=N, max_children=cap))
        (choice,) = search(question, traffic_of(model), cost)
        best = brute_force(model, cost, batch, N, cap)
        assert found(choice) == pytest.approx(best, rel=1e-12)
        assert choice.tokens_per_s.value >= best * (1 - TIE) - 1e-12
        assert choice.optimality.gap == 0.0


@pytest.mark.parametrize("make", [random_path_model, random_product_model])
@pytest.mark.parametrize("seed", range(40))
def test_where_widths_cost_the_gap_bounds_every_tree(make, seed: int) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    K, D, N = [(2, 3, 7), (3, 3, 6), (2, 4, 6), (3, 2, 7)][seed % 4]
    model = make(rng, D, K)
    cost = FakeCost(table=staircase(rng, 3, N + 1), pass_s=0.05, wide_s=float(rng.choice([0.01, 0.1, 0.3])))
    (choice,) = search(Problem(batches=(2,), limits=Limits(max_nodes=N)), traffic_of(model), cost)
    best = brute_force(model, cost, 2, N, None)
    assert found(choice) <= best * (1 + 1e-12)
    assert best <= found(choice) * (1.0 + choice.optimality.gap) * (1 + 1e-9)


def test_narrower_trees_are_found_where_width_costs_most() -> None:
    model = DepthRankModel(np.tile([0.6, 0.3], (4, 1)))
    cost = FakeCost(table=np.tile(1.0 + 0.01 * np.arange(40), (2, 1)), wide_s=0.5)
    (choice,) = search(Problem(batches=(1,), limits=Limits(max_nodes=12)), traffic_of(model), cost)
    assert choice.tree.expanded_widths.tolist() == [1] * choice.tree.depth
    assert choice.optimality.gap < 0.02


def test_stopping_at_the_first_drop_would_be_wrong() -> None:
    # DESIGN 2.4: 64-token tiles at batch 32: every second node is free, and tokens/s has a local maximum before 8.
    model = DepthRankModel(np.tile([0.7, 0.15], (8, 1)))
    nodes = np.arange(17)
    tiles = np.ceil(32 * nodes / 64)
    table = np.tile(6.0 + 0.8 * np.maximum(tiles - 1, 0) + 0.3 * (tiles > 4), (33, 1))
    cost = FakeCost(table=table)
    (choice,) = search(Problem(batches=(32,), limits=Limits(max_nodes=16)), traffic_of(model), cost)
    values = []
    for n in range(1, 17):
        (at_n,) = search(
            Problem(
                batches=(32,), limits=Limits(max_nodes=n), objective=parse_objective("length"), budget_tokens=32.0 * n
            ),
            traffic_of(model),
            cost,
        )
        values.append(32 * at_n.acceptance_length.value / table[32, n])
    drops = [n for n in range(2, 17) if values[n - 1] < values[n - 2]]
    first_stop = drops[0] - 1
    assert choice.nodes == int(np.argmax(values)) + 1
    assert first_stop < choice.nodes
    assert choice.nodes % 2 == 0


def test_seed_figures() -> None:
    assert 1.0 + sum(0.7**d for d in range(1, 5)) == pytest.approx(2.7731)
    model = DepthRankModel(np.tile([0.7, 0.15], (16, 1)))
    flat = FakeCost(table=np.ones((65, 65)))
    chain = price(DraftTree.chain(4), traffic_of(model), flat, Point(1, 0))
    assert chain.acceptance_length.value == pytest.approx(2.7731)
    assert break_even_batch(295.2, 10) == 29
    assert break_even_batch(295.2, 5) == 59
    question = Problem(batches=(64,), objective=parse_objective("length"), budget_tokens=640)
    (choice,) = search(question, traffic_of(model), flat)
    assert (choice.nodes, choice.verified_tokens) == (10, 640)
    assert choice.acceptance_length.value == pytest.approx(3.419, abs=5e-4)
    (shallow,) = search(
        Problem(batches=(64,), objective=parse_objective("length"), budget_tokens=640, limits=Limits(max_depth=4)),
        traffic_of(model),
        flat,
    )
    assert shallow.acceptance_length.value == pytest.approx(3.2801, abs=5e-5)
    assert DraftTree.chain(4).depth + 1 == 5
    assert 64 * len(DraftTree.chain(4)) == 320


def test_length_uses_the_ridge_as_budget_and_all_of_it() -> None:
    model = DepthRankModel(np.tile([0.7, 0.15], (8, 1)))
    (choice,) = search(
        Problem(batches=(32,), objective=parse_objective("length")),
        traffic_of(model),
        FakeCost(table=np.ones((33, 65))),
    )
    assert choice.nodes == 9  # floor(295.2 / 32)


def test_do_not_speculate_is_an_answer() -> None:
    model = DepthRankModel(np.tile([0.2, 0.1], (4, 1)))
    cost = FakeCost(table=np.tile(np.arange(0.0, 66.0), (3, 1)))
    (choice,) = search(Problem(batches=(2,)), traffic_of(model), cost)
    assert not choice.speculate
    assert choice.tree == DraftTree(())
    assert choice.speedup.value == 1.0
    assert choice.best_chain.nodes == 2  # what speculation would have looked like is still told
    assert choice.best_chain.tokens_per_s.value < choice.plain.tokens_per_s.value


def test_ties_go_to_the_smaller_tree() -> None:
    model = DepthRankModel(np.array([[0.5, 0.004]]))
    (choice,) = search(Problem(batches=(1,)), traffic_of(model), FakeCost(table=np.ones((2, 65))))
    assert choice.nodes == 2  # 1.5 against 1.504 tokens: within 0.5 %
    assert choice.runner_up is not None
    assert choice.loss_of(choice.runner_up) == pytest.approx(1.0 - 1.504 / 1.5)


@pytest.mark.parametrize(("second", "nodes"), [(0.0074, 2), (0.0077, 3)])
def test_half_a_percent_is_a_tie_and_no_more(second: float, nodes: int) -> None:
    # One node more gives 1.5 + second tokens for 1.5, at the same time: a share of 0.491 or 0.511 %.
    model = DepthRankModel(np.array([[0.5, second]]))
    (choice,) = search(Problem(batches=(1,)), traffic_of(model), FakeCost(table=np.ones((2, 65))))
    assert choice.nodes == nodes


def test_budget_caps_throughput_too() -> None:
    model = DepthRankModel(np.tile([0.7, 0.15], (8, 1)))
    flat = FakeCost(table=np.ones((17, 65)))
    (choice,) = search(Problem(batches=(16,), budget_tokens=100), traffic_of(model), flat)
    assert choice.nodes == 6
    (none,) = search(Problem(batches=(16,), budget_tokens=20), traffic_of(model), flat)
    assert not none.speculate


def test_buckets_cover_the_batches_and_say_what_sharing_costs() -> None:
    model = DepthRankModel(np.tile([0.7, 0.15], (8, 1)))
    batch, nodes = np.meshgrid(np.arange(65), np.arange(65), indexing="ij")
    cost = FakeCost(table=np.maximum(1.0, batch * nodes / 100.0), pass_s=0.01)
    choices = search(Problem(batches=tuple(range(1, 65)), sharing=Sharing(max_loss=0.02)), traffic_of(model), cost)
    assert [c.batch.min for c in choices] == [1, *(c.batch.max + 1 for c in choices[:-1])]
    assert choices[-1].batch.max == 64
    for choice in choices:
        losses = []
        for b in range(choice.batch.min, choice.batch.max + 1):
            (alone,) = search(Problem(batches=(b,)), traffic_of(model), cost)
            here = price(choice.tree, traffic_of(model), cost, Point(b, 2048))
            losses.append(1.0 - here.tokens_per_s.value / found(alone))
        assert max(losses) == pytest.approx(choice.sharing_loss, abs=1e-9)
        assert choice.sharing_loss <= 0.02 + TIE


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batches": ()}, "no batch size"),
        ({"batches": (0,)}, "batch 0"),
        ({"batches": (4, 2)}, "must rise"),
        ({"batches": (1,), "context": -1}, "context"),
        ({"batches": (1,), "budget_tokens": 0.5}, "budget"),
    ],
)
def test_questions_that_have_no_answer(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Problem(**wrong)  # type: ignore[arg-type]


def test_unknown_objective_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_objective("troughput")
    assert "did you mean throughput" in caught.value.hint
