from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.measure.window import MIN_STEPS, Chunk, half_width, joined, steady_window


def stream(begin: float, step: float, sizes: list[int]) -> list[Chunk]:
    totals = np.cumsum(sizes)
    return [Chunk(begin + i * step, int(t)) for i, t in enumerate(totals)]


def test_the_window_is_from_the_last_second_chunk_to_the_first_last_one() -> None:
    """By hand: chunks at 0..20 and 3..23 s; both are in the steps from 4 to 20 s: 16 gaps each, of 1 and 3 tokens."""
    early, late = stream(0.0, 1.0, [1] * 21), stream(3.0, 1.0, [1] + [3] * 20)
    window = steady_window([early, late])
    assert window is not None
    assert len(window.gaps_s) == 32
    assert window.step_s == pytest.approx(1.0)
    assert window.tokens == 16 + 48
    assert window.tokens_per_step == pytest.approx(2.0)


def test_no_window_without_steps_that_all_took_part_in() -> None:
    assert steady_window([]) is None
    assert steady_window([stream(0.0, 1.0, [1])]) is None
    assert steady_window([stream(0.0, 1.0, [1] * 20), stream(30.0, 1.0, [1] * 20)]) is None
    assert steady_window([stream(0.0, 1.0, [1] * (MIN_STEPS + 1))]) is None


@given(
    st.integers(1, 8),
    st.floats(1e-3, 1.0),
    st.lists(st.integers(1, 6), min_size=40, max_size=60),
    st.floats(0.0, 0.9),
)
def test_streams_of_one_clock_give_the_clocks_step(batch: int, step: float, sizes: list[int], late: float) -> None:
    """Whatever each stream accepts, and however late its prompt was done, the step is the clock's."""
    streams = [stream(round(late * b) * step, step, sizes[b:] + sizes[:b]) for b in range(batch)]
    window = steady_window(streams)
    assert window is not None
    assert window.step_s == pytest.approx(step)
    assert 1.0 <= window.tokens_per_step <= 6.0
    twice = joined([window, window])
    assert twice.step_s == pytest.approx(step)
    assert twice.tokens_per_step == pytest.approx(window.tokens_per_step)


def test_the_interval_covers_the_mean_of_correlated_steps() -> None:
    """Steps of an autoregression with a known mean: 95 % intervals cover it in 91 to 99 of 100 samples on average."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        noise = rng.normal(size=400)
        steps = np.empty(400)
        steps[0] = noise[0]
        for i in range(1, 400):
            steps[i] = 0.5 * steps[i - 1] + noise[i]
        covered += abs(steps.mean()) <= half_width(steps)
    assert 0.91 <= covered / 400 <= 0.99


def test_a_single_value_is_its_own_interval_and_two_by_hand() -> None:
    assert half_width(np.array([3.0])) == 0.0
    assert half_width(np.array([1.0, 3.0])) == pytest.approx(12.706)  # their deviation is the root of 2
