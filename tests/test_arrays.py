"""Distinct values, and the way back from them."""

from __future__ import annotations

import numpy as np
import pytest

from treeopt.arrays import Axis


@pytest.mark.parametrize(
    "argument",
    [5, np.array(7), np.array([[3, 0, 3], [9, 3, 0]]), np.array([[4.0], [2.0]]), np.array([[1 << 30, 2], [2, 0]])],
)
def test_the_values_rise_and_give_the_argument_back(argument: int) -> None:
    axis = Axis.of(argument)
    assert list(axis.values) == np.unique(argument).tolist()
    assert np.array_equal(np.array(axis.values)[axis.at], argument)
    assert axis.at.shape == np.shape(argument)
