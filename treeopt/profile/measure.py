"""From a model and a device to timing rows: ceilings first, then the grid, resumed where a run was killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final, NamedTuple

from treeopt.cost.drafter import Drafter
from treeopt.cost.formats import Dtype
from treeopt.cost.model import ModelShape
from treeopt.errors import InputError
from treeopt.profile.device import Device
from treeopt.profile.grid import GridReach, ceiling_points, grid
from treeopt.profile.points import ALL_REDUCE, ATTENTION, EXPERTS, LATENT, Ceilings, KernelPoint
from treeopt.profile.pool import TensorPool
from treeopt.profile.rows import RowFile, Timed
from treeopt.profile.session import Failed, Schedule, TimePoint, checked_and_timed, schedule, timed
from treeopt.profile.shapes import Shapes, shapes_of
from treeopt.profile.timer import cold_bytes
from treeopt.profile.workload import Workload
from treeopt.profile.workloads import workload

# What is left of a time limit for the fit.
_FIT_S: Final = 5.0
TIMED_DTYPES: Final = (Dtype.BF16, Dtype.FP16, Dtype.FP32, Dtype.FP8)


class Questions(NamedTuple):
    """What the profile shall answer: a step of which models, and how far."""

    model: ModelShape
    drafter: Drafter
    dtype: Dtype
    tp: int
    max_tokens: int
    max_context: int


class PointTime(NamedTuple):
    """A point with its time and how many times its floor that is."""

    point: KernelPoint
    time_s: float
    over_floor: float


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelBench:
    """One device, the rows that it fills, and the questions that they answer; without `keep` no row is written.

    On a GPU points are timed in a process of their own, which may die of one: end it with `close`.

    Raises:
        InputError: a dtype that torch has no kernels for, or a tp that the heads do not divide by.
    """

    device: Device
    rows: RowFile
    questions: Questions
    seed: int = 0
    keep: bool = True
    clock: Callable[[], float] = time.monotonic
    start_s: float = field(default_factory=time.monotonic)
    _to_close: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.questions.dtype not in TIMED_DTYPES:
            raise InputError(
                f"{self.questions.dtype} kernels are not timed", hint=f"give one of {', '.join(TIMED_DTYPES)}"
            )
        _ = self.shapes

    @cached_property
    def shapes(self) -> Shapes:
        """What the step runs."""
        model, drafter, dtype, tp, _, _ = self.questions
        return shapes_of(model, drafter, tp=tp, dtype=dtype)

    @cached_property
    def points(self) -> tuple[KernelPoint, ...]:
        """The grid, coarse to fine."""
        shapes, wanted = self.shapes, self.questions
        if self.device.kind == "cuda":
            from treeopt.profile.attention import kernel_takes

            taken = tuple(shape for shape in shapes.attention if kernel_takes(shape, wanted.dtype.wide))
            shapes = replace(shapes, attention=taken)
        return tuple(grid(shapes, wanted.dtype, self._reach))

    @property
    def _reach(self) -> GridReach:
        from treeopt.profile.flash import flash_attention
        from treeopt.profile.messages import ranks_there

        wanted, on_gpu = self.questions, self.device.kind == "cuda"
        return GridReach(
            max_tokens=wanted.max_tokens,
            max_keys=wanted.max_context,
            memory_bytes=self.device.input_bytes,
            kernels=on_gpu,
            flash=on_gpu and flash_attention() is not None,
            ranks=ranks_there(self.device.kind) if wanted.tp > 1 else 1,
            experts_dtype=_grouped_dtype(wanted.dtype.wide, on_gpu=on_gpu),
        )

    @cached_property
    def ceilings(self) -> Ceilings:
        """The rates of a large copy and a large matrix product, from the rows or timed now."""
        copy, product = self._ceiling_points
        found = dict(self.rows.times((copy, product)))
        for done in self.run(point for point in (copy, product) if point not in found):
            if isinstance(done, Failed):
                raise InputError(
                    f"the device's rate cannot be timed: {done.point}: {done.reason}",
                    hint="free its memory, or see whether other processes use it",
                )
            found[done.point] = done.timing.time_s
        return Ceilings(
            bandwidth_bytes_per_s=copy.traffic_bytes / found[copy], flops_per_s=product.flops / found[product]
        )

    @cached_property
    def _ceiling_points(self) -> tuple[KernelPoint, KernelPoint]:
        memory = self.device.input_bytes
        return ceiling_points(self.questions.dtype, device=self.device.kind, memory_bytes=memory)

    def schedule(self, budget_s: float | None) -> Schedule:
        """What is left, and what of it fits into a budget that began when this bench was made."""
        ceilings = self.ceilings
        if budget_s is not None:
            budget_s -= self.clock() - self.start_s + _FIT_S
        return schedule(self.points, self.rows, ceilings, device=self.device.kind, budget_s=budget_s)

    def run(self, left: Iterable[KernelPoint], *, budget_s: float | None = None) -> Iterator[Timed | Failed]:
        """Time points; each is in the file when it is given, those that fail in the file of failures."""
        deadline_s = None if budget_s is None else self.start_s + budget_s - _FIT_S
        for done in timed(left, self.time_point, deadline_s=deadline_s, clock=self.clock):
            if self.keep and isinstance(done, Timed):
                self.rows.append(done)
            elif self.keep and isinstance(done, Failed):
                self.rows.note(done.point, done.reason)
            yield done

    @cached_property
    def time_point(self) -> TimePoint:
        """What times a point."""
        if self.device.kind == "cpu":
            return self._apart(self.timing_here())
        from treeopt.profile.child import Child

        bare = KernelBench(device=self.device, rows=self.rows, questions=self.questions, seed=self.seed, keep=False)
        child = Child(bare.timing_here)
        self._to_close.append(child.close)
        return self._apart(child)

    def timing_here(self) -> TimePoint:
        """Times a point in this process."""
        return partial(checked_and_timed, make=self.make, timer=self.device.timer)

    def _apart(self, time_point: TimePoint) -> TimePoint:
        """Messages are timed among processes of their own."""
        if self.questions.tp == 1:
            return time_point
        from treeopt.profile.messages import Ranks

        ranks = Ranks(self.questions.tp, self.device.kind)
        self._to_close.append(ranks.close)
        return lambda point: (ranks if point.operator == ALL_REDUCE else time_point)(point)

    def close(self) -> None:
        """End the processes that time."""
        while self._to_close:
            self._to_close.pop()()

    def noise(self) -> float | None:
        """How far a second timing of the first point is from its row, as a share; None if it has no row, or fails."""
        return self._again(self.points[:1])

    def drift(self) -> float | None:
        """How far the ceilings are now from what they were at the start, at most, as a share: a clock that fell, or
        another process that came."""
        return self._again(self._ceiling_points)

    def _again(self, points: Sequence[KernelPoint]) -> float | None:
        before = self.rows.times(points)
        apart = [
            abs(done.timing.time_s / before[done.point] - 1.0)
            for done in timed(before, self.time_point)
            if isinstance(done, Timed)
        ]
        return max(apart, default=None)

    def failures(self) -> list[Failed]:
        """The points that could not be timed."""
        return [Failed(point=point, reason=reason) for point, reason in self.rows.failures(self.points).items()]

    def times(self) -> list[PointTime]:
        """All points that have a row, with their floors."""
        found = self.rows.times(self.points)
        return [PointTime(point, time_s, time_s / point.floor_s(self.ceilings)) for point, time_s in found.items()]

    def notes(self) -> list[str]:
        """What a reader of the profile must know."""
        found = list(self.shapes.untimed)
        failures = self.failures()
        for reason in dict.fromkeys(failed.reason for failed in failures):
            mine = [failed.point for failed in failures if failed.reason == reason]
            more = f" and {len(mine) - 1} more" if len(mine) > 1 else ""
            found.append(f"not timed: {mine[0]}{more}: {reason}")
        timed = {point.operator for point in self.points}
        if self.shapes.attention and not timed & {ATTENTION, LATENT} and not self.shapes.untimed:
            found.append("tree attention is not timed: the kernel has no configuration for these heads")
        if self.shapes.experts and EXPERTS not in timed:
            found.append("routed experts are not timed: all of a layer do not fit, or torch has no product of them")
        if self.questions.tp > 1 and ALL_REDUCE not in timed:
            found.append("messages between GPUs are not timed: there are not as many here; the link's rate prices them")
        return found

    def make(self, point: KernelPoint) -> Workload:
        """A point made ready on this device."""
        return workload(point, self._pool(point.dtype.wide), cold=self.cold)

    @cached_property
    def pool(self) -> TensorPool:
        """Random values to run on, in the format of activations."""
        return TensorPool(dtype=self.questions.dtype.wide, device=self.device.kind, seed=self.seed)

    def _pool(self, dtype: Dtype) -> TensorPool:
        """That, or one of another format for the one kernel that takes no other."""
        if dtype is self.questions.dtype.wide:
            return self.pool
        return TensorPool(dtype=dtype, device=self.device.kind, seed=self.seed)

    @cached_property
    def cold(self) -> float:
        """The bytes that inputs rotate through."""
        return cold_bytes(
            cache_bytes=self.device.cache_bytes,
            step_bytes=self.shapes.step_bytes,
            memory_bytes=self.device.input_bytes,
        )


def _grouped_dtype(wide: Dtype, *, on_gpu: bool) -> Dtype | None:
    """What torch's grouped product comes in: on a GPU 16-bit brain floats, which stand for the other 16-bit format."""
    if not on_gpu:
        return wide
    return None if wide is Dtype.FP32 else Dtype.BF16
