from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from decode.models import BUSHY, noisy, toy

from treeopt.tree import DraftTree

pytest.importorskip("torch", reason="decoding needs torch")

from bench.world import World, price_list, random_prompts, subject_of, world_of
from costs import FakeCost

from treeopt.acceptance.intervals import Interval
from treeopt.acceptance.trace import Trace
from treeopt.bench.bench import BenchRuns, bench
from treeopt.bench.result import BenchResult, Gain, Promise
from treeopt.bench.runs import CHAIN, PLAIN, PLAN, Method, RunPlan, run_side_by_side
from treeopt.bench.steps import fit_context, steps_csv
from treeopt.collect.record import DecodedText, record_trace
from treeopt.cost.served.reading import read_steps
from treeopt.decode.rules import rule_named
from treeopt.errors import InputError
from treeopt.files.typed import json_text, write
from treeopt.planner.compare import Standing
from treeopt.solve.report import estimate

WAYS = (
    Method(names=(PLAIN,), tree=DraftTree(())),
    Method(names=(CHAIN,), tree=DraftTree.chain(2)),
    Method(names=(PLAN,), tree=BUSHY),
)


@cache
def trace() -> Trace:
    """Of other prompts than those of the run, decoded by the same pair."""
    prompts = random_prompts(20, seed=11)
    (plain,) = run_side_by_side(subject_of(prompts), [RunPlan(DraftTree(()), 8)], warm_up=0)
    texts = [DecodedText(prompt, written) for prompt, written in zip(prompts, plain.written, strict=True)]
    return record_trace(texts, noisy(toy(7), scale=0.5), rule=rule_named("greedy"), depth=4)


def world(cost: FakeCost | None = None) -> World:
    return world_of(trace(), cost)


def run_right() -> BenchResult:
    return bench(subject_of(random_prompts(9)), lambda batch: WAYS, world(), BenchRuns(batches=(2, 3), repeats=2))


@pytest.fixture(scope="module")
def right() -> BenchResult:
    return run_right()


def test_in_a_world_that_is_as_predicted_nothing_is_left_over(right: BenchResult) -> None:
    assert [(cell.batch, cell.way.name) for cell in right.cells] == [(b, way.name) for b in (2, 3) for way in WAYS]
    for cell in right.cells:
        assert cell.residual.cost.value == pytest.approx(0.0, abs=1e-9)
        assert cell.measured.step_time_s.value == pytest.approx(cell.predicted.step_time_s)
        assert cell.tokens_agree
        assert cell.measured.acceptance_length.low is not None
        assert cell.measured.acceptance_length.low <= cell.measured.acceptance_length.value
    plain = [cell for cell in right.cells if cell.way.name == PLAIN]
    assert all(cell.residual.total.value == pytest.approx(0.0, abs=1e-9) for cell in plain)
    assert right.kept
    assert right.notes == ()


def test_the_residual_is_the_sum_of_its_parts() -> None:
    subject = subject_of(random_prompts(9), tokens=40)
    found = bench(subject, lambda batch: WAYS, world(price_list(0.7)), BenchRuns(batches=(2,), repeats=2))
    for cell in found.cells:
        parts = cell.residual
        assert parts.cost.value == pytest.approx(np.log(0.7))
        assert parts.acceptance.value + parts.cost.value == pytest.approx(parts.total.value, abs=1e-12)
        ratio = cell.measured.tokens_per_s.value / cell.predicted.tokens_per_s.value
        assert parts.total.value == pytest.approx(np.log(ratio), abs=1e-12)
        assert parts.total.low is not None
        assert parts.total.high is not None
        assert parts.total.low - 1e-9 <= parts.total.value <= parts.total.high + 1e-9


def test_another_drafter_is_an_acceptance_error_and_no_cost_error() -> None:
    subject = subject_of(random_prompts(9), tokens=32, scale=3.0)  # far noisier than the recorded one
    cell = bench(subject, lambda batch: WAYS, world(), BenchRuns(batches=(2,))).cells[2]
    assert cell.residual.cost.value == pytest.approx(0.0, abs=1e-9)
    assert cell.residual.acceptance.value < -0.1
    assert cell.tokens_agree is False


def test_measured_steps_are_read_back(right: BenchResult, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(steps_csv(right.cells))
    rows = read_steps([path]).rows
    assert [(row.batch, row.nodes, row.depth) for row in rows] == [
        (cell.batch, len(cell.tree), cell.tree.depth) for cell in right.cells
    ]
    for row, cell in zip(rows, right.cells, strict=True):
        assert row.step_time_s == pytest.approx(cell.measured.step_time_s.value, rel=1e-5)
        assert row.tokens_per_step == pytest.approx(cell.measured.acceptance_length.value, rel=1e-5)
        assert row.widths == tuple(cell.tree.expanded_widths.tolist() if cell.tree.depth else ())
    contexts = [float(row["context"]) for row in csv.DictReader(path.read_text().splitlines())]
    assert fit_context(right.cells) == round(sum(contexts) / len(contexts))


def test_the_same_run_gives_the_same_document(right: BenchResult) -> None:
    assert json_text(run_right()) == json_text(right)
    assert write(right)["format"] == "treeopt.bench/2"


def test_batch_sizes_side_by_side_give_the_same_where_nothing_disturbs(right: BenchResult) -> None:
    runs = BenchRuns(batches=(2, 3), repeats=2, together=True)
    found = bench(subject_of(random_prompts(9)), lambda batch: WAYS, world(), runs)
    for cell, apart in zip(found.cells, right.cells, strict=True):
        assert (cell.batch, cell.way, cell.context) == (apart.batch, apart.way, apart.context)
        assert cell.measured.acceptance_length.value == apart.measured.acceptance_length.value
        assert cell.measured.step_time_s.value == pytest.approx(apart.measured.step_time_s.value, rel=1e-6)


def test_a_plan_that_is_the_chain_is_run_once_and_compared_with_plain_decoding_only() -> None:
    ways = (WAYS[0], Method(names=(CHAIN, PLAN), tree=DraftTree.chain(2)))
    found = bench(subject_of(random_prompts(8)), lambda batch: ways, world(), BenchRuns(batches=(2,)))
    assert len(found.cells) == 2
    assert [promise.against for promise in found.promises] == [PLAIN]


def compared(gain: float, half_width: float | None) -> Gain:
    interval = None if half_width is None else Interval(gain - half_width, gain + half_width)
    return Gain(gain=estimate(gain, interval))


@pytest.mark.parametrize(
    ("predicted", "measured", "kept"),
    [
        (compared(0.2, 0.1), compared(0.1, 0.05), True),
        (compared(0.2, 0.1), compared(-0.02, 0.05), True),  # as fast, within noise
        (compared(0.2, 0.1), compared(-0.1, 0.05), False),
        (compared(0.05, 0.1), compared(-0.1, 0.05), True),  # the plan had said that it could not tell
        (compared(0.2, 0.1), compared(-0.1, None), None),  # the run cannot tell
    ],
)
def test_a_promise_is_broken_by_a_plan_that_is_slower_though_it_was_said_to_be_faster(
    predicted: Gain, measured: Gain, kept: bool | None
) -> None:
    assert Promise(batch=2, against=CHAIN, predicted=predicted, measured=measured).kept is kept
    assert (measured.verdict is Standing.WORSE) == (kept is False or predicted.gain.value < 0.1)


def test_a_run_needs_a_batch_and_a_repeat() -> None:
    with pytest.raises(InputError, match="no batch size"):
        BenchRuns(batches=())
    with pytest.raises(InputError, match="0 repeats"):
        BenchRuns(batches=(1,), repeats=0)
