"""From a model and a device to timing rows: ceilings first, then the grid, resumed where a run was killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from treeopt.cost.drafter import Drafter
from treeopt.cost.formats import Dtype
from treeopt.cost.model import ModelShape
from treeopt.errors import InputError
from treeopt.profile.device import Device
from treeopt.profile.grid import Reach, ceiling_points, grid
from treeopt.profile.points import ATTENTION, Ceilings, Point
from treeopt.profile.pool import Pool
from treeopt.profile.rows import RowFile, Timed
from treeopt.profile.session import Schedule, schedule, timed
from treeopt.profile.shapes import Shapes, shapes_of
from treeopt.profile.timer import cold_bytes
from treeopt.profile.workload import Workload, workload

# What is left of a time limit for the fit.
_FIT_S: Final = 5.0
TIMED_DTYPES: Final = (Dtype.BF16, Dtype.FP16, Dtype.FP32)


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

    point: Point
    time_s: float
    over_floor: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """One device, the rows that it fills, and the questions that they answer; without `keep` no row is written.

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
    def points(self) -> tuple[Point, ...]:
        """The grid, coarse to fine."""
        wanted = self.questions
        reach = Reach(max_tokens=wanted.max_tokens, max_keys=wanted.max_context, memory_bytes=self.device.input_bytes)
        shapes = self.shapes
        if self.device.kind == "cuda":
            from treeopt.profile.attention import kernel_takes

            taken = tuple(shape for shape in shapes.attention if kernel_takes(shape, wanted.dtype))
            shapes = shapes._replace(attention=taken)
        return tuple(grid(shapes, wanted.dtype, reach))

    @cached_property
    def ceilings(self) -> Ceilings:
        """The rates of a large copy and a large matrix product, from the rows or timed now."""
        copy, product = ceiling_points(
            self.questions.dtype, device=self.device.kind, memory_bytes=self.device.input_bytes
        )
        found = dict(self.rows.times((copy, product)))
        for done in self.run(point for point in (copy, product) if point not in found):
            found[done.point] = done.timing.time_s
        return Ceilings(
            bandwidth_bytes_per_s=copy.traffic_bytes / found[copy], flops_per_s=product.flops / found[product]
        )

    def schedule(self, budget_s: float | None) -> Schedule:
        """What is left, and what of it fits into a budget that began when this bench was made."""
        ceilings = self.ceilings
        if budget_s is not None:
            budget_s -= self.clock() - self.start_s + _FIT_S
        return schedule(self.points, self.rows, ceilings, device=self.device.kind, budget_s=budget_s)

    def run(self, left: Iterator[Point] | tuple[Point, ...], *, budget_s: float | None = None) -> Iterator[Timed]:
        """Time points; each is in the file when it is given.

        Raises:
            WrongResultError: a kernel's result is wrong.
        """
        deadline_s = None if budget_s is None else self.start_s + budget_s - _FIT_S
        for done in timed(tuple(left), self.make, self.device.timer, deadline_s=deadline_s, clock=self.clock):
            if self.keep:
                self.rows.append(done)
            yield done

    def noise(self) -> float | None:
        """How far a second timing of the first point is from its row, as a share; None if it has no row."""
        first = self.points[0]
        time_s = self.rows.times((first,)).get(first)
        if time_s is None:
            return None
        again = self.device.timer.time(self.make(first).calls)
        return abs(again.time_s / time_s - 1.0)

    def times(self) -> list[PointTime]:
        """All points that have a row, with their floors."""
        found = self.rows.times(self.points)
        return [PointTime(point, time_s, time_s / point.floor_s(self.ceilings)) for point, time_s in found.items()]

    def notes(self) -> list[str]:
        """What a reader of the profile must know."""
        found = list(self.shapes.untimed)
        if self.shapes.attention and not any(point.operator == ATTENTION for point in self.points):
            found.append("tree attention is not timed: the kernel has no configuration for these heads")
        return found

    def make(self, point: Point) -> Workload:
        """A point made ready on this device."""
        return workload(point, self.pool, cold=self.cold)

    @cached_property
    def pool(self) -> Pool:
        """Random values to run on."""
        return Pool(dtype=self.questions.dtype, device=self.device.kind, seed=self.seed)

    @cached_property
    def cold(self) -> float:
        """The bytes that inputs rotate through."""
        return cold_bytes(
            cache_bytes=self.device.cache_bytes,
            step_bytes=self.shapes.step_bytes,
            memory_bytes=self.device.input_bytes,
        )
