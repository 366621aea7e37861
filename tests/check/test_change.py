from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.check.change import Change, DriftVerdict, length_error


def change(measured: float, error: float | None, planned_error: float | None = None, comparisons: int = 1) -> Change:
    return Change(
        planned=2.0,
        measured=measured,
        planned_error=planned_error,
        measured_error=error,
        gate=0.05,
        comparisons=comparisons,
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (change(1.8, 0.02), DriftVerdict.DRIFT),  # -10 %, ten standard errors
        (change(1.94, 0.001), DriftVerdict.STABLE),  # -3 % is sure, and below the gate
        (change(1.8, 0.1), DriftVerdict.UNCLEAR),  # -10 % is two standard errors, less than 3.09
        (change(1.8, 0.02, 0.1), DriftVerdict.UNCLEAR),  # the plan's own error counts too
        (change(2.2, 0.02), DriftVerdict.DRIFT),
        (change(2.0, None), DriftVerdict.UNCLEAR),
        (change(1.0, None), DriftVerdict.UNCLEAR),
        (change(2.0, 0.2), DriftVerdict.UNCLEAR),  # a change of a third could hide here
    ],
)
def test_verdicts(found: Change, verdict: DriftVerdict) -> None:
    assert found.verdict is verdict


def test_interval_by_hand() -> None:
    found = change(1.8, 0.03, 0.04)
    # The error of .9 = 1.8 / 2: sqrt(.03^2 + (.9 x .04)^2) / 2.
    error = (0.03**2 + (0.9 * 0.04) ** 2) ** 0.5 / 2
    assert found.standard_error == pytest.approx(error)
    assert found.low == pytest.approx(-0.1 - 3.090232 * error)
    assert found.high == pytest.approx(-0.1 + 3.090232 * error)
    assert found.detectable == pytest.approx(max(0.05, (3.090232 + 1.644854) * error))


def test_more_comparisons_ask_for_more() -> None:
    assert change(1.8, 0.06).verdict is DriftVerdict.DRIFT
    assert change(1.8, 0.06, comparisons=20).verdict is DriftVerdict.UNCLEAR


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5), st.integers(1, 1000))
def test_the_error_is_that_of_the_counted_lengths(rates: list[float], drafts: int) -> None:
    survival = np.cumprod(rates)
    chance = -np.diff([1.0, *survival, 0.0])  # of exactly 0, 1, ... tokens
    lengths = np.arange(len(chance))
    variance = (chance * lengths**2).sum() - (chance * lengths).sum() ** 2
    error = length_error(survival, drafts, design_effect=4.0)
    assert error**2 == pytest.approx(4.0 * max(variance, 0.0) / drafts, abs=1e-12)
