"""The form: values by hand, and the laws of the soft maximum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.cost.kernels.roofline import Roofline, Tiling, Work, soft_maximum
from treeopt.errors import FileFormatError
from treeopt.files.documents import parse_document
from treeopt.files.typed import read

seconds = st.floats(1e-9, 1.0)


def work(traffic_bytes: float, flops: float, units: float = 0.0) -> Work:
    return Work(np.array(traffic_bytes), np.array(flops), np.array(units))


def test_a_hard_roofline_by_hand() -> None:
    form = Roofline(bandwidth_bytes_per_s=1e12, peak_flops=1e14, launch_s=2e-6, unit_s=1e-8)
    assert form.time_s(work(1e6, 1e7, units=5)) == pytest.approx(
        2e-6 + 5e-8 + 1e-6
    )  # 1 us of memory, 0.1 of arithmetic
    assert form.time_s(work(1e6, 4e8)) == pytest.approx(2e-6 + 4e-6)


def test_equal_times_count_the_qth_root_of_two() -> None:
    form = Roofline(bandwidth_bytes_per_s=1e12, peak_flops=1e12, sharpness=2.0)
    assert form.time_s(work(3e6, 3e6)) == pytest.approx(3e-6 * math.sqrt(2))


@given(seconds, seconds, st.floats(1.0, 20.0))
def test_a_soft_maximum_lies_between_maximum_and_sum(a: float, b: float, q: float) -> None:
    soft = float(soft_maximum(np.array(a), np.array(b), q))
    assert max(a, b) <= soft * (1 + 1e-12)
    assert soft <= (a + b) * (1 + 1e-12)


def test_no_work_takes_no_time() -> None:
    assert soft_maximum(np.zeros(2), np.zeros(2), 3.0).tolist() == [0.0, 0.0]


def test_one_wave_of_full_tiles_is_charged_for_its_operations() -> None:
    # 256 x 128 tiles on 4 processors: 4 tiles, none idle.
    tiling = Tiling(processors=4, efficiency=0.5)
    assert tiling.flops(np.array(256.0), np.array(512.0), np.array(100.0)) == pytest.approx(2 * 256 * 512 * 100)


def test_one_token_is_charged_for_the_cheapest_tile() -> None:
    # One 64-row tile per 128 outputs at a quarter of the peak's efficiency: as much as a 256-row tile.
    tiling = Tiling(processors=4, efficiency=0.5)
    assert tiling.flops(np.array(1.0), np.array(512.0), np.array(100.0)) == pytest.approx(2 * 256 * 512 * 100)
    kinder = Tiling(processors=4, efficiency=1.0)
    assert kinder.flops(np.array(1.0), np.array(512.0), np.array(100.0)) == pytest.approx(2 * 64 * 512 * 100)


def test_a_tile_too_many_starts_a_wave_that_split_k_fills() -> None:
    # 5 tiles on 4 processors: 2 waves; in 4 pieces each, 20 on 4: 5 waves of a quarter.
    tiling = Tiling(processors=4, efficiency=1.0)
    charged = float(tiling.flops(np.array(64.0), np.array(640.0), np.array(100.0)))
    assert charged == pytest.approx(2 * 64 * 640 * 100)


def test_parameters_come_back_from_their_document() -> None:
    form = Roofline(bandwidth_bytes_per_s=2.5e12, peak_flops=7e14, launch_s=4e-6, unit_s=2e-8, sharpness=3.0)
    for case in (form, Roofline(bandwidth_bytes_per_s=1e11)):
        text = "\n".join(f"{key}: {value}" for key, value in case.document().items())
        assert read(Roofline, parse_document(text, name="p.yaml", what="form").root) == case


def test_a_misspelt_parameter_is_refused_with_its_line() -> None:
    field = parse_document("bandwidth_bytes_per_s: 1e12\nlunch_s: 1e-6\n", name="p.yaml", what="form").root
    with pytest.raises(FileFormatError, match=r"p\.yaml:2: lunch_s: unknown key"):
        read(Roofline, field)
