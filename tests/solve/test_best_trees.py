from __future__ import annotations

import csv

import numpy as np
import pytest
from oracles import TableModel, all_trees, random_path_model, random_product_model
from shared import SHARED, needs_shared

from treeopt.acceptance.table import DepthRankModel
from treeopt.errors import SearchError
from treeopt.solve.best_trees import BestTrees, best_trees
from treeopt.solve.children_cap import capped_trees
from treeopt.solve.problem import Limits

SIZES = [(2, 3, 6), (3, 2, 7), (2, 4, 6), (3, 3, 5), (4, 2, 5)]  # K, D, N


def brute_force(model: TableModel, max_nodes: int, max_children: int | None) -> dict[tuple[int, int], float]:
    """Largest E of all trees by (depth cap, nodes)."""
    best: dict[tuple[int, int], float] = {}
    for tree in all_trees(model.ranks, model.depth, max_nodes, max_children=max_children):
        tokens = 1.0 + sum(model.f(path) for path in tree)
        depth = max((len(path) for path in tree), default=1)
        for cap in range(depth, model.depth + 1):
            key = (cap, len(tree) + 1)
            best[key] = max(best.get(key, 0.0), tokens)
    return best


def check_against_brute_force(model: TableModel, families: list[BestTrees], max_nodes: int, cap: int | None) -> None:
    for (depth, nodes), tokens in brute_force(model, max_nodes, cap).items():
        family = families[min(depth, len(families)) - 1]  # deeper caps than any best tree needs are left out
        assert family.expected_tokens[nodes - 1] == pytest.approx(tokens, abs=1e-12)
        assert family.upper_tokens[nodes - 1] == family.expected_tokens[nodes - 1]
        tree = family.tree(nodes)
        assert len(tree) == nodes
        assert tree.depth == family.depth[nodes - 1] <= depth
        assert 1.0 + sum(model.f(path) for path in tree.paths) == pytest.approx(tokens, abs=1e-12)
        assert family.expanded_widths[nodes - 1, : tree.depth].tolist() == tree.expanded_widths.tolist()
        assert cap is None or max(map(len, tree.children)) <= cap


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("make", [random_path_model, random_product_model])
def test_best_first_equals_brute_force(make, seed: int) -> None:  # type: ignore[no-untyped-def]
    K, D, N = SIZES[seed % len(SIZES)]
    model = make(np.random.default_rng(seed), D, K)
    check_against_brute_force(model, best_trees(model, Limits(max_nodes=N)), N, None)


@pytest.mark.parametrize("cap", [1, 2])
@pytest.mark.parametrize("seed", range(30))
def test_children_cap_under_product_form_equals_brute_force(seed: int, cap: int) -> None:
    K, D, N = SIZES[seed % len(SIZES)]
    model = random_product_model(np.random.default_rng(seed), D, K)
    check_against_brute_force(model, best_trees(model, Limits(max_nodes=N, max_children=cap)), N, cap)


@pytest.mark.parametrize("cap", [1, 2, 3])
@pytest.mark.parametrize("seed", range(30))
def test_children_cap_under_path_dependent_f_equals_brute_force(seed: int, cap: int) -> None:
    K, D, N = SIZES[seed % len(SIZES)]
    model = random_path_model(np.random.default_rng(seed), D, K)
    check_against_brute_force(model, capped_trees(model, Limits(max_nodes=N, max_children=cap)), N, cap)


def test_children_cap_where_best_first_is_wrong() -> None:
    # One child per node: (0) looks best, but (1), (1, 0) is worth .45 + .44 against .5 + .01.
    rows = {(): [0.5, 0.45], (0,): [0.02, 0.0], (1,): [0.44 / 0.45, 0.0]}
    model = TableModel(2, 2, lambda path: np.array(rows[path]))
    limits = Limits(max_nodes=3, max_children=1)
    assert capped_trees(model, limits)[1].tree(3).paths == ((1,), (1, 0))
    assert capped_trees(model, limits)[1].expected_tokens[2] == pytest.approx(1.89)


def test_width_cap_under_product_form_equals_brute_force() -> None:
    for seed in range(20):
        K, D, N = SIZES[seed % len(SIZES)]
        model = random_product_model(np.random.default_rng(seed), D, K)
        for width in (1, 2):
            best: dict[int, float] = {}
            for tree in all_trees(K, D, N):
                parents = {path[:-1] for path in tree}
                if all(sum(len(p) == d for p in parents) <= width for d in range(D)):
                    best[len(tree)] = max(best.get(len(tree), 0.0), 1.0 + sum(model.f(p) for p in tree))
            found = best_trees(model, Limits(max_nodes=N), max_width=width)[-1].expected_tokens
            assert found.tolist() == pytest.approx([best[n] for n in sorted(best)], abs=1e-12)


