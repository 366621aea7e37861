"""What is left, what fits into the time, and when timing stops."""

from __future__ import annotations

import faulthandler
import itertools
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_device import CEILINGS, at

from treeopt.cost.formats import Dtype
from treeopt.profile.child import Child
from treeopt.profile.points import KernelPoint, stream
from treeopt.profile.rows import RowFile, Timed
from treeopt.profile.session import Failed, expected_s, schedule, timed
from treeopt.profile.workload import WrongResultError

POINTS = [stream(1 << k, Dtype.FP32) for k in range(10, 20)]


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


def test_failures_cost_nothing_either(tmp_path: Path) -> None:
    rows = RowFile(path=tmp_path / "r.jsonl", device="paper")
    rows.note(POINTS[1], "out of memory")
    assert schedule(POINTS, rows, CEILINGS, device="cpu", budget_s=None).left == (POINTS[0], *POINTS[2:])


def test_the_deadline_stops_before_a_point() -> None:
    now = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    found = list(timed(POINTS, lambda point: at(point, 1.0), deadline_s=2.5, clock=lambda: next(now)))
    assert [done.point for done in found] == POINTS[:3]


class OutOfMemoryError(RuntimeError):
    pass


def test_a_point_that_fails_is_told_and_left_out() -> None:
    def time_point(point: KernelPoint) -> Timed:
        if point == POINTS[2]:
            raise OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
        if point == POINTS[4]:
            raise WrongResultError("off by 0.2", hint="report it")
        return at(point, 1.0)

    found = list(timed(POINTS, time_point))
    assert [done.point for done in found] == POINTS
    assert {i: done.reason for i, done in enumerate(found) if isinstance(done, Failed)} == {
        2: "OutOfMemoryError: CUDA out of memory.",
        4: "off by 0.2",
    }


def dies(point: KernelPoint) -> Timed:
    """What happens depends on the point: two die, one raises, one never ends."""
    how = {POINTS[1]: signal.SIGKILL, POINTS[3]: signal.SIGSEGV}.get(point)
    if how is not None:
        faulthandler.disable()
        os.kill(os.getpid(), how)
    if point == POINTS[5]:
        raise OutOfMemoryError("CUDA out of memory.")
    if point == POINTS[7]:
        time.sleep(60)
    return at(point, 2.0)


def test_a_process_that_dies_of_a_point_takes_no_other_along() -> None:
    child = Child(lambda: dies, method="fork", limit_s=1.0)
    try:
        found = list(timed(POINTS, child))
    finally:
        child.close()
    assert [done.point for done in found] == POINTS
    assert {i: done.reason for i, done in enumerate(found) if isinstance(done, Failed)} == {
        1: "the process died (SIGKILL)",
        3: "the process died (SIGSEGV)",
        5: "OutOfMemoryError: CUDA out of memory.",
        7: "given up after 1 s",
    }


FAILURES = st.dictionaries(st.sampled_from(POINTS), st.sampled_from(["memory", "resources", "compiler", "wrong"]))


@settings(max_examples=200)
@given(FAILURES, st.data())
def test_no_row_is_lost_and_resumed_runs_equal_unbroken_ones(
    kinds: dict[KernelPoint, str], data: st.DataObject
) -> None:
    """Points fail at random, the run is killed between any two points or within a line, and goes on."""
    errors: dict[str, Exception] = {
        "memory": OutOfMemoryError("CUDA out of memory."),
        "resources": RuntimeError("out of resource: shared memory"),
        "compiler": ValueError("at 3:4: no"),
        "wrong": WrongResultError("off by 0.2", hint="report it"),
    }

    def time_point(point: KernelPoint) -> Timed:
        if point in kinds:
            raise errors[kinds[point]]
        return at(point, 1e-3 * (1 + POINTS.index(point)))

    def run(rows: RowFile, stop: int | None) -> None:
        left = schedule(POINTS, rows, CEILINGS, device="cpu", budget_s=None).left
        for done in itertools.islice(timed(left, time_point), stop):
            if isinstance(done, Failed):
                rows.note(done.point, done.reason)
            else:
                rows.append(done)

    with tempfile.TemporaryDirectory() as folder:
        whole, broken = (RowFile(path=Path(folder, name), device="paper") for name in ("a.jsonl", "b.jsonl"))
        run(whole, None)
        while True:
            run(broken, data.draw(st.integers(1, 4)))
            done = broken.times(POINTS).keys() | broken.failures(POINTS).keys()
            if len(done) == len(POINTS):
                break
            half = data.draw(st.sampled_from([None, broken.path, broken.failed]))
            if half is not None:  # what a kill in the middle of writing leaves
                with half.open("a") as file:
                    file.write('{"operator": "gem')
        assert broken.times(POINTS) == whole.times(POINTS)
        assert broken.failures(POINTS) == whole.failures(POINTS)
        assert [*whole.times(POINTS), *whole.failures(POINTS)] != []
        assert whole.times(POINTS).keys() | whole.failures(POINTS).keys() == set(POINTS)
        for mine, other in ((whole.path, broken.path), (whole.failed, broken.failed)):
            assert (mine.read_text() if mine.exists() else "") == (other.read_text() if other.exists() else "")
