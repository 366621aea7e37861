"""What a page shows is what the plan, `compare` and the cost say; what cannot be computed is named."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from costs import FakeCost
from oracles import all_trees
from plans import bucket_of, plan_of

import treeopt
from treeopt.answer import Estimate
from treeopt.cost.kernels.family import Family
from treeopt.cost.step import ModelStep
from treeopt.errors import InputError
from treeopt.plan.plan import Plan
from treeopt.planner.curves import CurveOf, curves_of
from treeopt.planner.frontier import frontier_of
from treeopt.planner.headline import headline
from treeopt.planner.inputs import Inputs, inputs_of
from treeopt.planner.report import report_of
from treeopt.planner.roofline import roofline_of
from treeopt.tree import DraftTree

COST = FakeCost(step_s=8e-3, request_s=0.05e-3, token_s=20e-6, pass_s=0.4e-3)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return treeopt.search([1, 4, 16, 64], ranks="example", max_trees=2)


@pytest.fixture(scope="module")
def inputs(plan: Plan) -> Inputs:
    return inputs_of(plan)


def test_the_curves_are_the_plans_own_numbers_at_its_buckets(plan: Plan, inputs: Inputs) -> None:
    for known in (inputs, None):
        curves = {curve.of: curve for curve in curves_of(plan, known)}
        for bucket in plan.buckets:
            at = {of: next(p for p in c.points if p.batch == bucket.batch.max) for of, c in curves.items()}
            assert at[CurveOf.PLAN].option == bucket.choice
            assert at[CurveOf.PLAN].speedup == bucket.speedup
            assert at[CurveOf.CHAIN].option == bucket.best_chain
            assert at[CurveOf.PLAIN].option == bucket.plain


def test_between_its_buckets_they_are_priced(plan: Plan, inputs: Inputs) -> None:
    curves = {curve.of: curve for curve in curves_of(plan, inputs)}
    assert [p.batch for p in curves[CurveOf.PLAN].points] == sorted(
        {at.batch for b in plan.buckets for at in b.by_batch} | {b.batch.max for b in plan.buckets}
    )
    for bucket in plan.buckets:
        for listed in bucket.by_batch:
            own = next(p for p in curves[CurveOf.PLAN].points if p.batch == listed.batch)
            assert own.option.tokens_per_s.value == pytest.approx(listed.tokens_per_s)
            assert own.speedup is not None
            assert own.speedup.value == pytest.approx(listed.speedup)
            assert own.option.tokens_per_s.low is not None
            assert own.per_user == pytest.approx(listed.tokens_per_s / listed.batch)


def test_the_best_chain_between_them_is_that_of_a_search_for_it_alone(plan: Plan, inputs: Inputs) -> None:
    curve = next(c for c in curves_of(plan, inputs) if c.of is CurveOf.CHAIN)
    for point in curve.points:
        alone = treeopt.search(point.batch, ranks="example").buckets[0].best_chain
        assert point.option.tokens_per_s.value == pytest.approx(alone.tokens_per_s.value)


def test_a_rival_is_priced_as_compare_prices_it(plan: Plan) -> None:
    found = report_of(plan, "chain:3", "none")
    compared = treeopt.compare(plan, "chain:3", "none")
    assert found.comparisons == compared.comparisons
    rivals = [curve for curve in found.curves if curve.of is CurveOf.RIVAL]
    assert [curve.name for curve in rivals] == ["chain:3"]  # plain decoding has its curve already
    for c in compared.comparisons:
        if c.rival == "chain:3":
            point = next(p for p in rivals[0].points if p.batch == c.batch)
            assert point.option.tokens_per_s.value == pytest.approx(c.other.tokens_per_s.value)


def test_measured_steps_are_told_from_interpolated_ones(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    rows = ["batch,draft_tokens,step_ms,accept_len"]
    rows += [f"{b},{K},{7 + 0.1 * b + 0.5 * K},{1 + 0.5 * K}" for b in (1, 8) for K in (0, 2)]
    table.write_text("\n".join(rows))
    plan = treeopt.search([1, 4, 8], cost=str(table), only_listed=True)
    plain = next(c for c in curves_of(plan, inputs_of(plan)) if c.of is CurveOf.PLAIN)
    assert [(p.batch, p.measured) for p in plain.points] == [(1, True), (4, False), (8, True)]


def test_the_frontier_has_the_best_of_every_size() -> None:
    plan = treeopt.search(4, ranks="example", cost=COST, max_depth=3, max_ranks=2, max_nodes=7)
    inputs = inputs_of(plan, cost=COST)
    found = frontier_of(plan, inputs)
    trees = [DraftTree(tuple(sorted(t, key=lambda p: (len(p), p)))) for t in all_trees(2, 3, 7)]
    for size in found.sizes:
        own = [tree for tree in trees if len(tree) == size.nodes]
        assert size.acceptance_length == pytest.approx(max(inputs.evidence.tokens(tree) for tree in own))
        rates = []
        for tree in own:
            widths = np.array(tree.expanded_widths.tolist() or [0])
            seconds = float(COST.step_time_s(4, len(tree), tree.depth, widths, plan.context))
            rates.append(4 * inputs.evidence.tokens(tree) / seconds)
        assert size.tokens_per_s == pytest.approx(max(rates))
    chains = [size.chain_length for size in found.sizes]
    assert chains[:4] == [pytest.approx(inputs.evidence.tokens(DraftTree.chain(K))) for K in range(4)]
    assert chains[4:] == [None] * 3
    assert found.chosen[0].nodes == plan.buckets[0].nodes


def test_where_the_evidence_ends_is_told() -> None:
    cheap = FakeCost(step_s=1.0, token_s=1e-6)
    deep = treeopt.search(1, ranks="eagle3-llama-3.1-8b-mt-bench", cost=cheap)
    found = frontier_of(deep, inputs_of(deep, cost=cheap))
    assert found.ends_at is not None
    assert next(s for s in found.sizes if s.nodes == found.ends_at).depth == found.evidence_depth
    assert all(s.depth < found.evidence_depth for s in found.sizes if s.nodes < found.ends_at)
    capped = treeopt.search(1, ranks="example", cost=COST, max_depth=2)
    assert frontier_of(capped, inputs_of(capped, cost=COST)).ends_at is None


def test_the_roofline_is_the_data_sheets() -> None:
    """Llama-3.1-8B in BF16 on an H100's data sheet: 7.5e9 weights of 2 bytes at 3.35 TB/s take 4.5 ms."""
    plan = treeopt.search([1, 256], ranks="example", hardware="h100-sxm")
    cost = inputs_of(plan).cost
    assert isinstance(cost, ModelStep)
    found = roofline_of(plan, cost)
    weights = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    assert found.memory_s == pytest.approx(2 * weights / 3.35e12)
    assert found.token_s == pytest.approx(2 * weights / 989e12)
    assert found.ridge_tokens == pytest.approx(cost.ridge_tokens)
    for tokens, rate in found.curve:
        assert rate <= 1.001 * min(tokens / found.memory_s, 1 / found.token_s)
    assert {(s.batch, s.nodes) for s in found.steps} >= {(256, 1), (1, plan.buckets[0].nodes)}
    assert all(s.at.tokens == s.batch * s.nodes for s in found.steps)


