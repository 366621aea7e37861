from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treeopt.acceptance.path_trie import PathCounter
from treeopt.acceptance.smoothing import SmoothedPaths
from treeopt.solve.best_trees import best_trees
from treeopt.solve.problem import Limits


def model_of(rank: np.ndarray) -> SmoothedPaths:
    counter = PathCounter(rank.shape[1])
    counter.add(rank)
    return SmoothedPaths(counter.result())


def draw_ranks(rng: np.random.Generator, n: int, rates: np.ndarray) -> np.ndarray:
    """Independent ranks of the given rates [K] at every depth of 3; the rest are misses."""
    K = len(rates)
    drawn = rng.choice(K + 1, (n, 3), p=[*rates, 1.0 - rates.sum()])
    return np.where(drawn == K, -1, drawn)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 300))
def test_rows_are_probabilities_for_every_path_counted_or_not(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    rank = rng.integers(-2, 5, (n, 4))
    rank[0] = 0
    model = model_of(rank)
    for depth in range(4):
        paths = rng.integers(0, model.ranks, (20, depth))
        rows = model.conditional(paths)
        assert (rows >= 0).all()
        assert (np.diff(rows, axis=1) <= 1e-12).all()
        assert (rows.sum(axis=1) <= 1 + 1e-12).all()
    f = best_trees(model, Limits(max_nodes=64))[-1]
    assert (f.f <= 1).all()  # and nested families are closed, which DraftTree checks
    assert len(f.tree(min(8, len(f.expected_tokens)))) >= 1


def test_much_evidence_speaks_for_itself() -> None:
    # After rank 0 the next is always rank 0; after rank 1 it never is.
    rank = np.array([[0, 0]] * 600 + [[1, 1]] * 200 + [[1, 0]] * 200)
    model = model_of(rank)
    after = model.conditional(np.array([[0], [1]]))
    assert after[0, 0] == pytest.approx(1.0, abs=0.01)
    assert after[1].tolist() == pytest.approx([0.5, 0.5], abs=0.01)


def test_one_observation_does_not() -> None:
    rng = np.random.default_rng(0)
    rank = draw_ranks(rng, 5000, np.array([0.5, 0.2, 0.1]))
    rank = rank[~((rank[:, 0] == 2) & (rank[:, 1] == 2))]
    rank = np.concatenate([rank, [[2, 2, 0]]])
    row = model_of(rank).conditional(np.array([[2, 2]]))[0]
    assert row[0] == pytest.approx(0.5, abs=0.05)  # not 1, which is what the single count says


def test_independent_ranks_are_recovered() -> None:
    rates = np.array([0.5, 0.2, 0.1])
    model = model_of(draw_ranks(np.random.default_rng(1), 20_000, rates))
    for depth in range(3):
        paths = np.array(list(product(range(3), repeat=depth)), dtype=np.int64).reshape(3**depth, depth)
        rows = model.conditional(paths)
        np.testing.assert_allclose(rows, np.broadcast_to(rates, rows.shape), atol=0.03)