def test_width_caps_break_best_first_when_f_depends_on_the_path() -> None:
    # DESIGN 2.2: one node with children per level, five draft nodes; best-first finds 2.41, the optimum is 3.24.
    f = {(0,): 0.5, (0, 0): 0.46, (1,): 0.45, (1, 0): 0.44, (1, 0, 0): 0.43, (1, 0, 0, 0): 0.42}

    def row(path: tuple[int, ...]) -> np.ndarray:
        above = f.get(path, 0.0) if path else 1.0
        return np.array([f.get((*path, r), 0.0) / above if above else 0.0 for r in range(2)])

    model = TableModel(4, 2, row)
    best = 0.0
    for tree in all_trees(2, 4, 6):
        parents = {path[:-1] for path in tree}
        if all(sum(len(p) == d for p in parents) <= 1 for d in range(4)):
            best = max(best, 1.0 + sum(f.get(p, 0.0) for p in tree))
    assert best == pytest.approx(3.24)
    narrow = best_trees(model, Limits(max_nodes=6), max_width=1)[-1]
    assert narrow.expected_tokens[-1] == pytest.approx(2.41)  # a lower bound, as its docstring says
    assert best_trees(model, Limits(max_nodes=6))[-1].expected_tokens[-1] == pytest.approx(3.28)  # no width cap


def test_seed_figures() -> None:
    families = best_trees(DepthRankModel(np.tile([0.7, 0.15], (16, 1))), Limits(max_nodes=64))
    assert families[3].expected_tokens[9] == pytest.approx(3.2801, abs=5e-5)
    assert families[-1].expected_tokens[9] == pytest.approx(3.419, abs=5e-4)
    nine = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0, 0))
    assert families[3].tree(10).paths == nine


def test_max_ranks_and_depth_caps() -> None:
    model = DepthRankModel(np.tile([0.4, 0.3, 0.2], (5, 1)))
    families = best_trees(model, Limits(max_nodes=30, max_depth=2, max_ranks=2))
    assert len(families) == 2
    tree = families[1].tree(7)
    assert tree.depth == 2
    assert max(max(p) for p in tree.paths) == 1
    assert len(families[1].expected_tokens) == 7  # the full binary tree of depth 2


def test_nodes_that_are_never_accepted_come_last_and_the_shallowest_first() -> None:
    model = DepthRankModel(np.array([[0.5, 0.0], [0.0, 0.0]]))
    one, two = best_trees(model, Limits(max_nodes=9))
    assert one.expected_tokens.tolist() == [1.0, 1.5, 1.5]
    assert two.expected_tokens.tolist() == [1.0, *[1.5] * 6]
    assert two.tree(3).paths == ((0,), (1,))
    assert two.tree(7).paths == ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1))


@pytest.mark.parametrize("limits", [{"max_nodes": 0}, {"max_depth": -1}, {"max_children": 0}, {"max_ranks": 0}])
def test_limits_that_leave_no_tree(limits: dict[str, int]) -> None:
    with pytest.raises(SearchError, match="leaves no tree"):
        Limits(**limits)


def test_a_knapsack_that_is_cut_short_carries_a_true_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_path_model(np.random.default_rng(3), 4, 3)
    limits = Limits(max_nodes=7, max_children=2)
    exact = capped_trees(model, limits)[-1].expected_tokens
    monkeypatch.setattr("treeopt.solve.children_cap._FEW", 5)
    monkeypatch.setattr("treeopt.solve.best_trees.MAX_CANDIDATES", 12)
    cut = capped_trees(model, limits)[-1]
    size = len(cut.expected_tokens)
    assert (cut.upper_tokens >= exact[:size] - 1e-12).all()
    assert (cut.expected_tokens <= exact[:size] + 1e-12).all()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("cap", [1, 2, 3])
def test_candidates_by_a_threshold_give_the_same_trees_or_a_true_bound(
    seed: int, cap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_path_model(np.random.default_rng(seed), 4, 4)
    limits = Limits(max_nodes=12, max_children=cap)
    monkeypatch.setattr("treeopt.solve.children_cap._FEW", 500)
    everything = capped_trees(model, limits)
    monkeypatch.setattr("treeopt.solve.children_cap._FEW", 5)
    for exact, found in zip(everything, capped_trees(model, limits), strict=True):
        certain = found.upper_tokens == found.expected_tokens
        assert found.expected_tokens[certain] == pytest.approx(exact.expected_tokens[certain], abs=1e-12)
        assert (found.upper_tokens >= exact.expected_tokens - 1e-12).all()
        assert (found.expected_tokens <= exact.expected_tokens + 1e-12).all()
        assert certain.mean() > 0.7


@needs_shared
def test_published_acceptance_vector_reproduces_the_published_table() -> None:
    folder = SHARED / "data" / "ranks"

    def rows(name: str) -> list[list[str]]:
        return [r for r in csv.reader((folder / name).read_text().splitlines()) if not r[0].startswith("#")][1:]

    vector = np.array([float(r[1]) for r in rows("sequoia_acceptance_vector_demo.csv")[1:33]])
    families = best_trees(DepthRankModel(np.tile(vector, (16, 1))), Limits(max_nodes=128))
    for D, N, _, isotonic in rows("sequoia_demo_expected_length_table.csv"):
        tokens = families[min(int(D), len(families)) - 1].expected_tokens
        assert tokens[min(int(N), len(tokens)) - 1] == pytest.approx(float(isotonic), abs=1e-3)
