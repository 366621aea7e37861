"""Timing points: what is left, how long that takes, and the loop itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from treeopt.errors import TreeoptError
from treeopt.profile.points import Ceilings, KernelPoint
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

    points: tuple[KernelPoint, ...]
    left: tuple[KernelPoint, ...]
    seconds: float


def expected_s(point: KernelPoint, ceilings: Ceilings, device: str) -> float:
    """The seconds that timing a point takes, if it runs at a quarter of the ceilings: two calls, then the repeats."""
    one_s = point.floor_s(ceilings) / _SHARE
    return _SETUP_S[device] + 2 * one_s + REPEATS * max(REPEAT_S, one_s)


def schedule(
    points: Sequence[KernelPoint], rows: RowFile, ceilings: Ceilings, *, device: str, budget_s: float | None
) -> Schedule:
    """The beginning of `points` that fits into the budget; what the file already has, failures too, costs nothing."""
    done = rows.times(points).keys() | rows.failures(points).keys()
    chosen: list[KernelPoint] = []
    seconds = 0.0
    for point in points:
        cost_s = 0.0 if point in done else expected_s(point, ceilings, device)
        if budget_s is not None and seconds + cost_s > budget_s:
            break
        chosen.append(point)
        seconds += cost_s
    return Schedule(points=tuple(chosen), left=tuple(p for p in chosen if p not in done), seconds=seconds)


class TimingError(Exception):
    """A point that has no time: it failed, or took its process along."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A point that could not be timed, and why."""

    point: KernelPoint
    reason: str


TimePoint = Callable[[KernelPoint], Timed]


def checked_and_timed(point: KernelPoint, make: Callable[[KernelPoint], Workload], timer: Timer) -> Timed:
    """Check a point, then time it.

    Raises:
        WrongResultError: the kernel's result is wrong; no time of it is kept.
    """
    work = make(point)
    error = work.error(point)
    return Timed(point=point, timing=timer.time(work.calls), error=error)


def timed(
    left: Iterable[KernelPoint],
    time_point: TimePoint,
    *,
    deadline_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Timed | Failed]:
    """Time the points one by one; stops before the first that begins after the deadline.

    A point that fails, be it for want of memory, for a wrong result or with its process, is told and left out.
    """
    for point in left:
        if deadline_s is not None and clock() > deadline_s:
            return
        try:
            yield time_point(point)
        except Exception as error:  # kernels, compilers and drivers raise what they like
            yield Failed(point=point, reason=reason_of(error))


def reason_of(error: Exception) -> str:
    """An error in one line: the class where it is not ours, then what it says first."""
    lines = str(error).strip().splitlines()
    said = lines[0].strip() if lines else ""
    own = isinstance(error, TreeoptError | TimingError)
    return (said if own and said else f"{type(error).__name__}: {said}".rstrip(": "))[:300]
