from __future__ import annotations

import numpy as np
import pytest
from oracles import all_trees, random_path_model, random_product_model

from treeopt.draft_family import is_uniform
from treeopt.solve.problem import Limits
from treeopt.solve.uniform_trees import uniform_levels
from treeopt.tree import DraftTree


@pytest.mark.parametrize("make", [random_path_model, random_product_model])
@pytest.mark.parametrize("seed", range(5))
def test_every_uniform_tree_with_its_tokens(make, seed: int) -> None:  # type: ignore[no-untyped-def]
    model = make(np.random.default_rng(seed), 3, 3)
    levels = list(uniform_levels(model, Limits(max_nodes=8)))
    found = {
        tuple(w): (int(n), float(e))
        for x in levels
        for w, n, e in zip(x.widths.tolist(), x.nodes, x.expected_tokens, strict=True)
    }
    trees = [DraftTree(tuple(paths)) for paths in all_trees(3, 3, 8) if paths]
    expected = {}
    for tree in trees:
        if is_uniform(tree):
            by_depth = tuple(
                next(len(tree.children[v]) for v in range(len(tree)) if tree.depths[v] == d) for d in range(tree.depth)
            )
            expected[by_depth] = (len(tree), 1.0 + sum(model.f(p) for p in tree.paths))
    assert found.keys() == expected.keys()
    for key, (nodes, tokens) in expected.items():
        assert found[key][0] == nodes
        assert found[key][1] == pytest.approx(tokens, rel=1e-12)


def test_by_hand() -> None:
    model = random_product_model(np.random.default_rng(0), 2, 2)
    rates = [model.conditional(np.zeros((1, d), dtype=np.int64))[0] for d in (0, 1)]
    (first, second) = uniform_levels(model, Limits(max_nodes=7))
    assert first.widths.tolist() == [[1], [2]]
    assert second.widths.tolist() == [[1, 1], [1, 2], [2, 1], [2, 2]]
    assert second.nodes.tolist() == [3, 4, 5, 7]
    both = 1.0 + rates[0].sum() * (1.0 + rates[1].sum())
    assert second.expected_tokens[-1] == pytest.approx(both)


def test_equal_widths_and_caps() -> None:
    model = random_product_model(np.random.default_rng(1), 4, 3)
    equal = [
        w for level in uniform_levels(model, Limits(max_nodes=64), equal_widths=True) for w in level.widths.tolist()
    ]
    assert equal == [[1], [2], [3], [1] * 2, [2] * 2, [3] * 2, [1] * 3, [2] * 3, [3] * 3, [1] * 4, [2] * 4]
    capped = [level.widths.max() for level in uniform_levels(model, Limits(max_nodes=64, max_ranks=2, max_depth=2))]
    assert capped == [2, 2]
    assert list(uniform_levels(model, Limits(max_nodes=1))) == []
