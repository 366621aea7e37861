from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from oracles import random_path_model

from treeopt.acceptance.model import expected_tokens, non_increasing, path_probabilities
from treeopt.acceptance.table import DepthRankModel
from treeopt.tree import DraftTree


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_isotonic_rows_equal_scipy(row: list[float]) -> None:
    ours = non_increasing(np.array([row]))[0]
    np.testing.assert_allclose(ours, scipy.optimize.isotonic_regression(row, increasing=False).x, atol=1e-12)


def test_rows_in_order_are_left_alone() -> None:
    rows = np.array([[0.5, 0.3, 0.3, 0.0]])
    assert non_increasing(rows) is rows


def test_f_is_the_product_along_the_path() -> None:
    model = random_path_model(np.random.default_rng(0), 3, 3)
    tree = DraftTree(((0,), (2,), (2, 1), (2, 1, 0)))
    assert path_probabilities(model, tree).tolist() == pytest.approx([1.0, *(model.f(p) for p in tree.paths)])
    assert expected_tokens(path_probabilities(model, tree)) == pytest.approx(1 + sum(model.f(p) for p in tree.paths))


def test_nodes_beyond_the_evidence_count_as_never_accepted() -> None:
    model = DepthRankModel(np.array([[0.5, 0.25]]))
    tree = DraftTree(((0,), (1,), (2,), (2, 0), (0, 0)))
    assert path_probabilities(model, tree).tolist() == [1.0, 0.5, 0.25, 0.0, 0.0, 0.0]
    deep = DepthRankModel(np.array([[0.5, 0.25], [0.5, 0.25]]))
    assert path_probabilities(deep, tree).tolist() == [1.0, 0.5, 0.25, 0.0, 0.25, 0.0]
