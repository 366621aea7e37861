from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.errors import InputError
from treeopt.runtime.hysteresis import Area, Hysteresis, Range, Switch

RANGES = [(1, 4), (5, 16), (17, 64), (65, 65)]
AREAS = [Area(Range(*ends)) for ends in RANGES]
batches = st.lists(st.integers(1, 80), min_size=1, max_size=60)
calm = st.builds(Hysteresis, steps=st.integers(1, 6), margin=st.sampled_from([0.0, 0.25, 1.0, 50.0]))


def run(sizes: list[int], hysteresis: Hysteresis) -> list[int]:
    switch = Switch(areas=AREAS, hysteresis=hysteresis)
    return [switch.step(size) for size in sizes]


def own(batch: int) -> int:
    return next((i for i, (low, high) in enumerate(RANGES) if low <= batch <= high), len(RANGES) - 1)


def test_by_hand() -> None:
    # Bucket 0 ends at 4: 5 and 6 are at most 2 past it (margin .5 of 4), 7 is 3 past it.
    hysteresis = Hysteresis(steps=3, margin=0.5)
    assert run([4, 5, 5, 4, 6, 6, 6, 6], hysteresis) == [0, 0, 0, 0, 0, 0, 1, 1]
    assert run([4, 7, 5], hysteresis) == [0, 1, 1]
    # Downwards from 5: 3 is 2 below it, the most that .5 of 5 allows; 2 is 3 below.
    assert run([5, 3, 3, 3], hysteresis) == [1, 1, 1, 0]
    assert run([5, 2], hysteresis) == [1, 0]


def test_one_request_past_a_small_border_waits() -> None:
    switch = Switch(areas=[Area(Range(1, 1)), Area(Range(2, 8))], hysteresis=Hysteresis(steps=4, margin=0.25))
    assert [switch.step(size) for size in [1, 2] * 10] == [0] * 20


def test_beyond_the_plan() -> None:
    assert run([100, 100], Hysteresis()) == [3, 3]
    # A batch beyond the plan is not far from its last bucket: 65 is next to 64.
    assert run([64, 1000], Hysteresis()) == [2, 2]
    assert Switch(areas=[Area(Range(8, 16))]).step(2) == 0


@given(batches)
def test_one_step_is_no_hysteresis(sizes: list[int]) -> None:
    assert run(sizes, Hysteresis(steps=1)) == [own(size) for size in sizes]


@given(batches, calm)
def test_the_delay_is_bounded(sizes: list[int], hysteresis: Hysteresis) -> None:
    """Whoever has stayed in one bucket for that many steps gets it."""
    found = run(sizes, hysteresis)
    for i in range(hysteresis.steps - 1, len(sizes)):
        window = {own(size) for size in sizes[i - hysteresis.steps + 1 : i + 1]}
        if len(window) == 1:
            assert found[i] in window


@given(batches, calm)
def test_every_change_has_its_reason(sizes: list[int], hysteresis: Hysteresis) -> None:
    """Only to the batch's own bucket; far past the border, or after enough steps in a row outside."""
    found = run(sizes, hysteresis)
    for i in range(1, len(sizes)):
        before, after = found[i - 1], found[i]
        if before == after:
            continue
        assert after == own(sizes[i])
        low, high = RANGES[before]
        size = min(sizes[i], 65)
        past = max(size - high, low - size)
        far = past > max(1.0, hysteresis.margin * (high if size > high else low))
        run_before = sizes[max(0, i - hysteresis.steps + 1) : i + 1]
        waited = len(run_before) == hysteresis.steps and all(own(size) != before for size in run_before)
        assert far or waited


@given(st.integers(2, 8), st.lists(st.tuples(st.integers(1, 7), st.booleans()), max_size=12))
def test_no_flapping_between_neighbours(steps: int, pattern: list[tuple[int, bool]]) -> None:
    """Runs outside that are shorter than the steps, however often, change nothing."""
    sizes = [16]
    for length, above in pattern:
        sizes += [17 if above else 16] * (min(length, steps - 1) if above else length)
        sizes += [16]
    assert run(sizes, Hysteresis(steps=steps, margin=0.25)) == [1] * len(sizes)


@pytest.mark.parametrize("settings", [{"steps": 0}, {"margin": -0.1}, {"margin": float("nan")}])
def test_impossible_settings(settings: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Hysteresis(**settings)


def test_an_empty_step() -> None:
    with pytest.raises(InputError, match="0 requests"):
        Switch(areas=AREAS).step(0)
