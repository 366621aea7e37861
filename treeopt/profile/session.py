"""Timing points: what is left, how long that takes, and the loop itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from treeopt.profile.points import Ceilings, Point
from treeopt.profile.rows import RowFile, Timed
from treeopt.profile.timer import REPEAT_S, REPEATS, Timer
from treeopt.profile.workload import Workload

# Beside the timing itself a point costs its inputs, its check in float64 and, for a kernel, a compilation.
_SETUP_S: Final = {"cpu": 0.1, "cuda": 0.4}
# Kernels at small sizes run at this share of the ceilings, by and large.
_SHARE: Final = 0.25


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The points of a session in order, those left to time, and the seconds that they are expected to take."""

    points: tuple[Point, ...]
    left: tuple[Point, ...]
    seconds: float


def expected_s(point: Point, ceilings: Ceilings, device: str) -> float:
    """The seconds that timing a point takes, if it runs at a quarter of the ceilings: two calls, then the repeats."""
    one_s = point.floor_s(ceilings) / _SHARE
    return _SETUP_S[device] + 2 * one_s + REPEATS * max(REPEAT_S, one_s)


def schedule(
    points: Sequence[Point], rows: RowFile, ceilings: Ceilings, *, device: str, budget_s: float | None
) -> Schedule:
    """The beginning of `points` that fits into the budget; what the file already has costs nothing."""
    done = rows.times(points)
    chosen: list[Point] = []
    seconds = 0.0
    for point in points:
        cost_s = 0.0 if point in done else expected_s(point, ceilings, device)
        if budget_s is not None and seconds + cost_s > budget_s:
            break
        chosen.append(point)
        seconds += cost_s
    return Schedule(points=tuple(chosen), left=tuple(p for p in chosen if p not in done), seconds=seconds)


def timed(
    left: Sequence[Point],
    make: Callable[[Point], Workload],
    timer: Timer,
    *,
    deadline_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Timed]:
    """Check and time the points one by one; stops before the first that begins after the deadline.

    Raises:
        WrongResultError: a kernel's result is wrong; no time of it is kept.
    """
    for point in left:
        if deadline_s is not None and clock() > deadline_s:
            return
        work = make(point)
        error = work.error(point)
        yield Timed(point=point, timing=timer.time(work.calls), error=error)
