"""Budgets per batch size: the best of all by hand, their rivals, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from treeopt.acceptance.budget_tree import DDTREE, JETSPEC, BudgetValues
from treeopt.acceptance.loading import read_trace
from treeopt.engines.pull_requests import budget_build
from treeopt.errors import InputError, UnknownNameError
from treeopt.planner.budget import best_budgets
from treeopt.planner.inputs import Inputs, load_inputs
from treeopt.planner.names import Names


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Eight documents of a drafter of six guesses per depth that is right as often as it says."""
    rng = np.random.default_rng(4)
    T, D, K = 800, 7, 6
    prob = np.sort(rng.dirichlet(np.full(K + 1, 0.35), size=(T, D))[:, :, :K], axis=2)[:, :, ::-1]
    draw = rng.random((T, D))
    rank = (draw[:, :, None] > np.cumsum(prob, axis=2)).sum(axis=2)
    rank = np.where(rank == K, -1, rank)
    pos = np.arange(T) % 100
    rank = np.where(pos[:, None] + np.arange(D) >= 100, -2, rank)
    path = tmp_path / "trace.npz"
    np.savez(path, rank=rank.astype(np.int8), doc_id=np.arange(T) // 100, pos=pos, topk_prob=prob.astype(np.float32))
    return str(path)


def inputs_of(trace: str | None, drafter: str, model: str = "qwen3-8b") -> Inputs:
    return load_inputs(Names(ranks=trace, model=model, drafter=drafter, hardware="h100-sxm"), confidence=True)


def test_the_budget_is_the_best_of_all(trace: str) -> None:
    inputs = inputs_of(trace, "peagle")
    found = best_budgets(inputs, DDTREE, batches=(1, 32), contexts=(1000,), most=40)
    values = BudgetValues(trace=read_trace(Path(trace), confidence=True), most=41)
    for row in found.rows:
        rates = {
            n: row.batch
            * values.replay(n).tokens_per_step
            / float(inputs.cost.step_time_s(row.batch, n, 7, np.ones(7, dtype=np.int64), 1000))
            for n in range(2, 42)
        }
        best = max(rates, key=lambda n: rates[n])
        assert (row.nodes, row.budget, row.depth) == (best, best - 1, 7)
        assert row.tokens_per_s == pytest.approx(rates[best], rel=1e-12)
        assert row.acceptance_length.value == values.replay(best).tokens_per_step
    small, large = found.rows
    assert small.nodes > large.nodes
    assert found.confidence_auc is not None
    assert found.confidence_auc > 0.7


def test_one_budget_for_all_is_the_best_on_average(trace: str) -> None:
    inputs = inputs_of(trace, "peagle")
    found = best_budgets(inputs, DDTREE, batches=(1, 64), contexts=(1000,), most=30, one_for_all=True)
    values = BudgetValues(trace=read_trace(Path(trace), confidence=True), most=31)

    def mean(nodes: int) -> float:
        E = values.replay(nodes).tokens_per_step
        times_s = [float(inputs.cost.step_time_s(b, nodes, 7, np.ones(7, dtype=np.int64), 1000)) for b in (1, 64)]
        return float(np.mean(np.log([E / time_s for time_s in times_s])))

    assert {row.nodes for row in found.rows} == {max(range(2, 32), key=mean)}


def test_a_budget_of_a_build_that_no_release_has() -> None:
    build = budget_build("sglang-pr-29907")
    assert build.flags(64).startswith("--speculative-algorithm DDTREE --speculative-ddtree-budget 64 ")
    assert "--speculative-num-draft-tokens 65" in build.flags(64)
    assert "no release" in build.says
    with pytest.raises(UnknownNameError):
        budget_build("vllm")


def test_trees_of_a_drafter_that_runs_per_branch_pay_for_depth_and_width(trace: str) -> None:
    blind, branch = (
        best_budgets(inputs_of(trace, drafter), DDTREE, batches=(1,), contexts=(1000,), most=24).rows[0]
        for drafter in ("peagle", "eagle")
    )
    assert branch.depth < blind.depth
    notes = best_budgets(inputs_of(trace, "eagle"), DDTREE, batches=(1,), contexts=(1000,), most=4).notes
    assert any("below wrong guesses" in note.text for note in notes)


def test_rivals_stand_beside_it(trace: str) -> None:
    found = best_budgets(inputs_of(trace, "peagle"), JETSPEC, batches=(4,), contexts=(1000,), most=32)
    (row,) = found.rows
    assert row.budget == row.nodes  # JetSpec counts the root
    assert row.static_tree is not None
    assert row.adaptive is not None
    assert row.adaptive_gain is not None
    assert row.plain.acceptance_length == 1.0
    ways = {
        "budget": row.tokens_per_s,
        "static tree": row.static_tree.tokens_per_s,
        "chain": row.chain.tokens_per_s,
        "adaptive chain": row.adaptive.tokens_per_s,
        "plain decoding": row.plain.tokens_per_s,
    }
    assert ways[row.best] >= 0.995 * max(ways.values())


def test_published_lengths_stand_in_for_a_trace() -> None:
    inputs = inputs_of("dflash-qwen3-8b-gsm8k", "dflash")
    known = {64: 7.16, 256: 9.81}
    found = best_budgets(inputs, DDTREE, batches=(1,), contexts=(1000,), most=120, known=known)
    (row,) = found.rows
    assert row.adaptive is None
    assert row.acceptance_length.has_interval
    assert "interpolated between published budgets" in found.notes[0].text
    with pytest.raises(InputError, match="pays for depth"):
        best_budgets(inputs_of("example", "eagle"), DDTREE, batches=(1,), contexts=(9,), most=99, known=known)


def test_chains_of_a_drafter_that_sees_the_guess_before_are_judged(trace: str) -> None:
    found = best_budgets(inputs_of(trace, "dspark"), DDTREE, batches=(8,), contexts=(1000,), most=9, topk=1)
    (row,) = found.rows
    assert row.static_tree is None
    assert row.adaptive is not None
    values = BudgetValues(trace=read_trace(Path(trace), confidence=True), most=10, topk=1)
    assert row.acceptance_length.value == values.replay(row.nodes).tokens_per_step


@pytest.mark.parametrize("drafter", ["dspark", "dflash2"])
def test_drafters_that_see_the_guess_before_are_refused(drafter: str, trace: str) -> None:
    with pytest.raises(InputError, match="no tree by products of confidences"):
        best_budgets(inputs_of(trace, drafter), DDTREE, batches=(1,), contexts=(9,), most=9)


def test_evidence_without_confidence_is_refused() -> None:
    with pytest.raises(InputError, match="topk_prob"):
        best_budgets(inputs_of("example", "medusa"), DDTREE, batches=(1,), contexts=(9,), most=9)
