from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from costs import FakeCost
from plans import bucket_of, plan_of, traffic_of

from treeopt.acceptance.model import path_probabilities
from treeopt.cost.kernels.experts import visited_experts
from treeopt.errors import InputError
from treeopt.files.typed import write
from treeopt.plan.plan import Plan
from treeopt.planner.explain import Explanation, explain
from treeopt.planner.inputs import Inputs, load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.solve.price import price
from treeopt.solve.problem import Limits, Point, Problem
from treeopt.tree import DraftTree


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return load_inputs(Names(model="qwen3-30b-a3b", ranks="example"))


@pytest.fixture(scope="module")
def plan(inputs: Inputs) -> Plan:
    limits = Limits(max_nodes=24, max_depth=5)
    return make_plan(Problem(batches=(2, 8, 64), limits=limits), inputs, command="x", contexts=(1024, 8192))


@pytest.fixture(scope="module")
def found(plan: Plan, inputs: Inputs) -> Explanation:
    return explain(plan, inputs, batch=48, context=4000)


def test_every_row_is_the_price_of_the_tree_so_far(found: Explanation, inputs: Inputs) -> None:
    paths = []
    ranks = inputs.evidence.all_positions
    for addition in found.additions:
        paths.append(addition.path)
        tree = DraftTree(tuple(paths))
        assert addition.option == price(tree, inputs.evidence, inputs.cost, Point(48, 4000))
    f = [a.f for a in found.additions]
    assert f == pytest.approx(path_probabilities(ranks, DraftTree(tuple(paths)))[_order(paths)].tolist())


def _order(paths: list[tuple[int, ...]]) -> list[int]:
    tree = DraftTree(tuple(paths))
    return [tree.nodes.index(path) for path in paths]


def test_own_nodes_come_best_first_then_the_likeliest_others(found: Explanation, plan: Plan, inputs: Inputs) -> None:
    tree = plan.tree_for(48, 4000)
    own = [a.path for a in found.additions if a.chosen]
    assert set(own) == set(tree.paths)
    assert all(a.chosen for a in found.additions[: len(own)])
    f = [a.f for a in found.additions if a.chosen]
    assert all(later <= earlier + 1e-15 for earlier, later in pairwise(f))
    # Each node that follows is the likeliest child of the tree so far, within the plan's caps on depth.
    ranks, so_far = inputs.evidence.all_positions, {(), *own}
    for addition in [a for a in found.additions if not a.chosen][:12]:
        best = 0.0
        for parent in so_far:
            if len(parent) < 5:
                row = ranks.conditional(np.array(parent, dtype=np.int64).reshape(1, -1))[0]
                at = path_probabilities(ranks, DraftTree(tuple(parent[:d] for d in range(1, len(parent) + 1))))[-1]
                free = [r for r in range(len(row)) if (*parent, r) not in so_far]
                best = max([best, *(float(at * row[r]) for r in free)])
        assert addition.f == pytest.approx(best)
        assert len(addition.path) <= 5
        so_far.add(addition.path)


def test_a_node_pays_where_it_raises_the_speed(found: Explanation) -> None:
    before = found.plain
    for addition in found.additions:
        assert addition.pays == (addition.tokens_per_s > before.tokens_per_s.value)
        assert addition.price_s == pytest.approx(addition.option.step_time_s - before.step_time_s)
        assert sum(g.seconds for g in addition.growth) == pytest.approx(addition.price_s, abs=1e-15)
        before = addition.option
    assert found.peak.tokens_per_s.value == max(a.tokens_per_s for a in found.additions)


def test_what_a_node_needs_is_counted_against_the_step_before_it() -> None:
    """Steps of 1.0, 1.5 and 1.8 s; E is 1, 1.6, 1.9: 1 x 0.5 / 1.0, then 1.6 x 0.3 / 1.5."""

    cost = FakeCost(table=np.array([[np.nan] * 5, [np.nan, 1.0, 1.5, 1.8, 9.0]]))
    inputs: Any = SimpleNamespace(evidence=traffic_of([0.6], [0.5]), cost=cost, measured=None, price_error=None)
    plan = replace(plan_of(bucket_of(DraftTree.chain(2), 1, 1)), limits=Limits(max_nodes=3))
    first, second = explain(plan, inputs, batch=1).additions
    assert (first.f, second.f) == (pytest.approx(0.6), pytest.approx(0.3))
    assert (first.needed_gain, second.needed_gain) == (pytest.approx(0.5), pytest.approx(0.32))
    assert (first.pays, second.pays) == (True, False)


def test_the_experts_are_those_of_the_tokens(found: Explanation) -> None:
    # Qwen3-30B-A3B: 8 of 128 experts per token, chosen by popularity; the second token of a request keeps 25 % of its
    # predecessor's, so that 96 tokens choose as 48 + 0.75 * 48 do.
    assert found.plain_experts is not None
    assert found.plain_experts.visited == pytest.approx(float(visited_experts(np.array(48.0), 128, 8, 0.8)))
    second = found.additions[0].experts
    assert second is not None
    assert second == (pytest.approx(float(visited_experts(np.array(84.0), 128, 8, 0.8))), 128)
    dense = load_inputs(Names(ranks="example"))
    one = explain(make_plan(Problem(batches=(4,)), dense, command="x"), dense, batch=4)
    assert one.plain_experts is None
    assert all(a.experts is None for a in one.additions)


def test_the_document_holds_the_same_numbers(found: Explanation) -> None:
    document = write(found)
    assert document["format"] == "treeopt.explain/2"
    assert (document["batch"], document["context"]) == (48, 4000)
    assert document["bucket_batch"] == {"min": found.bucket.batch.min, "max": 64}
    assert document["bucket_context"] == {"min": 1025, "max": 8192}
    assert [n["f"] for n in document["additions"]] == pytest.approx([a.f for a in found.additions], rel=1e-5)
    assert sum(t["step_s"] for t in document["sensitivity"]["terms"]) == pytest.approx(
        found.choice.step_time_s, rel=1e-5
    )
    assert document["additions"][0]["growth"][0]["term"] == "experts"


def test_the_choice_is_the_bucket_s_even_where_another_is_better_here(plan: Plan, inputs: Inputs) -> None:
    bucket = plan.bucket_for(9, 8192)
    here = explain(plan, inputs, batch=9, context=8192)
    assert here.choice.nodes == len(bucket.tree)
    assert here.best_here.tokens_per_s.value >= here.choice.tokens_per_s.value * (1 - 0.005)


def test_what_the_plan_was_not_made_for(plan: Plan, inputs: Inputs) -> None:
    for batch, context, message in ((65, 4000, "no batch 65"), (8, 9000, "no context 9000"), (8, None, "several")):
        with pytest.raises(InputError, match=message):
            explain(plan, inputs, batch=batch, context=context)
