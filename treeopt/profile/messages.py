"""All-reduces among GPUs of one machine, or among processes of a processor: one process per rank, all in step.

NCCL on GPUs, Gloo on a processor. Engines have kernels of their own for small messages, which are faster.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

from treeopt.extras import require
from treeopt.profile.child import Child
from treeopt.profile.points import KernelPoint
from treeopt.profile.pool import torch_dtype
from treeopt.profile.rows import Timed
from treeopt.profile.session import TimePoint, TimingError
from treeopt.profile.timer import REPEAT_S, REPEATS, summary
from treeopt.profile.workload import WrongResultError

_AT_ONCE: Final = 4  # sums
_MOST_ROUNDS: Final = 1000


class Ranks:
    """`tp` processes that sum messages; a new group takes over where one of them died.

    Every rank times the same point; the slowest says what it takes.
    """

    def __init__(
        self, tp: int, kind: str, *, limit_s: float = 120.0, time_rank: Callable[..., Timed] | None = None
    ) -> None:
        self._tp, self._kind, self._limit_s = tp, kind, limit_s
        self._time_rank = time_rank or time_message
        self._group: tuple[tempfile.TemporaryDirectory[str], list[Child]] | None = None

    def __call__(self, point: KernelPoint) -> Timed:
        """Time a message.

        Raises:
            TimingError: a rank failed or died, or they took too long.
        """
        _, ranks = self._group = self._group or self._started()
        found: list[Timed] = []
        try:
            for rank in ranks:
                rank.send(point)
            waiting = {rank.pipe: rank for rank in ranks}
            while waiting:
                ready = wait(list(waiting), self._limit_s)
                if not ready:
                    raise TimingError(f"given up after {self._limit_s:.0f} s")
                found += [waiting.pop(pipe).receive() for pipe in ready]  # type: ignore[call-overload]
        except TimingError:
            self.close()  # the others wait for the one that failed
            raise
        slowest: Timed = max(found, key=lambda timed: timed.timing.time_s)
        return slowest

    def close(self) -> None:
        """End all ranks."""
        if self._group is not None:
            folder, ranks = self._group
            for rank in ranks:
                rank.kill()
            folder.cleanup()
            self._group = None

    def _started(self) -> tuple[tempfile.TemporaryDirectory[str], list[Child]]:
        folder = tempfile.TemporaryDirectory()
        make = [
            partial(_joined, rank, self._tp, self._kind, Path(folder.name, "ranks"), self._time_rank)
            for rank in range(self._tp)
        ]
        return folder, [Child(each, limit_s=self._limit_s) for each in make]


def ranks_there(kind: str) -> int:
    """How many ranks this machine has room for: its GPUs; of a processor as many as it has cores."""
    if kind == "cpu":
        return os.cpu_count() or 1
    return int(require("torch", extra="gpu").cuda.device_count())


def _joined(rank: int, tp: int, kind: str, meeting: Path, time_rank: Callable[..., Timed]) -> TimePoint:
    torch = require("torch", extra="gpu")
    if kind == "cuda":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl" if kind == "cuda" else "gloo", init_method=f"file://{meeting}", rank=rank, world_size=tp
    )
    return partial(time_rank, torch, kind)


def time_message(torch: Any, kind: str, point: KernelPoint) -> Timed:
    """One rank's part: the sum is checked, then timed as often on every rank.

    Raises:
        WrongResultError: the sum is another.
    """
    distributed, device = torch.distributed, torch.device(kind)
    dtype = torch_dtype(point.dtype)
    tp, rank = distributed.get_world_size(), distributed.get_rank()
    message = torch.full((max(1, point.size("message_bytes") // dtype.itemsize),), 1.0 + rank, device=device).to(dtype)
    distributed.all_reduce(message)
    if not bool((message == tp * (tp + 1) / 2).all()):
        raise WrongResultError(f"{point}: the sum over the ranks is wrong", hint="the point was not timed")
    message.zero_()
    sums = _sums(torch, kind, message)
    _timed_s(torch, kind, sums, 1)
    # Ranks agree on the number of rounds: the slowest decides.
    longest = torch.tensor([_timed_s(torch, kind, sums, 1)], dtype=torch.float64, device=device)
    distributed.all_reduce(longest, op=distributed.ReduceOp.MAX)
    rounds = min(_MOST_ROUNDS, max(1, round(REPEAT_S / float(longest))))
    measured = [_timed_s(torch, kind, sums, rounds) / (rounds * _AT_ONCE) for _ in range(REPEATS)]
    return Timed(point=point, timing=summary(measured, rounds * _AT_ONCE), error=0.0)


def _sums(torch: Any, kind: str, message: Any) -> Callable[[], object]:
    """`_AT_ONCE` sums one after the other; on GPUs from a captured graph, as engines start them."""

    def run() -> None:
        for _ in range(_AT_ONCE):
            torch.distributed.all_reduce(message)

    if kind == "cpu":
        return run
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], object] = graph.replay
    return replay


def _timed_s(torch: Any, kind: str, run: Callable[[], object], rounds: int) -> float:
    """Seconds of so many runs, begun by all ranks together."""
    torch.distributed.barrier()
    if kind == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(rounds):
        run()
    if kind == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
