"""The small values that every answer is made of: a number with its interval, a range, a note with its level."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from treeopt.errors import InputError

ACCEPTANCE_LEVEL: Final = 0.95
"""Of intervals that carry the error of the measured acceptance."""
PRICE_LEVEL: Final = 0.8
"""Of intervals that carry the error of the step's price too."""


class Span(NamedTuple):
    """Whole numbers from `min` to `max`, both included: batch sizes, contexts."""

    min: int
    max: int

    @property
    def words(self) -> str:
        """The range in words: `4` or `5-8`."""
        return str(self.max) if self.min == self.max else f"{self.min}-{self.max}"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with the interval that holds it with probability `level`; no ends where the evidence allows none.

    Raises:
        InputError: the value lies outside its interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    level: float = ACCEPTANCE_LEVEL

    def __post_init__(self) -> None:
        low, high = self.value if self.low is None else self.low, self.value if self.high is None else self.high
        if not low <= self.value <= high:
            raise InputError(
                f"{self.value:g} lies outside its interval [{low:g}, {high:g}]", hint="change what belongs together"
            )

    @property
    def has_interval(self) -> bool:
        """Whether both ends are known."""
        return self.low is not None and self.high is not None

    @classmethod
    def priced(cls, value: float) -> Estimate:
        """A number with a step's price in it, whose interval is not known."""
        return cls(value=value, level=PRICE_LEVEL)


class Level(StrEnum):
    """How much a note matters."""

    ERROR = "error"
    """The answer cannot be used as it is."""

    WARNING = "warning"
    """The answer may be wrong: what it was made from is not what was asked."""

    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True)
class Note:
    """What the reader of an answer must know beside it, in one sentence."""

    level: Level
    text: str

    @classmethod
    def error(cls, text: str) -> Note:
        """The answer cannot be used as it is."""
        return cls(Level.ERROR, text)

    @classmethod
    def warning(cls, text: str) -> Note:
        """The answer may be wrong."""
        return cls(Level.WARNING, text)

    @classmethod
    def note(cls, text: str) -> Note:
        """Good to know."""
        return cls(Level.NOTE, text)
