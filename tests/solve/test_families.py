"""The search within the shapes that engines load, against all drafts of each shape priced one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, product

import numpy as np
import pytest
from costs import FakeCost, staircase
from engines.builder import dynamic_paths
from oracles import TableModel, all_trees, random_path_model, random_product_model
from solve.test_search import found
from traffics import traffic_of

from treeopt.draft_family import (
    OPENVINO,
    SGLANG,
    TENSORRT_LLM,
    Chains,
    DraftFamily,
    DynamicTree,
    DynamicTreeRule,
    DynamicTrees,
    StaticTrees,
    UniformTrees,
    has_leading_parents,
    is_uniform,
)
from treeopt.errors import SearchError
from treeopt.solve.bucket import Bucket
from treeopt.solve.buckets import Sharing
from treeopt.solve.problem import TIE, Limits, Objective, Problem
from treeopt.solve.search import search
from treeopt.tree import DraftTree

Make = Callable[[np.random.Generator, int, int], TableModel]
CASES = [(2, 3, 6), (3, 2, 7), (2, 4, 6), (3, 3, 5)]
both_laws = pytest.mark.parametrize("make", [random_path_model, random_product_model])


def value(tree: DraftTree, model: TableModel, cost: FakeCost, batch: int) -> float:
    widths = np.zeros(model.depth, dtype=np.int64)
    widths[: tree.depth] = tree.expanded_widths
    tokens = 1.0 + sum(model.f(path) for path in tree.paths)
    return batch * tokens / float(cost.step_time_s(batch, len(tree), tree.depth, widths, 0))


def trees_of(model: TableModel, nodes: int, allowed: Callable[[DraftTree], bool]) -> Iterator[DraftTree]:
    for paths in all_trees(model.ranks, model.depth, nodes):
        tree = DraftTree(tuple(paths))
        if allowed(tree):
            yield tree


def searched(seed: int, make: Make, shape: DraftFamily, *, off: bool = False, wide_s: float = 0.0):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    K, D, N = CASES[seed % 4]
    model = make(rng, D, K)
    cost = FakeCost(table=staircase(rng, 4, N + 1), pass_s=0.1 * (seed % 3), wide_s=wide_s)
    if isinstance(shape, Chains):
        shape = Chains(may_be_off=off)
    question = Problem(batches=(3,), limits=Limits(max_nodes=N), family=shape, may_be_off=off)
    (choice,) = search(question, traffic_of(model), cost)
    return model, cost, N, choice


def check(choice: Bucket, best: float, *, exact: bool = True) -> None:
    """The best of all is found (the choice may be a smaller one within the tie), or the gap says how far off it is."""
    if exact:
        assert choice.optimality.gap == 0.0
        assert found(choice) == pytest.approx(best, rel=1e-12)
    assert found(choice) <= best * (1 + 1e-12)
    assert best <= found(choice) * (1.0 + choice.optimality.gap) * (1 + 1e-9)
    assert choice.tokens_per_s.value >= found(choice) * (1 - TIE) - 1e-12


@both_laws
@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_chains(make: Make, off: bool, seed: int) -> None:
    model, cost, _, choice = searched(seed, make, Chains(), off=off)
    lengths = range(0 if off else 1, min(model.depth, CASES[seed % 4][2] - 1) + 1)
    check(choice, max(value(DraftTree.chain(k), model, cost, 3) for k in lengths))
    assert choice.tree.is_chain
    assert off or choice.speculate


@both_laws
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_uniform_trees(make: Make, equal: bool, seed: int) -> None:
    model, cost, N, choice = searched(seed, make, UniformTrees(equal_widths=equal), wide_s=0.05)
    limits = UniformTrees(equal_widths=equal, min_depth=1)
    check(choice, max(value(t, model, cost, 3) for t in trees_of(model, N, lambda t: limits.refusal(t) is None)))
    assert is_uniform(choice.tree)


def sorted_model(product_form: bool) -> Make:
    """Laws whose rows fall with the rank, as `PathModel` promises."""

    def make(rng: np.random.Generator, depth: int, ranks: int) -> TableModel:
        def row() -> np.ndarray:
            return np.sort(rng.dirichlet(np.ones(ranks + 1))[:ranks])[::-1]

        by_depth = [row() for _ in range(depth)]
        model = TableModel(depth, ranks, (lambda path: by_depth[len(path)]) if product_form else (lambda _: row()))
        model.product_form = product_form
        return model

    return make


@pytest.mark.parametrize("product_form", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("seed", range(16))
def test_trees_of_two_levels_at_least(product_form: bool, gaps: bool, seed: int) -> None:
    model, cost, N, choice = searched(seed, sorted_model(product_form), StaticTrees(min_depth=2, rank_gaps=gaps))
    limits = StaticTrees(rank_gaps=gaps, min_depth=2)
    fits = trees_of(model, N, lambda t: limits.refusal(t) is None)
    # Chains of other guesses, which need rank gaps, are bounded by the likeliest node of each depth.
    check(choice, max(value(t, model, cost, 3) for t in fits), exact=product_form or not gaps)
    assert limits.refusal(choice.tree) is None


@pytest.mark.parametrize("product_form", [False, True])
@pytest.mark.parametrize("children", [1, 2])
@pytest.mark.parametrize("seed", range(16))
def test_a_children_cap_leaves_no_rank_gaps(product_form: bool, children: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model, cost = sorted_model(product_form)(rng, 3, 3), FakeCost(table=staircase(rng, 4, 7), pass_s=0.02)
    limits, caps = StaticTrees(rank_gaps=False), Limits(max_nodes=6, max_children=children)
    (choice,) = search(Problem(batches=(3,), limits=caps, family=StaticTrees(rank_gaps=False)), traffic_of(model), cost)
    fits = (
        DraftTree(tuple(paths)) for paths in all_trees(3, 3, 6, max_children=children) if _loads(limits, tuple(paths))
    )
    check(choice, max(value(t, model, cost, 3) for t in fits))
    assert limits.refusal(choice.tree) is None
    assert choice.runner_up is None or limits.refusal(choice.runner_up.draft) is None


def _loads(limits: StaticTrees, paths: tuple[tuple[int, ...], ...]) -> bool:
    return limits.refusal(DraftTree(paths)) is None


@pytest.mark.parametrize("product_form", [False, True])
@pytest.mark.parametrize("shape", [StaticTrees(), StaticTrees(min_depth=1), StaticTrees(min_depth=2, rank_gaps=False)])
@pytest.mark.parametrize("seed", range(16))
def test_path_lists_within_ranks_and_depth(product_form: bool, shape: StaticTrees, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = sorted_model(product_form)(rng, 3, 3)
    cost = FakeCost(table=staircase(rng, 4, 7), pass_s=0.05)
    limits = StaticTrees(max_ranks=2, max_depth=2, min_depth=shape.min_depth, rank_gaps=shape.rank_gaps)
    caps = Limits(max_nodes=6, max_ranks=2, max_depth=2)
    (choice,) = search(
        Problem(batches=(3,), limits=caps, family=shape, may_be_off=not shape.min_depth), traffic_of(model), cost
    )
    fits = trees_of(model, 6, lambda tree: limits.refusal(tree) is None)
    check(choice, max(value(tree, model, cost, 3) for tree in fits))
    assert limits.refusal(choice.tree) is None


@pytest.mark.parametrize("product_form", [False, True])
@pytest.mark.parametrize("wide_s", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(12))
def test_a_cap_on_expanded_nodes(product_form: bool, wide_s: float, seed: int) -> None:
    """Exact where f is a product; elsewhere the gap covers what a better tree could gain."""
    model, cost, N, choice = searched(
        seed, sorted_model(product_form), StaticTrees(max_expanded=1, min_depth=1), wide_s=wide_s
    )
    limits = StaticTrees(max_expanded=1, min_depth=1)
    best = max(value(t, model, cost, 3) for t in trees_of(model, N, lambda t: limits.refusal(t) is None))
    check(choice, best, exact=product_form and not wide_s)
    assert choice.tree.expanded_widths.max() == 1


@pytest.mark.parametrize("product_form", [False, True])
@pytest.mark.parametrize("seed", range(16))
def test_trees_whose_parents_lead(product_form: bool, seed: int) -> None:
    model, cost, N, choice = searched(seed, sorted_model(product_form), StaticTrees(min_depth=2, leading_parents=True))
    fits = trees_of(model, N, lambda t: t.depth >= 2 and has_leading_parents(t))
    check(choice, max(value(t, model, cost, 3) for t in fits), exact=False)
    assert has_leading_parents(choice.tree)


def every_triple(rule: DynamicTreeRule, model: TableModel, nodes: int) -> Iterator[DynamicTree]:
    for steps, topk, n in product(range(1, model.depth + 1), range(1, model.ranks + 1), range(2, nodes + 1)):
        if rule.smallest(steps, topk) <= n <= rule.largest(steps, topk):
            yield DynamicTree(steps, topk, n)


@pytest.mark.parametrize("rule", [SGLANG, TENSORRT_LLM, OPENVINO], ids=lambda rule: rule.engine)
@pytest.mark.parametrize("seed", range(20))
def test_triples(rule: DynamicTreeRule, seed: int) -> None:
    model, cost, N, choice = searched(seed, sorted_model(seed % 2 == 0), DynamicTrees(rule=rule), wide_s=0.03)

    def rate(triple: DynamicTree) -> float:
        paths = dynamic_paths(lambda path: model._rows[path], *triple)
        widths = np.array([1] + [triple.topk] * (triple.num_steps - 1))
        time_s = float(cost.step_time_s(3, triple.num_draft_tokens, triple.num_steps, widths, 0))
        return 3.0 * float(1.0 + sum(model.f(path) for path in paths)) / time_s

    check(choice, max(rate(t) for t in every_triple(rule, model, N)))
    if choice.dynamic is not None:
        rule.check(choice.dynamic)
        assert set(choice.tree.paths) == dynamic_paths(lambda path: model._rows[path], *choice.dynamic)
    else:
        assert choice.tree.is_chain


def schedules(lengths: int, ranges: int) -> Iterator[tuple[int, ...]]:
    return product(range(1, lengths + 1), repeat=ranges)


@pytest.mark.parametrize("longest_first", [False, True])
@pytest.mark.parametrize("trees", [1, 2, 3])
@pytest.mark.parametrize("seed", range(15))
def test_chain_schedules_lose_the_least_at_worst(longest_first: bool, trees: int, seed: int) -> None:
    """All lengths of all batch sizes, tried one by one, in as many runs of one length as there may be."""
    rng = np.random.default_rng(seed)
    model, batches = sorted_model(True)(rng, 3, 2), (1, 2, 3, 4)
    cost = FakeCost(table=staircase(rng, 5, 5), pass_s=0.1)
    sharing = Sharing(max_loss=0.0, max_trees=trees)
    question = Problem(batches=batches, family=Chains(longest_first=longest_first), sharing=sharing)
    rates = np.array([[value(DraftTree.chain(k), model, cost, b) for k in range(1, 4)] for b in batches])
    losses = 1.0 - rates / rates.max(axis=1, keepdims=True)
    fits = [
        s
        for s in schedules(3, 4)
        if 1 + sum(a != b for a, b in pairwise(s)) <= trees and (not longest_first or s[0] == max(s))
    ]
    best = min(max(losses[i, k - 1] for i, k in enumerate(s)) for s in fits)
    choices = search(question, traffic_of(model), cost)
    depths = [choice.tree.depth for choice in choices for b in batches if choice.batch.min <= b <= choice.batch.max]
    assert max(losses[i, k - 1] for i, k in enumerate(depths)) <= best + TIE
    assert len(choices) <= trees
    assert not longest_first or depths[0] == max(depths)


def test_nothing_left_to_draft_is_said() -> None:
    model = random_product_model(np.random.default_rng(0), 2, 2)
    cost = FakeCost(table=np.ones((9, 9)))
    question = Problem(batches=(8,), family=Chains(), budget_tokens=8)
    with pytest.raises(SearchError, match="nothing to draft at batch 8"):
        search(question, traffic_of(model), cost)
    two_levels = Problem(batches=(1,), family=StaticTrees(min_depth=2), may_be_off=False, limits=Limits(max_nodes=2))
    with pytest.raises(SearchError, match="nothing to draft"):
        search(two_levels, traffic_of(model), cost)
    with pytest.raises(SearchError, match="leave no dynamic tree"):
        search(
            Problem(batches=(1,), family=DynamicTrees(rule=SGLANG), limits=Limits(max_nodes=1)), traffic_of(model), cost
        )


def test_length_fills_the_budget_within_the_shape() -> None:
    model = random_product_model(np.random.default_rng(1), 4, 3)
    cost = FakeCost(table=np.ones((9, 70)))
    for shape in (Chains(), UniformTrees(), DynamicTrees(rule=SGLANG)):
        question = Problem(batches=(8,), family=shape, may_be_off=False, budget_tokens=40, objective=Objective.LENGTH)
        (choice,) = search(question, traffic_of(model), cost)
        assert 1 < choice.nodes <= 5
