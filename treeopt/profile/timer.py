"""Honest times of short kernels: cold inputs, many repeats, the median and how far the repeats are apart."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from treeopt.extras import require

REPEATS: Final = 7
REPEAT_S: Final = 0.02
# Inputs rotate through this many times the last-level cache, so that no call finds its weights warm.
# Source: FlashInfer's benchmark utilities use the same rule.
_CACHE_MULTIPLE: Final = 5
_MOST_SETS: Final = 512


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One kernel's time: the median of the repeats, and their 10th to 90th percentile as a share of it."""

    time_s: float
    spread: float
    calls: int


class Timer(Protocol):
    """Times calls that all do the same work on different inputs."""

    def time(self, calls: Sequence[Callable[[], object]]) -> Timing:
        """The time of one call, all of `calls` run in turn over and over."""


@dataclass(frozen=True, kw_only=True)
class CpuTimer:
    """Wall-clock time of calls on this machine's processor."""

    clock: Callable[[], float] = time.perf_counter

    def time(self, calls: Sequence[Callable[[], object]]) -> Timing:
        """See `Timer.time`; every call is timed alone, so that one which the system interrupts cannot move the median.

        Two calls warm up.
        """
        turn = itertools.cycle(calls)
        for call in itertools.islice(turn, 2):
            call()
        measured: list[float] = []
        spent_s = 0.0
        while spent_s < REPEATS * REPEAT_S or len(measured) < REPEATS:
            call = next(turn)
            start = self.clock()
            call()
            measured.append(self.clock() - start)
            spent_s += measured[-1]
        return summary(measured, len(measured))


@dataclass(frozen=True, kw_only=True)
class CudaTimer:
    """Device time of calls replayed from one CUDA graph: what an engine pays, without launches from Python."""

    def time(self, calls: Sequence[Callable[[], object]]) -> Timing:
        """See `Timer.time`; the graph holds every call once."""
        torch = require("torch", extra="gpu")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in calls[:2]:  # compiles, and chooses algorithms, before the capture
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        _replays_s(torch, graph, 1)
        rounds = _rounds(_replays_s(torch, graph, 1))
        measured = [_replays_s(torch, graph, rounds) / (rounds * len(calls)) for _ in range(REPEATS)]
        return summary(measured, rounds * len(calls))


def summary(measured: Sequence[float], calls: int) -> Timing:
    """The median of the repeats and their spread."""
    middle = statistics.median(measured)
    deciles = statistics.quantiles(measured, n=10, method="inclusive")
    return Timing(time_s=middle, spread=(deciles[-1] - deciles[0]) / middle, calls=calls)


def cold_bytes(*, cache_bytes: float, step_bytes: float, memory_bytes: float) -> float:
    """What inputs rotate through: five caches, but no more than a step streams between two uses of one weight."""
    return min(_CACHE_MULTIPLE * cache_bytes, step_bytes, memory_bytes)


def input_sets(bytes_per_call: int, cold: float) -> int:
    """How many sets of inputs a call rotates through; one is enough for what exceeds `cold` by itself."""
    if bytes_per_call >= cold:
        return 1
    return min(_MOST_SETS, -int(-cold // max(bytes_per_call, 1)) + 1)


def _rounds(first_s: float) -> int:
    return max(1, round(REPEAT_S / max(first_s, 1e-7)))


def _replays_s(torch: Any, graph: Any, rounds: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(rounds):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
