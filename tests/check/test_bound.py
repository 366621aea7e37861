from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import random_path_model, random_product_model
from traces import trees

from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.check.bound import cover_bound
from treeopt.tree import DraftTree


@given(trees(depth=3, ranks=3), st.integers(0, 2**32 - 1), st.booleans())
def test_it_is_e_of_the_full_tree(tree: DraftTree, seed: int, is_product: bool) -> None:
    make = random_product_model if is_product else random_path_model
    model = make(np.random.default_rng(seed), depth=3, ranks=3)
    bound = cover_bound(model, tree)
    widths = [max(path[d] for path in tree.paths if len(path) == d + 1) + 1 for d in range(tree.depth)]
    full = [p for d in range(1, tree.depth + 1) for p in product(*(range(w) for w in widths[:d]))]
    assert bound == pytest.approx(1.0 + sum(model.f(path) for path in full))
    assert bound >= expected_tokens(path_probabilities(model, tree)) - 1e-12


def test_where_the_evidence_does_not_reach() -> None:
    model = random_path_model(np.random.default_rng(0), depth=2, ranks=2)
    assert cover_bound(model, DraftTree.chain(3)) is None
    assert cover_bound(model, DraftTree(((0,), (1,), (2,)))) is None
