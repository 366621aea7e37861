"""Rows made non-decreasing, against scipy's isotonic regression."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from treeopt.cost.kernels.monotone import BLOCK, non_decreasing

rows = st.lists(st.floats(0.1, 10.0), min_size=BLOCK, max_size=BLOCK + 6).map(lambda row: np.array([row]))


@settings(max_examples=50)
@given(rows)
def test_the_first_block_is_the_nearest_rising_row(values: np.ndarray) -> None:
    found = non_decreasing(values)[0]
    assert (np.diff(found) >= 0).all()
    assert found[:BLOCK] == pytest.approx(isotonic_regression(values[0, :BLOCK]).x, rel=1e-9)
    assert found[BLOCK:] == pytest.approx(np.maximum.accumulate([found[BLOCK - 1], *values[0, BLOCK:]])[1:], rel=1e-9)


def test_rows_that_never_fall_stay_to_the_last_bit() -> None:
    rising = np.sort(np.random.default_rng(0).random((3, 2 * BLOCK)), axis=1)
    assert (non_decreasing(rising) == rising).all()


def test_a_row_does_not_depend_on_the_others_nor_on_what_comes_after() -> None:
    values = np.random.default_rng(0).random((3, 3 * BLOCK))
    together = non_decreasing(values)
    alone = np.concatenate([non_decreasing(row[None, : 2 * BLOCK]) for row in values])
    assert (together[:, : 2 * BLOCK] == alone).all()
