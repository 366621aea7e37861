"""What is left, what fits into the time, and when timing stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_device import CEILINGS, at

from treeopt.cost.formats import Dtype
from treeopt.profile.points import stream
from treeopt.profile.rows import RowFile
from treeopt.profile.session import expected_s, schedule, timed
from treeopt.profile.timer import Timing
from treeopt.profile.workload import Workload

POINTS = [stream(1 << k, Dtype.FP32) for k in range(10, 20)]


class FakeWork:
    def error(self, point: object) -> float:
        return 0.0

    calls = ()


class FakeTimer:
    def time(self, calls: object) -> Timing:
        return Timing(time_s=1.0, spread=0.0, calls=7)


def test_the_expected_time_by_hand() -> None:
    # 10 GB/s: 1 GB takes 0.1 s at the ceiling and 0.4 s at a quarter of it; two calls warm up, seven are timed.
    assert expected_s(stream(10**9, Dtype.FP32), CEILINGS, "cpu") == pytest.approx(0.1 + 9 * 0.4)
    assert expected_s(stream(10, Dtype.FP32), CEILINGS, "cpu") == pytest.approx(0.1 + 0.14)


def test_the_budget_takes_the_beginning(tmp_path: Path) -> None:
    rows = RowFile(path=tmp_path / "r.jsonl", device="paper")
    all_of_it = schedule(POINTS, rows, CEILINGS, device="cpu", budget_s=None)
    assert (all_of_it.points, all_of_it.left) == (tuple(POINTS), tuple(POINTS))
    assert all_of_it.seconds == pytest.approx(10 * 0.24, rel=1e-2)
    some = schedule(POINTS, rows, CEILINGS, device="cpu", budget_s=1.0)
    assert some.left == tuple(POINTS[:4])
    assert some.seconds <= 1.0
    # What is there already costs nothing: the same time reaches further.
    rows.append(at(POINTS[0], 1e-3))
    rows.append(at(POINTS[2], 1e-3))
    more = schedule(POINTS, rows, CEILINGS, device="cpu", budget_s=1.0)
    assert (more.points, more.left) == (tuple(POINTS[:6]), (POINTS[1], *POINTS[3:6]))


def test_the_deadline_stops_before_a_point() -> None:
    now = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    made = []

    def make(point: object) -> Workload:
        made.append(point)
        return FakeWork()  # type: ignore[return-value]

    found = list(timed(POINTS, make, FakeTimer(), deadline_s=2.5, clock=lambda: next(now)))  # type: ignore[arg-type]
    assert [done.point for done in found] == POINTS[:3] == made
