"""Predicted beside measured, the difference split in two, and whether the plan kept its promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from treeopt.acceptance.intervals import Interval, interval_of
from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Estimate
from treeopt.arrays import FloatArray
from treeopt.bench.runs import Method
from treeopt.bench.sample import RunRedraws, RunSample
from treeopt.cost.step_cost import StepCost
from treeopt.planner.compare import Comparison, Verdict
from treeopt.solve.bucket import Option
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


FORMAT: Final = "treeopt.bench/1"


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Natural logarithms of measured over predicted: tokens/s = E x 1 / step time, so the two parts sum to the whole.

    An interval is over redrawn documents (of the evidence and of the run) and redrawn times.
    """

    acceptance: Estimate
    cost: Estimate
    total: Estimate


@dataclass(frozen=True, kw_only=True)
class BenchCell:
    """One way at one batch size; predictions are made at the context that the run had."""

    batch: int
    context: int
    way: Method
    predicted_tokens: Estimate
    predicted: Option
    tokens: Estimate
    step_time_s: Estimate
    tokens_per_s: Estimate
    residual: Residual
    full_steps: int

    @property
    def tree(self) -> DraftTree:
        """What was verified."""
        return self.way.tree

    @property
    def tokens_agree(self) -> bool | None:
        """Whether both E are within their errors of each other; None where there is no interval."""
        found = self.residual.acceptance
        return None if found.low is None or found.high is None else found.low <= 0.0 <= found.high

    @property
    def measured(self) -> Option:
        """The measured numbers in the form of the predicted ones."""
        return Option(
            draft=self.tree,
            acceptance_length=Estimate(value=self.tokens.value),
            step_time_s=self.step_time_s.value,
            tokens_per_s=Estimate.priced(self.tokens_per_s.value),
        )


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The plan against one alternative at one batch size, as it was predicted and as it was measured."""

    predicted: Comparison
    measured: Comparison

    @property
    def kept(self) -> bool | None:
        """At least as fast within noise, or not promised to be; None where no interval tells the noise."""
        if not self.measured.gain.has_interval:
            return None
        return self.measured.verdict is not Verdict.WORSE or self.predicted.verdict is not Verdict.BETTER


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """A whole run.

    Args:
        setting: what ran, in words by name.
        notes: what the reader must know.
    """

    setting: tuple[tuple[str, Any], ...]
    cells: tuple[BenchCell, ...]
    promises: tuple[Promise, ...]
    notes: tuple[str, ...]

    @property
    def kept(self) -> bool | None:
        """Whether the plan was nowhere slower than it was said to be beside an alternative; None: not to be told."""
        found = [promise.kept for promise in self.promises]
        return False if False in found else None if None in found else True

    def document(self) -> dict[str, Any]:
        """The result as the value of its file, keys in their stable order."""
        return {
            "format": FORMAT,
            "setting": dict(self.setting),
            "kept": self.kept,
            "cells": [_cell_document(cell) for cell in self.cells],
            "promises": [_promise_document(promise) for promise in self.promises],
            "notes": list(self.notes),
        }


def cell(way: Method, expected: Forecast, sample: RunSample, drawn: RunRedraws) -> BenchCell:
    """Put a prediction beside a measurement."""
    rates = sample.batch * drawn.tokens / drawn.step_time_s
    return BenchCell(
        batch=sample.batch,
        context=round(sample.context),
        way=way,
        predicted_tokens=expected.tokens,
        predicted=expected.priced,
        tokens=sample.estimate(sample.tokens_per_step, drawn.tokens),
        step_time_s=sample.estimate(sample.step_time_s, drawn.step_time_s),
        tokens_per_s=sample.estimate(sample.tokens_per_s, rates),
        residual=_residual(expected, sample, drawn),
        full_steps=sample.full_steps,
    )


def promise(
    ours: BenchCell, theirs: BenchCell, gain: Interval | None, predicted_gain: Interval | None, name: str
) -> Promise:
    """The plan's cell against another's; the intervals are of tokens/s over theirs, minus 1."""

    def compared(plan: Option, other: Option, interval: Interval | None) -> Comparison:
        return Comparison(
            batch=ours.batch,
            context=ours.context,
            rival=name,
            gain=estimate(plan.tokens_per_s.value / other.tokens_per_s.value - 1.0, interval),
            plan=plan,
            other=other,
            unmeasured_nodes=0,
        )

    return Promise(
        predicted=compared(ours.predicted, theirs.predicted, predicted_gain),
        measured=compared(ours.measured, theirs.measured, gain),
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


def _cell_document(found: BenchCell) -> dict[str, Any]:
    return {
        "batch": found.batch,
        "context": found.context,
        "ways": list(found.way.names),
        "nodes": len(found.tree),
        "depth": found.tree.depth,
        "paths": [list(path) for path in found.tree.paths],
        "predicted": {
            "tokens_per_step": vars(found.predicted_tokens),
            "step_time_s": found.predicted.step_time_s,
            "tokens_per_s": found.predicted.tokens_per_s.value,
        },
        "measured": {
            "tokens_per_step": vars(found.tokens),
            "step_time_s": vars(found.step_time_s),
            "tokens_per_s": vars(found.tokens_per_s),
            "full_steps": found.full_steps,
        },
        "tokens_agree": found.tokens_agree,
        "log_residual": {
            "acceptance": vars(found.residual.acceptance),
            "cost": vars(found.residual.cost),
            "total": vars(found.residual.total),
        },
    }


def _promise_document(found: Promise) -> dict[str, Any]:
    def side(compared: Comparison) -> dict[str, Any]:
        verdict = compared.verdict.value if compared.gain.has_interval else None
        return {"gain": vars(compared.gain), "verdict": verdict}

    measured = found.measured
    return {
        "batch": measured.batch,
        "against": measured.rival,
        "predicted": side(found.predicted),
        "measured": side(measured),
        "kept": found.kept,
    }
