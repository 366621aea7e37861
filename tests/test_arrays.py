"""Distinct values, and the way back from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.arrays import Axis, quantiles


@pytest.mark.parametrize(
    "argument",
    [5, np.array(7), np.array([[3, 0, 3], [9, 3, 0]]), np.array([[4.0], [2.0]]), np.array([[1 << 30, 2], [2, 0]])],
)
def test_the_values_rise_and_give_the_argument_back(argument: int) -> None:
    axis = Axis.of(argument)
    assert list(axis.values) == np.unique(argument).tolist()
    assert np.array_equal(np.array(axis.values)[axis.at], argument)
    assert axis.at.shape == np.shape(argument)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40), st.lists(st.floats(0, 1), max_size=4))
def test_quantiles_are_those_of_numpy(values: list[float], shares: list[float]) -> None:
    array = np.array(values)
    assert quantiles(array, shares) == [float(np.quantile(array, share)) for share in shares]


def test_a_quantile_lies_between_two_values() -> None:
    assert quantiles(np.array([4.0, 1.0, 2.0]), [0.0, 0.25, 0.75, 1.0]) == [1.0, 1.5, 3.0, 4.0]
