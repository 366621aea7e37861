"""The bound: every tree must fall into a class that promises at least its E in at most its time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from costs import FakeCost
from oracles import TableModel, all_trees, random_path_model, random_product_model

from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.acceptance.table import DepthRankModel
from treeopt.solve.best_trees import best_trees
from treeopt.solve.bound import Ideal, narrowest, split_by_width
from treeopt.solve.candidates import WIDTHS, Sizes
from treeopt.solve.problem import Limits, Point
from treeopt.tree import DraftTree

RANKS, DEPTH, NODES = 2, 5, 7
POINT = Point(1, 0)


def level_cost(rng: np.random.Generator) -> FakeCost:
    """A price per node and per node with children, other for every level."""
    return FakeCost(step_s=1.0, token_s=rng.random(), level_s=rng.random(DEPTH))


def bounded(tree: DraftTree, model: TableModel, cost: FakeCost, ideals: list[Ideal]) -> bool:
    E = expected_tokens(path_probabilities(model, tree))
    widths = np.zeros(DEPTH, dtype=np.int64)
    widths[: tree.depth] = tree.expanded_widths
    time_s = float(cost.step_time_s(1, len(tree), tree.depth, widths, 0))
    return any(((ideal.tokens >= E - 1e-12) & (ideal.time_s[0] <= time_s + 1e-12)).any() for ideal in ideals)


def trees() -> Iterator[DraftTree]:
    return (DraftTree(tuple(paths)) for paths in all_trees(RANKS, DEPTH, NODES) if paths)


def sizes_of(model: TableModel) -> Sizes:
    families = best_trees(model, Limits(max_nodes=NODES))
    return Sizes.of(families, depth=DEPTH, levels=DEPTH, most={})


@pytest.mark.parametrize("make", [random_path_model, random_product_model])
@pytest.mark.parametrize("seed", range(6))
def test_every_tree_is_bounded_by_its_size(make, seed: int) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    model, cost = make(rng, DEPTH, RANKS), level_cost(rng)
    ideals = [narrowest(sizes_of(model), cost, [POINT])]
    assert all(bounded(tree, model, cost, ideals) for tree in trees())


@pytest.mark.parametrize("seed", range(6))
def test_every_tree_is_bounded_by_its_size_and_width(seed: int) -> None:
    """Deep narrow trees too, of sizes at which the best tree of that depth cap is a shallower one."""
    rng = np.random.default_rng(seed)
    model, cost = random_product_model(rng, DEPTH, RANKS), level_cost(rng)
    by_width = [best_trees(model, Limits(max_nodes=NODES), max_width=w) for w in WIDTHS]
    ideals = list(split_by_width(sizes_of(model), by_width, cost, POINT))
    assert all(bounded(tree, model, cost, ideals) for tree in trees())


def test_sizes_are_all_nodes_and_depths_with_the_best_tree_that_is_at_most_as_deep() -> None:
    # guesses fall so fast that the best tree of 4 nodes is 1 deep under every cap
    model = DepthRankModel(np.array([[0.5, 0.3, 0.2], [0.1, 0.05, 0.0]]))
    families = best_trees(model, Limits(max_nodes=4))
    sizes = Sizes.of(families, depth=2, levels=2, most={(3, 2): 1.55})
    found = dict(zip(zip(sizes.nodes.tolist(), sizes.depth.tolist(), strict=True), sizes.tokens, strict=True))
    assert found == pytest.approx({(2, 1): 1.5, (3, 1): 1.8, (4, 1): 2.0, (3, 2): 1.55, (4, 2): 2.0})
    assert sizes.narrowest.tolist() == [[1, 0], [1, 0], [1, 0], [1, 1], [1, 1]]
