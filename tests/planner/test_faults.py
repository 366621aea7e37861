"""Answers that were wrong once, on the inputs that showed it."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared import SHARED, needs_shared

from treeopt.engines.importing import load_drafts
from treeopt.plan.plan import Plan
from treeopt.planner.compare import Rival, Standing, compare_with
from treeopt.planner.explain import explain
from treeopt.planner.inputs import Inputs, load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.solve.problem import TIE, Limits, Problem

FAULTS = SHARED / "data" / "faults"


def answered(batches: tuple[int, ...], limits: Limits = Limits(), **names: str | Path) -> tuple[Plan, Inputs]:
    inputs = load_inputs(Names(**{key: str(value) for key, value in names.items()}))
    return make_plan(Problem(batches=batches, limits=limits), inputs, command="x"), inputs


@needs_shared
def test_no_chain_beats_a_plan_for_prompt_lookup() -> None:
    plan, inputs = answered(
        (64,),
        ranks=SHARED / "data" / "traces" / "smollm2_greedy_ngram_code.npz",
        drafter="ngram",
        model="llama-3.1-8b",
        hardware="h200-sxm-sglang-0.5.14",
    )
    for length in range(1, 7):
        rival = Rival(name="chain", drafts=load_drafts(f"chain:{length}"))
        (found,) = compare_with(plan, rival, inputs)
        assert found.verdict is not Standing.WORSE, length


@needs_shared
def test_search_explain_and_compare_give_one_verdict() -> None:
    plan, inputs = answered((1,), ranks=FAULTS / "ngram_2docs.npz", drafter="ngram", model="smollm2-135m")
    (bucket,) = plan.buckets
    told = explain(plan, inputs, batch=1)
    assert told.best_here.draft == bucket.draft
    assert told.peak.tokens_per_s.value <= bucket.tokens_per_s.value * (1.0 + TIE)
    (found,) = compare_with(plan, Rival(name="chain:5", drafts=load_drafts("chain:5")), inputs)
    assert found.other.acceptance_length.value == pytest.approx(1.22, abs=0.01)  # replayed
    assert found.gain.value > -TIE


@needs_shared
def test_no_asked_batch_size_speculates_at_a_loss() -> None:
    files = {"cost": FAULTS / "medusa4978_cost.csv", "ranks": FAULTS / "medusa4978_pos.yaml"}
    plan, _ = answered((8, 16, 32), **files)
    assert [plan.bucket_for(batch).speculate for batch in (8, 16, 32)] == [True, False, False]
    for batch in (8, 16, 32):
        alone, _ = answered((batch,), **files)
        assert alone.buckets[0].speculate == plan.bucket_for(batch).speculate


@needs_shared
@pytest.mark.parametrize("ranks", ["pad.yaml", "pad2.yaml"])
def test_a_node_that_is_never_accepted_fills_a_cheaper_step(ranks: str) -> None:
    folder = FAULTS / "break"
    plan, _ = answered((1,), Limits(max_nodes=8), ranks=folder / ranks, cost=folder / "pad.json")
    (bucket,) = plan.buckets
    assert bucket.tokens_per_s.value == pytest.approx(205.0, rel=1e-4)
    assert bucket.nodes == 4
