"""Predicted beside measured, the difference split in two, and whether the plan kept its promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from treeopt.acceptance.intervals import Interval, interval_of
from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Estimate
from treeopt.arrays import FloatArray
from treeopt.bench.runs import Method
from treeopt.bench.sample import RunRedraws, RunSample
from treeopt.cost.step_cost import StepCost
from treeopt.files.typed import Key
from treeopt.planner.compare import Standing
from treeopt.solve.options import Option
from treeopt.solve.price import price
from treeopt.solve.problem import Point
from treeopt.solve.report import estimate
from treeopt.tree import DraftTree


class ForecastBasis(Protocol):
    """What predictions are made from; `treeopt.planner.inputs.Inputs` is one."""

    @property
    def evidence(self) -> Traffic:
        """How often guesses were right."""

    @property
    def cost(self) -> StepCost:
        """What steps cost."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """A tree's price and E; `drawn [replicates]` is E over redrawn documents, None where the evidence has none."""

    priced: Option
    drawn: FloatArray | None
    documents: int

    @property
    def tokens(self) -> Estimate:
        """E with the interval that the evidence gives it."""
        value = self.priced.acceptance_length.value
        interval = None if self.drawn is None else interval_of(self.drawn, self.documents)
        return (
            Estimate(value=value) if interval is None else Estimate(value=value, low=interval.low, high=interval.high)
        )


def forecast(tree: DraftTree, basis: ForecastBasis, *, batch: int, context: int, seed: int = 0) -> Forecast:
    """The prediction, made as the search makes it: f where the tree's own drafts start."""
    evidence = basis.evidence
    priced = price(tree, evidence, basis.cost, Point(batch, context))
    drawn = evidence.drawn_tokens(tree, seed) if evidence.can_be_replayed else None
    return Forecast(priced=priced, drawn=drawn, documents=0 if drawn is None else evidence.documents)


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Natural logarithms of measured over predicted: tokens/s = E x 1 / step time, so the two parts sum to the whole.

    An interval is over redrawn documents (of the evidence and of the run) and redrawn times.
    """

    acceptance: Estimate
    cost: Estimate
    total: Estimate


class MeasuredStep(NamedTuple):
    """What was measured; `full_steps` are those in which every request took part."""

    acceptance_length: Estimate
    step_time_s: Estimate
    tokens_per_s: Estimate
    full_steps: int


@dataclass(frozen=True, kw_only=True)
class BenchCell:
    """One way at one batch size; predictions are made at the context that the run had."""

    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("batch", "context", "ways", "predicted", "measured", "tokens_agree", "log_residual"),
    )

    batch: int
    context: int
    way: Method
    predicted: Option
    measured: MeasuredStep
    residual: Annotated[Residual, Key("log_residual")]

    @property
    def ways(self) -> tuple[str, ...]:
        """The names that the tree goes by."""
        return self.way.names

    @property
    def tree(self) -> DraftTree:
        """What was verified."""
        return self.way.tree

    @property
    def tokens_agree(self) -> bool | None:
        """Whether both E are within their errors of each other; None where there is no interval."""
        found = self.residual.acceptance
        return None if found.low is None or found.high is None else found.low <= 0.0 <= found.high


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Tokens/s of the plan over those of an alternative, minus 1."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("gain", "verdict")

    gain: Estimate

    @property
    def verdict(self) -> Standing | None:
        """None where no interval tells the noise."""
        return Standing.of(self.gain) if self.gain.has_interval else None


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The plan against one alternative at one batch size, as it was predicted and as it was measured."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("batch", "against", "predicted", "measured", "kept")

    batch: int
    against: str
    predicted: Gain
    measured: Gain

    @property
    def kept(self) -> bool | None:
        """At least as fast within noise, or not promised to be; None where no interval tells the noise."""
        if self.measured.verdict is None:
            return None
        promised = Standing.of(self.predicted.gain) is Standing.BETTER
        return self.measured.verdict is not Standing.WORSE or not promised


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """A whole run.

    Args:
        setting: what ran, in words by name.
        notes: what the reader must know.
    """

    FORMAT: ClassVar[str] = "treeopt.bench/2"
    WRITTEN: ClassVar[tuple[str, ...]] = ("setting", "kept", "cells", "promises", "notes")

    setting: Mapping[str, Any]
    cells: tuple[BenchCell, ...]
    promises: tuple[Promise, ...]
    notes: tuple[str, ...]

    @property
    def kept(self) -> bool | None:
        """Whether the plan was nowhere slower than it was said to be beside an alternative; None: not to be told."""
        found = [promise.kept for promise in self.promises]
        return False if False in found else None if None in found else True


def cell(way: Method, expected: Forecast, sample: RunSample, drawn: RunRedraws) -> BenchCell:
    """Put a prediction beside a measurement."""
    rates = sample.batch * drawn.tokens / drawn.step_time_s
    return BenchCell(
        batch=sample.batch,
        context=round(sample.context),
        way=way,
        predicted=replace(expected.priced, acceptance_length=expected.tokens),
        measured=MeasuredStep(
            acceptance_length=sample.estimate(sample.tokens_per_step, drawn.tokens),
            step_time_s=sample.estimate(sample.step_time_s, drawn.step_time_s),
            tokens_per_s=sample.estimate(sample.tokens_per_s, rates),
            full_steps=sample.full_steps,
        ),
        residual=_residual(expected, sample, drawn),
    )


def promise(
    ours: BenchCell, theirs: BenchCell, gain: Interval | None, predicted_gain: Interval | None, name: str
) -> Promise:
    """The plan's cell against another's; the intervals are of tokens/s over theirs, minus 1."""

    def compared(plan: Estimate, other: Estimate, interval: Interval | None) -> Gain:
        return Gain(gain=estimate(plan.value / other.value - 1.0, interval))

    return Promise(
        batch=ours.batch,
        against=name,
        predicted=compared(ours.predicted.tokens_per_s, theirs.predicted.tokens_per_s, predicted_gain),
        measured=compared(ours.measured.tokens_per_s, theirs.measured.tokens_per_s, gain),
    )


def _residual(expected: Forecast, sample: RunSample, drawn: RunRedraws) -> Residual:
    priced = expected.priced
    acceptance = float(np.log(sample.tokens_per_step / priced.acceptance_length.value))
    cost = float(np.log(priced.step_time_s / sample.step_time_s))
    cost_drawn = np.log(priced.step_time_s / drawn.step_time_s)
    if expected.drawn is None:
        return Residual(
            acceptance=Estimate(value=acceptance),
            cost=sample.estimate(cost, cost_drawn),
            total=Estimate(value=acceptance + cost),
        )
    # The evidence's redraws are centred on its replay; what the prediction adds to that moves all of them.
    ratio = drawn.tokens / expected.drawn * (np.median(expected.drawn) / priced.acceptance_length.value)
    return Residual(
        acceptance=sample.estimate(acceptance, np.log(ratio)),
        cost=sample.estimate(cost, cost_drawn),
        total=sample.estimate(acceptance + cost, np.log(ratio) + cost_drawn),
    )
