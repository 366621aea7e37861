"""Nodes that are never accepted are trees too, where a larger step is cheaper.

By hand, in tests/: `python -m solve.test_zero_rates 0 20000`.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from costs import FakeCost
from oracles import TableModel, all_trees
from traffics import traffic_of

from treeopt.draft_family import ANY_TREE, Chains, DraftFamily, StaticTrees, UniformTrees
from treeopt.errors import SearchError
from treeopt.solve.bucket import Bucket
from treeopt.solve.problem import TIE, Limits, Problem
from treeopt.solve.search import search
from treeopt.tree import DraftTree

FAMILIES = [ANY_TREE, ANY_TREE, ANY_TREE, StaticTrees(), StaticTrees(min_depth=1), StaticTrees(max_expanded=2)]
FAMILIES += [Chains(may_be_off=True), UniformTrees()]
SIZES = [(2, 2, 7), (2, 3, 6), (3, 2, 6), (1, 4, 5), (4, 1, 5)]


def law(rng: np.random.Generator, depth: int, ranks: int) -> TableModel:
    """Rows by path or by depth with many zeros, whole ones among them."""
    by_depth = rng.random() < 0.4
    rows: dict[int, np.ndarray] = {}

    def row(path: tuple[int, ...]) -> np.ndarray:
        if by_depth and len(path) in rows:
            return rows[len(path)]
        found = np.sort(rng.dirichlet(np.ones(ranks + 1))[:ranks] * (rng.random(ranks) < 0.6))[::-1]
        rows[len(path)] = found if rng.random() < 0.8 else np.zeros(ranks)
        return rows[len(path)]

    model = TableModel(depth, ranks, row)
    model.product_form = by_depth
    return model


def falling(rng: np.random.Generator, nodes: int) -> FakeCost:
    """A step's time that rises and falls with N."""
    table = rng.choice([1.0, 1.0, 1.2, 2.5], size=nodes + 1) + 0.3 * rng.random(nodes + 1)
    extra = {"pass_s": 0.05 * rng.integers(0, 3), "wide_s": float(rng.choice([0.0, 0.0, 0.1]))}
    return FakeCost(table=np.tile(table, (2, 1)), **extra)


def rate(tree: DraftTree, model: TableModel, cost: FakeCost) -> float:
    widths = np.zeros(model.depth, dtype=np.int64)
    widths[: tree.depth] = tree.expanded_widths
    tokens = 1.0 + sum(model.f(path) for path in tree.paths)
    return tokens / float(cost.step_time_s(1, len(tree), tree.depth, widths, 2048))


def best_of_all(model: TableModel, cost: FakeCost, caps: Limits, family: DraftFamily) -> float:
    ranks = min(model.ranks, caps.max_ranks or model.ranks)
    depth = min(model.depth, model.depth if caps.max_depth is None else caps.max_depth)
    paths = all_trees(ranks, depth, caps.max_nodes, max_children=caps.max_children)
    trees = (DraftTree(tuple(p)) for p in paths)
    return max((rate(t, model, cost) for t in trees if family.refusal(t) is None), default=0.0)


def found(bucket: Bucket) -> float:
    return max(bucket.tokens_per_s.value, bucket.runner_up.tokens_per_s.value if bucket.runner_up else 0.0)


def check(seed: int) -> None:
    """The gap covers every tree; a choice is within a tie of what was found; a rate of 0 is like a very small one."""
    rng = np.random.default_rng(seed)
    ranks, depth, nodes = SIZES[seed % len(SIZES)]
    model, cost = law(rng, depth, ranks), falling(rng, nodes)
    caps = Limits(
        max_nodes=nodes,
        max_children=int(rng.integers(1, ranks + 1)) if rng.random() < 0.4 else None,
        max_depth=int(rng.integers(1, depth + 1)) if rng.random() < 0.2 else None,
        max_ranks=int(rng.integers(1, ranks + 1)) if rng.random() < 0.2 else None,
    )
    family = FAMILIES[seed % len(FAMILIES)]
    problem = Problem(batches=(1,), limits=caps, family=family)
    best = best_of_all(model, cost, caps, family)
    try:
        (bucket,) = search(problem, traffic_of(model), cost)
    except SearchError:
        assert best == 0.0, seed
        return
    assert found(bucket) <= best * (1 + 1e-9), seed
    assert best <= found(bucket) * (1 + bucket.optimality.gap) * (1 + 1e-9), (seed, best, found(bucket))
    assert bucket.tokens_per_s.value >= found(bucket) * (1 - TIE) - 1e-12, seed
    assert family.refusal(bucket.tree) is None, seed
    if not cost.wide_s and family == ANY_TREE:
        assert bucket.optimality.gap == 0.0, seed


@pytest.mark.parametrize("part", range(8))
def test_brute_force_over_laws_with_zero_rates_caps_and_falling_staircases(part: int) -> None:
    for seed in range(50 * part, 50 * part + 50):
        check(seed)


@pytest.mark.parametrize("seed", range(30))
def test_lowering_a_rate_to_zero_changes_no_answer_by_a_jump(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model, cost = law(rng, 2, 2), falling(rng, 7)
    small = TableModel(2, 2, lambda path: np.maximum(model._rows[path], 1e-7))
    problem = Problem(batches=(1,), limits=Limits(max_nodes=7))
    zero, near = (search(problem, traffic_of(m), cost)[0] for m in (model, small))
    assert found(zero) == pytest.approx(found(near), rel=1e-5)


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        check(number)
    print(f"{int(sys.argv[2]) - int(sys.argv[1])} cases: no tree beats the answer by more than its gap")
