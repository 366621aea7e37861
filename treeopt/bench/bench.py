"""A plan decoded on this device: predicted against measured, at each batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from treeopt.acceptance.intervals import MIN_DOCUMENTS, interval_of
from treeopt.bench.result import BenchCell, BenchResult, ForecastBasis, Promise, cell, forecast, promise
from treeopt.bench.runs import CHAIN, PLAIN, PLAN, Advance, DecodingSetup, Method, Run, RunPlan, run_side_by_side
from treeopt.bench.sample import RunRedraws, RunSample, draw_all, take_samples
from treeopt.errors import InputError
from treeopt.solve.choose import paired_gain

Ways = Callable[[int], Sequence[Method]]
"""What is compared at a batch size."""


@dataclass(frozen=True, kw_only=True)
class BenchRuns:
    """How much is run, and whether all batch sizes run side by side too: steadier, in the memory of all of them.

    Raises:
        InputError: no batch size, or fewer than one repeat.
    """

    batches: tuple[int, ...]
    repeats: int = 1
    together: bool = False
    warm_up: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1:
            raise InputError("no batch size", hint="give --batches 1,2,4")
        if self.repeats < 1:
            raise InputError(f"{self.repeats} repeats", hint="give 1 or more")


def bench(
    subject: DecodingSetup,
    ways: Ways,
    basis: ForecastBasis,
    runs: BenchRuns,
    *,
    setting: Mapping[str, Any] | None = None,
    advance: Advance | None = None,
) -> BenchResult:
    """Run all ways side by side at every batch size, the whole of it `repeats` times, and compare.

    Raises:
        InputError: the texts are too short to measure a step, or a batch size that the ways do not have.
    """
    compared = {batch: tuple(ways(batch)) for batch in runs.batches}
    passes = _passes(subject, compared, runs, advance)
    cells: list[BenchCell] = []
    promises: list[Promise] = []
    notes: list[str] = []
    for batch, own in compared.items():
        found = _measured(passes[batch], own, subject, basis, batch, runs.seed)
        cells += [one.cell for one in found]
        promises += _promises(found, basis, runs.seed)
        notes += _too_few([one.sample for one in found], batch)
        if not subject.decoding.rule.samples:
            notes += _different_texts(passes[batch][0], own, batch)
    return BenchResult(setting=setting or {}, cells=tuple(cells), promises=tuple(promises), notes=tuple(notes))


def _passes(
    subject: DecodingSetup, compared: Mapping[int, Sequence[Method]], runs: BenchRuns, advance: Advance | None
) -> dict[int, list[list[Run]]]:
    """`[repeats][ways]` passes of every batch size."""
    passes: dict[int, list[list[Run]]] = {batch: [] for batch in runs.batches}
    groups = [runs.batches] if runs.together else [(batch,) for batch in runs.batches]
    for _ in range(runs.repeats):
        for group in groups:
            lanes = [RunPlan(way.tree, batch) for batch in group for way in compared[batch]]
            done = iter(run_side_by_side(subject, lanes, warm_up=runs.warm_up, advance=advance))
            for batch in group:
                passes[batch].append(list(islice(done, len(compared[batch]))))
    return passes


class _Measured(NamedTuple):
    cell: BenchCell
    sample: RunSample
    drawn: RunRedraws


def _measured(
    passes: Sequence[Sequence[Run]],
    ways: Sequence[Method],
    subject: DecodingSetup,
    basis: ForecastBasis,
    batch: int,
    seed: int,
) -> list[_Measured]:
    samples = take_samples(passes, subject, batch=batch)
    found = []
    for way, sample, drawn in zip(ways, samples, draw_all(samples, seed=seed), strict=True):
        expected = forecast(way.tree, basis, batch=batch, context=round(sample.context), seed=seed)
        found.append(_Measured(cell(way, expected, sample, drawn), sample, drawn))
    return found


def _promises(found: Sequence[_Measured], basis: ForecastBasis, seed: int) -> Iterator[Promise]:
    """The plan's tree against the best chain and plain decoding, where these are other trees."""
    by_name = {name: one for one in found for name in one.cell.way.names}
    ours = by_name.get(PLAN)
    for name in (CHAIN, PLAIN):
        theirs = by_name.get(name)
        if ours is None or theirs is None or theirs is ours:
            continue
        a, b = ours.cell, theirs.cell
        foretold = paired_gain(
            a.tree, a.predicted.step_time_s, b.tree, b.predicted.step_time_s, basis.evidence, seed=seed
        )
        ratio = (ours.drawn.tokens / ours.drawn.step_time_s) / (theirs.drawn.tokens / theirs.drawn.step_time_s)
        gain = interval_of(ratio - 1.0, ours.sample.redrawn)
        yield promise(a, b, gain, foretold, name)


def _too_few(samples: Sequence[RunSample], batch: int) -> Iterator[str]:
    texts, blocks = min(sample.documents for sample in samples), len(samples[0].block_times_s)
    if min(texts, blocks) < MIN_DOCUMENTS:
        yield (
            f"batch {batch}: no intervals: {texts} texts and {blocks} stretches of full steps were measured, "
            f"{MIN_DOCUMENTS} of each are needed: more --prompts, --new-tokens or --repeats"
        )


def _different_texts(passes: Sequence[Run], ways: Sequence[Method], batch: int) -> Iterator[str]:
    for way, own in zip(ways[1:], passes[1:], strict=True):
        differ = sum(a != b for a, b in zip(own.written, passes[0].written, strict=True))
        if differ:
            yield (
                f"batch {batch}, {way.name}: {differ} of {len(own.written)} texts differ from those of "
                f"{ways[0].name}: rounding decides ties, or a step is wrong (treeopt verify tells)"
            )