def test_experts_have_no_straight_roof() -> None:
    plan = treeopt.search(16, ranks="example", model="qwen3-30b-a3b", hardware="h200-sxm-sglang-0.5.14")
    cost = inputs_of(plan).cost
    assert isinstance(cost, ModelStep)
    found = roofline_of(plan, cost)
    assert (found.memory_s, found.token_s, found.ridge_tokens) == (None, None, None)
    assert all(a.tokens < b.tokens for a, b in pairwise(found.curve))
    assert Family.EXPERTS in {entry.family for entry in cost.times.fits.entries}


def test_what_needs_a_source_that_is_gone_is_left_out(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks.yaml"
    ranks.write_text(Path(treeopt.__file__).parent.joinpath("profiles", "ranks", "example.yaml").read_text())
    treeopt.search([1, 8], ranks=str(ranks)).save(tmp_path / "plan.yaml")
    ranks.unlink()
    found = report_of(tmp_path / "plan.yaml", "chain:2")
    assert [curve.of for curve in found.curves] == [CurveOf.PLAN, CurveOf.CHAIN, CurveOf.PLAIN]
    assert (found.frontier, found.roofline, found.acceptance, found.comparisons) == (None, None, (), ())
    assert "ranks.yaml" in found.left_out[0].why
    assert found.settings is not None  # the plan itself holds it


def test_a_rival_without_a_step_time_is_left_out(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    table.write_text("batch,draft_tokens,step_ms,accept_len\n1,0,7,1\n1,2,9,2.1\n8,0,8,1\n8,2,10,2.1\n")
    found = report_of(treeopt.search([1, 8], cost=str(table)), "chain:2", "sglang:2,2,4")
    assert {c.rival for c in found.comparisons} == {"chain:2"}
    assert [part.part for part in found.left_out] == ["sglang:2,2,4", "roofline"]


def test_words_that_are_no_rival_are_refused(plan: Plan) -> None:
    with pytest.raises(InputError):
        report_of(plan, "nothing-like-it")
    with pytest.raises(InputError):
        report_of(plan, engine="vlm")


def test_several_contexts_are_told_and_one_is_shown() -> None:
    plan = treeopt.search([1, 16], ranks="example", context=[1024, 16384])
    long, short = report_of(plan), report_of(plan, context=1024)
    assert (long.context, short.context) == (16384, 1024)
    assert "1024" in long.notes[-1].text


def test_the_settings_are_the_export_and_else_the_drafts() -> None:
    engine = report_of(treeopt.search([1, 8], ranks="example", engine="vllm")).settings
    assert engine is not None
    assert "num_speculative_tokens" in engine.content
    assert engine.launch.startswith("vllm serve")
    free = treeopt.search([1, 8], ranks="example")
    drafts = report_of(free).settings
    assert drafts is not None
    assert json.loads(drafts.content) == {b.batches: [list(p) for p in b.tree.paths] for b in free.buckets}


def test_one_sentence_says_it() -> None:
    chain, off = DraftTree.chain, DraftTree(())
    tree = DraftTree(((0,), (1,), (0, 0)))
    three = plan_of(bucket_of(chain(4), 1, 4), bucket_of(chain(2), 5, 16), bucket_of(off, 17, 64))
    assert headline(three) == "Batch 1-16: draft chains of 4 to 2, 1.50x plain decoding; batch 17-64: do not speculate."
    assert (
        headline(plan_of(bucket_of(tree, 1, 8))) == "Batch 1-8: draft a tree of 4 nodes, depth 2, 1.50x plain decoding."
    )
    mixed = plan_of(bucket_of(tree, 1, 8), bucket_of(chain(2), 9, 16))
    assert "trees of 4 nodes to chains of 2" in headline(mixed)
    unsure = replace(bucket_of(tree, 1, 8), speedup=Estimate(value=1.5, low=0.9, high=2.0, level=0.8))
    assert headline(plan_of(unsure)).endswith("1.50x [0.90, 2.00] plain decoding, which the price's error leaves open.")
    unknown = replace(bucket_of(tree, 1, 8), speedup=None, plain=None, break_even_length=None, speedup_at_min=None)
    assert headline(plan_of(unknown)).endswith("whether that pays is not known.")
