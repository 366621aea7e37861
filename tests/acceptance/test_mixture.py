from __future__ import annotations

import numpy as np
import pytest
from oracles import all_paths, all_trees, random_path_model, random_product_model

from treeopt.acceptance.mixture import Mixture
from treeopt.acceptance.model import path_probabilities
from treeopt.acceptance.table import DepthRankModel
from treeopt.solve.best_trees import best_trees
from treeopt.solve.problem import Limits
from treeopt.tree import DraftTree


def test_f_of_a_mixture_is_the_weighted_f() -> None:
    rng = np.random.default_rng(0)
    first, second = random_path_model(rng, 3, 3), random_product_model(rng, 3, 3)
    tree = DraftTree(tuple(all_paths(3, 3)))
    mixed = path_probabilities(Mixture((first, second), (0.3, 0.7)), tree)
    by_hand = [1.0] + [0.3 * first.f(p) + 0.7 * second.f(p) for p in tree.paths]
    assert mixed.tolist() == pytest.approx(by_hand)


def test_categories_of_different_depth_and_ranks() -> None:
    mixed = Mixture((DepthRankModel(np.array([[0.5, 0.2]])), DepthRankModel(np.array([[0.6], [0.6]]))), (0.5, 0.5))
    assert (mixed.depth, mixed.ranks) == (2, 2)
    f = path_probabilities(mixed, DraftTree(((0,), (1,), (0, 0), (1, 0))))
    assert f.tolist() == pytest.approx([1.0, 0.55, 0.1, 0.18, 0.0])


@pytest.mark.parametrize("seed", range(10))
def test_the_best_tree_of_a_mixture_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    models = (random_product_model(rng, 3, 2), random_product_model(rng, 3, 2))
    best = max(1.0 + sum(0.4 * models[0].f(p) + 0.6 * models[1].f(p) for p in tree) for tree in all_trees(2, 3, 6))
    found = best_trees(Mixture(models, (0.4, 0.6)), Limits(max_nodes=6))
    assert found[-1].expected_tokens[-1] == pytest.approx(best)
