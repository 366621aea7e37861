"""The timers, on clocks that tests turn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest

from treeopt.profile import timer
from treeopt.profile.timer import REPEAT_S, REPEATS, CpuTimer, cold_bytes, input_sets, summary


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[int] = []

    def __call__(self) -> float:
        return self.now

    def call(self, number: int, *seconds: float) -> object:
        turns = cycle(seconds)

        def run() -> None:
            self.now += next(turns)
            self.ran.append(number)

        return run


def test_the_median_of_single_calls_after_a_warm_up() -> None:
    clock = Clock()
    timing = CpuTimer(clock=clock).time([clock.call(0, 5.0, 0.004), clock.call(1, 0.005)])  # type: ignore[list-item]
    assert clock.ran[:6] == [0, 1, 0, 1, 0, 1]  # in turn, the two warm-up calls included
    assert timing.calls == len(clock.ran) - 2
    assert timing.calls >= REPEATS


def test_a_call_that_is_interrupted_does_not_move_the_median() -> None:
    clock = Clock()
    call = clock.call(0, *[0.001] * 9, 0.1)
    timing = CpuTimer(clock=clock).time([call])  # type: ignore[list-item]
    assert timing.time_s == pytest.approx(0.001)


def test_short_calls_run_for_their_time_and_long_ones_seven_times() -> None:
    clock = Clock()
    short = CpuTimer(clock=clock).time([clock.call(0, 1e-4)])  # type: ignore[list-item]
    assert short.calls == pytest.approx(REPEATS * REPEAT_S / 1e-4, abs=1)
    assert CpuTimer(clock=clock).time([clock.call(0, 3.0)]).calls == 7  # type: ignore[list-item]


def test_the_spread_is_between_the_deciles() -> None:
    timing = summary([10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0], 11)
    assert (timing.time_s, timing.spread) == (60.0, pytest.approx((100 - 20) / 60))


class FakeCuda:
    """As much of `torch` as the timer uses; a replay takes 2 ms of the device's time."""

    def __init__(self) -> None:
        self.cuda = self
        self.now_ms = 0.0
        self.capturing = False
        self.replays = 0

    def Stream(self) -> FakeCuda:  # noqa: N802
        return self

    CUDAGraph = current_stream = Stream

    def wait_stream(self, other: object) -> None:
        pass

    @contextmanager
    def stream(self, side: object) -> Iterator[None]:
        yield

    @contextmanager
    def graph(self, graph: object) -> Iterator[None]:
        self.capturing = True
        yield
        self.capturing = False

    def replay(self) -> None:
        assert not self.capturing
        self.replays += 1
        self.now_ms += 2.0

    def Event(self, *, enable_timing: bool) -> FakeEvent:  # noqa: N802
        assert enable_timing
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device: FakeCuda) -> None:
        self.device = device
        self.at_ms = math.nan

    def record(self) -> None:
        self.at_ms = self.device.now_ms

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at_ms - self.at_ms


def test_a_graph_holds_every_call_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeCuda()
    monkeypatch.setattr(timer, "require", lambda module, extra: device)
    ran: list[tuple[int, bool]] = []
    timing = timer.CudaTimer().time([lambda n=n: ran.append((n, device.capturing)) for n in range(4)])  # type: ignore[misc]
    assert ran == [(0, False), (1, False), (0, True), (1, True), (2, True), (3, True)]
    assert timing.time_s == pytest.approx(2e-3 / 4)
    assert timing.spread == pytest.approx(0.0)
    # 20 ms are ten replays; seven times that, and two replays before
    assert timing.calls == 10 * 4
    assert device.replays == 2 + 7 * 10


def test_inputs_rotate_through_five_caches() -> None:
    # 250 MB in sets of 2 MB: 125, and one for what is left of the first
    assert input_sets(2_000_000, 250e6) == 126
    assert input_sets(250_000_000, 250e6) == 1
    assert input_sets(4096, 250e6) == 512  # activations are warm in a step too
    assert cold_bytes(cache_bytes=50e6, step_bytes=16e9, memory_bytes=10e9) == 250e6
    assert cold_bytes(cache_bytes=50e6, step_bytes=100e6, memory_bytes=10e9) == 100e6
    assert cold_bytes(cache_bytes=500e6, step_bytes=16e9, memory_bytes=2e9) == 2e9
