"""Points timed in a process of their own, which may die of one without taking the others along."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

from treeopt.profile.points import KernelPoint
from treeopt.profile.rows import Timed
from treeopt.profile.session import TimePoint, TimingError, reason_of

POINT_LIMIT_S: Final = 600.0  # for one point, its compilation included
_END_S: Final = 5.0


class Child:
    """A process that times one point after the other; a new one takes over where it died.

    Args:
        make: makes the function that times a point, in the child; has to be picklable with `method="spawn"`.
        method: how the process is started; a forked one cannot use CUDA.
        limit_s: seconds after which a point is given up and the process ended.
    """

    def __init__(
        self,
        make: Callable[[], TimePoint],
        *,
        method: Literal["spawn", "fork"] = "spawn",
        limit_s: float = POINT_LIMIT_S,
    ) -> None:
        self._make = make
        self._context: Any = multiprocessing.get_context(method)  # its kinds share no type that has Process
        self._limit_s = limit_s
        self._running: tuple[multiprocessing.process.BaseProcess, Connection] | None = None

    def __call__(self, point: KernelPoint) -> Timed:
        """Time a point in the child.

        Raises:
            TimingError: it failed, the process died of it, or it took too long.
        """
        self.send(point)
        return self.receive()

    @property
    def pipe(self) -> Connection:
        """Where its answer comes; a process is started if there is none."""
        _, pipe = self._running = self._running or self._started()
        return pipe

    def send(self, point: KernelPoint) -> None:
        """Begin to time a point; a process that died meanwhile is noticed by `receive`."""
        with suppress(OSError):
            self.pipe.send(point)

    def receive(self) -> Timed:
        """What came of the point that was sent.

        Raises:
            TimingError: see `__call__`.
        """
        if self._running is None:
            raise TimingError("the process is gone")
        process, pipe = self._running
        try:
            if not pipe.poll(self._limit_s):
                raise TimingError(f"given up after {self._limit_s:.0f} s")
            found = pipe.recv()
        except (EOFError, OSError):
            process.join(_END_S)
            raise TimingError(f"the process died ({_cause(process.exitcode)})") from None
        except TimingError:
            process.kill()
            process.join()
            raise
        finally:
            if not process.is_alive():
                self._running = None
        if isinstance(found, Timed):
            return found
        self.close()  # an error of CUDA makes every later call fail
        raise TimingError(str(found))

    def kill(self) -> None:
        """End the process at once, whatever it waits for."""
        if self._running is not None:
            process, pipe = self._running
            process.kill()
            process.join()
            pipe.close()
            self._running = None

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            process, pipe = self._running
            with suppress(OSError):  # it may be gone
                pipe.send(None)
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
            self._running = None

    def _started(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._make), daemon=True)
        process.start()
        theirs.close()
        return process, ours


def _serve(pipe: Connection, make: Callable[[], TimePoint]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and closes the pipe
    time_point: TimePoint | None = None
    while True:
        try:
            point = pipe.recv()
        except EOFError:
            point = None
        if point is None:
            return
        try:
            time_point = time_point or make()
            found: Timed | str = time_point(point)
        except Exception as error:  # whatever it is, it is this point's
            found = reason_of(error)
        pipe.send(found)


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
