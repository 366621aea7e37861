"""Whether a measured E differs from the plan's, by more than a gate and more than chance.

Accepted tokens of a draft are a number from 0 to D; their mean and variance follow from the survival per depth. Drafts
of one request are alike, so n drafts tell less than n independent ones: the variance of a count is multiplied by a
design effect (Kish 1965, section 8.2). On the project's own traces the standard error of drafts taken as independent
was too small by 2.4 to 3.8 (`treeopt.acceptance.intervals`), so the effect is taken to be 9. The plan's own error is
in the interval that it records. The test is normal (its square: chi-square with one degree of freedom), two-sided, at
0.2 % over all comparisons of one report together (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import ClassVar, Final

from treeopt.arrays import FloatArray

ERROR_RATE: Final = 0.002
POWER: Final = 0.95
DESIGN_EFFECT: Final = 9.0


class DriftVerdict(StrEnum):
    """What a comparison says."""

    STABLE = "stable"
    """No change above the gate, and one would have been seen."""

    DRIFT = "drift"
    """A change above the gate, and not by chance."""

    UNCLEAR = "cannot tell"
    """Too little was measured for a change of the gate's size to be seen."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """E as measured against E as planned; standard errors None where nothing tells them.

    `comparisons` is how many are made in the same report.
    """

    WRITTEN: ClassVar[tuple[str, ...]] = ("value", "low", "high", "level")
    planned: float
    measured: float
    planned_error: float | None
    measured_error: float | None
    gate: float
    comparisons: int = 1

    @property
    def share(self) -> float:
        """The change as a share of the plan: from 2.8 to 2.1 it is -0.25."""
        return self.measured / self.planned - 1.0

    @property
    def value(self) -> float:
        """The share, as files name the middle of an interval."""
        return self.share

    @property
    def level(self) -> float:
        """Of the interval: all comparisons of a report hold together with 99.8 %."""
        return 1.0 - ERROR_RATE

    @property
    def standard_error(self) -> float | None:
        """Of the share; None where the measured one is not known."""
        if self.measured_error is None:
            return None
        ratio = self.measured / self.planned
        return math.hypot(self.measured_error, ratio * (self.planned_error or 0.0)) / self.planned

    @property
    def low(self) -> float | None:
        """Lower end of the share's interval, at the error rate of the report."""
        return None if (error := self.standard_error) is None else self.share - self._quantile * error

    @property
    def high(self) -> float | None:
        """Upper end of the share's interval, at the error rate of the report."""
        return None if (error := self.standard_error) is None else self.share + self._quantile * error

    @property
    def detectable(self) -> float | None:
        """The change that this much evidence shows with 95 % probability."""
        if (error := self.standard_error) is None:
            return None
        return max(self.gate, self._reach * error)

    def missing(self, steps: float) -> float | None:
        """How many more steps would show a change of twice the gate; None where the plan's own error hides it.

        At a gate of 5 % and a plan without error 100 steps that show 20 % must become 400: 300 are missing.
        """
        if self.measured_error is None:
            return None
        allowed = (2.0 * self.gate * self.planned / self._reach) ** 2
        allowed -= (self.measured / self.planned * (self.planned_error or 0.0)) ** 2
        return None if allowed <= 0.0 else max(steps * (self.measured_error**2 / allowed - 1.0), 0.0)

    @property
    def verdict(self) -> DriftVerdict:
        """See `DriftVerdict`."""
        if self.low is None or self.high is None or self.detectable is None:
            return DriftVerdict.UNCLEAR
        if abs(self.share) > self.gate and not self.low <= 0.0 <= self.high:
            return DriftVerdict.DRIFT
        # A change of twice the gate must not hide in what is called stable.
        return DriftVerdict.STABLE if self.detectable <= 2.0 * self.gate else DriftVerdict.UNCLEAR

    @property
    def _reach(self) -> float:
        """How many standard errors a change must have to be shown with 95 % probability."""
        return self._quantile + NormalDist().inv_cdf(POWER)

    @property
    def _quantile(self) -> float:
        return NormalDist().inv_cdf(1.0 - ERROR_RATE / 2.0 / self.comparisons)


def length_error(survival: FloatArray, drafts: float, *, design_effect: float = DESIGN_EFFECT) -> float:
    """The standard error of E from counted drafts with these `[D]` probabilities of being accepted to each depth."""
    depth = range(1, len(survival) + 1)
    mean = float(survival.sum())
    square = sum((2 * d - 1) * s for d, s in zip(depth, survival.tolist(), strict=True))
    return math.sqrt(max(square - mean**2, 0.0) * design_effect / drafts)
