"""What was timed without being fitted, beside what it says something about."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from treeopt.cost.kernels.times import KernelTimes
from treeopt.profile.points import (
    ACTIVATION,
    ATTENTION,
    CHOICE,
    COMPACTION,
    CONTIGUOUS,
    FLASH,
    NORM,
    PAGES_16,
    ROPE,
    SAMPLING,
    SCHEDULE,
    KernelPoint,
)

AS_STREAM: Final = "its price as a stream of its bytes"
AS_TREE: Final = "tree attention on pages of 64"
AS_LAYER: Final = "one layer's tree attention, once per step"
# Operators by what they are set beside.
BESIDE: Final = {
    **dict.fromkeys((COMPACTION, NORM, ROPE, ACTIVATION, CHOICE, SAMPLING), AS_STREAM),
    **dict.fromkeys((PAGES_16, CONTIGUOUS, FLASH), AS_TREE),
    SCHEDULE: AS_LAYER,
}


class Beside(NamedTuple):
    """How many times as long as `other` an operator takes: the median and the largest ratio of its points."""

    operator: str
    other: str
    points: int
    median: float
    worst: float


def beside(times: Mapping[KernelPoint, float], prices: KernelTimes) -> list[Beside]:
    """Every operator of which there are points, in the order of `BESIDE`."""
    found = []
    for operator, other in BESIDE.items():
        mine = [(point, time_s) for point, time_s in times.items() if point.operator == operator]
        known = times if other != AS_STREAM else None
        ratios = [time_s / other_s for point, time_s in mine for other_s in _other_s(point, known, prices)]
        if ratios:
            found.append(Beside(operator, other, len(ratios), statistics.median(ratios), max(ratios)))
    return found


def _other_s(point: KernelPoint, times: Mapping[KernelPoint, float] | None, prices: KernelTimes) -> Iterator[float]:
    """The time of what a point is set beside, if there is one."""
    if times is None:
        yield float(sum(prices.stream_s(np.array(float(part))) for part in _streams(point)))
        return
    key = (point.dtype, point.sizes)
    yield from (time_s for at, time_s in times.items() if at.operator == ATTENTION and (at.dtype, at.sizes) == key)


def _streams(point: KernelPoint) -> Sequence[int]:
    """The streams that a step prices a kernel as: sampling is priced as two, of 6 and of 4 bytes for a 16-bit logit."""
    if point.operator != SAMPLING or point.dtype.bytes_per_value == 4:
        return (point.traffic_bytes,)
    return (point.traffic_bytes * 6 // 10, point.traffic_bytes * 4 // 10)
