from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from check.simulated import chain, metrics_of
from oracles import random_path_model, random_product_model
from traffics import traffic_of

from treeopt.acceptance.model import path_probabilities
from treeopt.check.check import check_plan
from treeopt.check.matching import planned_survival
from treeopt.check.measured import Measured
from treeopt.check.regret import Scaled
from treeopt.plan.plan import Plan
from treeopt.planner.inputs import Inputs, load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.solve.price import price
from treeopt.solve.problem import Limits, Point, Problem
from treeopt.solve.search import search
from treeopt.tree import DraftTree


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return load_inputs(Names(ranks="example"))


@pytest.fixture(scope="module")
def plan(inputs: Inputs) -> Plan:
    return make_plan(Problem(batches=(8,)), inputs, command="test")


def test_scaling_multiplies_the_survival() -> None:
    model = random_product_model(np.random.default_rng(1), depth=3, ranks=2)
    tree = DraftTree(((0,), (1,), (0, 0), (1, 0), (0, 0, 0)))
    factors = np.array([0.9, 0.5, 0.8])
    scaled = path_probabilities(Scaled(model, factors), tree)
    before = path_probabilities(model, tree)
    assert scaled == pytest.approx(before * np.array([1.0, *np.cumprod(factors)])[tree.depths])


def test_scaled_rows_stay_probabilities() -> None:
    model = random_path_model(np.random.default_rng(2), depth=2, ranks=3)
    rows = Scaled(model, np.array([50.0])).conditional(np.array([[0], [1]]))
    assert rows.sum(axis=1) == pytest.approx([1.0, 1.0])


def test_nothing_is_lost_where_nothing_changed(plan: Plan, inputs: Inputs) -> None:
    (bucket,) = plan.buckets
    same = replace(counted(planned_survival(bucket), 10**6), draft_tokens=len(bucket.tree) - 1)
    (only,) = check_plan(plan, metrics_of(same), inputs).comparisons
    assert only.regret is not None
    assert only.regret.loss < 0.006  # the search takes the smaller of two trees that tie within 0.5 %


def counted(survival: np.ndarray, drafts: int) -> Measured:
    return chain(np.rint(survival * drafts), drafts)


@pytest.mark.parametrize("known", ["depths", "mean"])
def test_the_best_tree_under_what_was_measured(plan: Plan, inputs: Inputs, known: str) -> None:
    """Independently: the search over a model scaled by hand."""
    (bucket,) = plan.buckets
    survival = planned_survival(bucket) * np.array([0.4**d for d in range(1, bucket.tree.depth + 1)])
    worse = replace(counted(survival, 10**7), draft_tokens=len(bucket.tree) - 1)
    if known == "mean":
        worse = replace(worse, survival=None)
    (only,) = check_plan(plan, metrics_of(worse), inputs).comparisons
    model = Scaled(inputs.evidence.model_under(bucket.tree), np.array([0.4]))
    best = search(Problem(batches=(8,), limits=Limits(max_nodes=64)), traffic_of(model), inputs.cost)[0]
    kept = price(bucket.tree, traffic_of(model), inputs.cost, Point(8, 2048))
    assert only.regret is not None
    assert only.regret.best_tokens_per_s == pytest.approx(best.tokens_per_s.value, rel=1e-3)
    assert only.regret.kept_tokens_per_s == pytest.approx(kept.tokens_per_s.value, rel=1e-3)
    assert only.regret.loss > 0.02
    assert only.regret.nodes == best.nodes


def test_a_plan_of_chains_is_held_against_chains(inputs: Inputs) -> None:
    plan = make_plan(Problem(batches=(8,), limits=Limits(max_children=1)), inputs, command="test")
    (bucket,) = plan.buckets
    assert bucket.tree.is_chain
    regret = check_plan(plan, metrics_of(counted(planned_survival(bucket), 10**6)), inputs).comparisons[0].regret
    assert regret is not None
    assert regret.nodes == regret.depth + 1


def test_the_best_tree_keeps_to_the_caps_of_the_plan(inputs: Inputs) -> None:
    """Twice as well accepted at every depth, a larger tree would be best, if the plan allowed it."""
    question = Problem(batches=(8,), limits=Limits(max_nodes=8, max_depth=2), budget_tokens=48.0)
    plan = make_plan(question, inputs, command="test")
    (bucket,) = plan.buckets
    better = replace(counted(np.minimum(planned_survival(bucket) * 1.3, 1.0), 10**7), draft_tokens=len(bucket.tree) - 1)
    (only,) = check_plan(plan, metrics_of(better), inputs).comparisons
    assert only.regret is not None
    assert only.regret.nodes <= 6  # 48 tokens per step over 8 requests
    assert only.regret.depth <= 2


def test_fresh_ranks_are_used_as_they_are(plan: Plan, inputs: Inputs) -> None:
    profile = inputs.evidence.parts[0].profile
    fresh = Measured(name="fresh", ranks=profile)
    (only,) = check_plan(plan, metrics_of(fresh), inputs).comparisons
    assert only.change.share == pytest.approx(0.0, abs=0.002)  # the same trace, replayed
    assert only.regret is not None
    assert only.regret.loss < 0.03
