"""What measured shapes add: their own curves exactly, near ones by distance, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from treeopt.cost.kernels.curves import Residuals

CURVES = Residuals(
    points=np.log([[100.0, 10.0], [200.0, 10.0]]),
    sweep=np.log([1.0, 4.0, 16.0]),
    values=np.array([[0.0, 0.4, 0.2], [0.1, np.nan, 0.3]]),
    reach=(math.log(2), 1.0),
)


def test_a_measured_shape_gets_its_own_curve() -> None:
    own = CURVES.at(np.log([[100.0, 10.0]]), 0, np.log([1.0, 2.0, 4.0, 16.0]))
    assert own.tolist() == pytest.approx([0.0, 0.2, 0.4, 0.2])


def test_gaps_close_along_the_sweep_and_ends_hold() -> None:
    own = CURVES.at(np.log([[200.0, 10.0]]), 0, np.log([0.5, 4.0, 99.0]))
    assert own.tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_near_shapes_weigh_by_distance() -> None:
    # 50 % of the way in logs: both are half a reach away; nearer to one: exp(-1/4) against exp(-3/4).
    middle = CURVES.weights(np.log([[100 * 2**0.5, 10.0], [100 * 2**0.25, 10.0]]))
    share = math.exp(-0.25) / (math.exp(-0.25) + math.exp(-0.75))
    assert middle.ravel().tolist() == pytest.approx([0.5, 0.5, share, 1 - share])


def test_beyond_the_measured_sizes_the_edge_counts() -> None:
    assert CURVES.at(np.log([[900.0, 70.0]]), 0, np.log(16.0)) == pytest.approx(0.3)


def test_an_endless_reach_is_the_mean_of_all() -> None:
    shared = replace(CURVES, reach=(1e6, 1e6))
    assert shared.at(np.log([[130.0, 10.0]]), 0, np.log(16.0)) == pytest.approx(0.25, abs=1e-6)


def test_what_is_not_lent_leaves_the_form_alone() -> None:
    alone = replace(CURVES, lends=False)
    assert alone.at(np.log([[130.0, 10.0]]), 0, np.log(4.0)) == 0.0
    assert alone.at(np.log([[100.0, 10.0]]), 0, np.log(4.0)) == pytest.approx(0.4)


def test_arrays_broadcast() -> None:
    points = np.log([[100.0, 10.0], [200.0, 10.0]])
    found = CURVES.at(points, np.array([[0], [1]]), np.log([[1.0, 16.0]]))
    assert found.tolist() == [pytest.approx([0.0, 0.2]), pytest.approx([0.1, 0.3])]


def test_one_sweep_point_says_the_same_everywhere() -> None:
    one = replace(CURVES, sweep=CURVES.sweep[:1], values=np.array([[0.25]] * len(CURVES.points)))
    assert one.at(CURVES.points[:1], 0, np.log([[1.0, 7.0], [100.0, 3.0]])).tolist() == [[0.25, 0.25]] * 2
