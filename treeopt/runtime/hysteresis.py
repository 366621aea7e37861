"""When to leave a bucket: not at once at its border, and never late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from treeopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Hysteresis:
    """How long, and how far past a border, a step must be for the bucket to change.

    The bucket changes to the step's own one when the steps have been outside the current bucket `steps` times in a
    row, or at once when one is outside by more than `margin` of the border (and by more than one request). So

    * steps that are never outside `steps` times in a row, nor past the margin, change nothing;
    * after `steps` steps in a row outside, the bucket is the step's own: the delay is bounded;
    * `steps=1` changes at every border.

    All ranks of a parallel group that see the same sizes take the same decisions.

    Raises:
        InputError: fewer than one step, or a margin below 0.
    """

    steps: int = 8
    margin: float = 0.25

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.margin >= 0.0:
            raise InputError(f"{self}", hint="steps are 1 or more, the margin is 0 or more")


class Range(NamedTuple):
    """Sizes from `low` to `high`, both included."""

    low: int
    high: int

    def clamp(self, size: int) -> int:
        """The nearest size inside."""
        return min(max(size, self.low), self.high)

    def is_far(self, size: int, margin: float) -> bool:
        """Whether a size lies outside by more than the margin of the border, and by more than one."""
        border = self.clamp(size)
        return abs(size - border) > max(1.0, margin * border)


class Area(NamedTuple):
    """The batch sizes and contexts of one bucket."""

    batch: Range
    context: Range = Range(0, 0)


@dataclass(kw_only=True)
class Switch:
    """The bucket in use; areas go by context, then by batch, and cover the same batch sizes at every context.

    What lies outside all areas belongs to the nearest. Not for several threads at once: one engine loop owns it.
    """

    areas: Sequence[Area]
    hysteresis: Hysteresis = field(default_factory=Hysteresis)
    current: int | None = None
    _outside: int = 0

    def index_of(self, batch: int, context: int = 0) -> int:
        """The bucket that a batch size and a context belong to."""
        batch, context = self._inside(batch, context)
        return next(i for i, area in enumerate(self.areas) if batch <= area.batch.high and context <= area.context.high)

    def step(self, batch: int, context: int = 0) -> int:
        """The bucket to use for a step of that many requests.

        Raises:
            InputError: no request at all.
        """
        if batch < 1:
            raise InputError(f"a step of {batch} requests", hint="a step has at least one request")
        own = self.index_of(batch, context)
        if self.current is None or own == self.current:
            self.current, self._outside = own, 0
            return own
        self._outside += 1
        area, (batch, context) = self.areas[self.current], self._inside(batch, context)
        far = area.batch.is_far(batch, self.hysteresis.margin) or area.context.is_far(context, self.hysteresis.margin)
        if far or self._outside >= self.hysteresis.steps:
            self.current, self._outside = own, 0
        return self.current

    def _inside(self, batch: int, context: int) -> tuple[int, int]:
        first, last = self.areas[0], self.areas[-1]
        return (
            Range(first.batch.low, last.batch.high).clamp(batch),
            Range(first.context.low, last.context.high).clamp(context),
        )
