from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.errors import InputError
from treeopt.measure.calibration import calibration_schedule


def test_by_hand() -> None:
    assert calibration_schedule((1, 2, 4, 8, 16, 32), k_max=4) == [
        (1, 1, 4),
        (2, 2, 0),
        (3, 4, 3),
        (5, 8, 1),
        (9, 16, 2),
        (17, 32, 4),
    ]


@given(st.sets(st.integers(1, 512), min_size=1, max_size=20), st.integers(1, 16))
def test_ranges_follow_each_other_and_all_lengths_come_up(batches: set[int], k_max: int) -> None:
    """vLLM wants the first range to begin at 1 and none to overlap; each batch size is the last of its own range."""
    found = calibration_schedule(sorted(batches), k_max=k_max)
    assert found[0][0] == 1
    assert [last for _, last, _ in found] == sorted(batches)
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(found))
    assert {k for _, _, k in found} == set(range(k_max + 1)) or len(batches) <= k_max
    assert all(0 <= k <= k_max for _, _, k in found)


@pytest.mark.parametrize(("batches", "k_max"), [((), 4), ((1, 2), 0), ((0, 1), 2)])
def test_nothing_to_calibrate(batches: tuple[int, ...], k_max: int) -> None:
    with pytest.raises(InputError):
        calibration_schedule(batches, k_max=k_max)
