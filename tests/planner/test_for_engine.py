"""Plans within what an engine loads: they load, and their losses are what a comparison of both plans finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from shared import SHARED, needs_shared

from treeopt.draft_family import OPENVINO, chain_length
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import ENGINES, find_engine
from treeopt.engines.source import parse_source
from treeopt.errors import FileFormatError, InputError, SearchError
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan
from treeopt.planner.compare import Rival, compare_with
from treeopt.planner.engine_questions import format_questions
from treeopt.planner.for_engine import Lost, Restricted, Target
from treeopt.planner.inputs import Inputs, load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.solve.price import option, price
from treeopt.solve.problem import TIE, Limits, Point, Problem
from treeopt.solve.search import Answer
from treeopt.tree import DraftTree

TRACE = SHARED / "data" / "traces" / "smollm2_greedy_eagle_code.npz"
QUESTION = Problem(batches=(1, 8, 64))


@pytest.fixture(scope="module")
def table() -> Inputs:
    return load_inputs(Names(ranks="example", hardware="h100-sxm"))


@pytest.fixture(scope="module")
def trace() -> Inputs:
    return load_inputs(Names(ranks=str(TRACE), hardware="h100-sxm"), confidence=True)


def plan_for(inputs: Inputs, engine: str | None, question: Problem = QUESTION, *, allow_off: bool = False) -> Plan:
    target = None if engine is None else Target.find(engine, allow_off=allow_off)
    return make_plan(question, inputs, command="x", target=target)


def loads(plan: Plan) -> None:
    """The plan's own engine takes every draft of it, and reads its export back as these drafts."""
    assert plan.sources.engine is not None
    target = find_engine(plan.sources.engine.wanted)
    result = export(plan, target, Setup(drafter=target.usual_drafter), allow_off=plan.sources.engine.allow_off)
    assert result.losses == ()
    form = next(f for f in target.formats if f.name == result.kind)
    for bucket in plan.buckets:
        assert result.schedule.at(bucket.batch.max) == bucket.draft
        assert not bucket.speculate or form.limits.refusal(bucket.draft) is None
    if isinstance(result.written.content, str):
        found = form.read(parse_source(result.written.content, name="file"))
        assert found is not None
        assert all(found.schedule.at(b.batch.max) == b.draft for b in plan.buckets)


@pytest.mark.parametrize("engine", [e.name for e in ENGINES if e.name != "sequoia"] + ["vllm==0.20.2", "trtllm==1.2.0"])
def test_what_is_found_for_an_engine_loads_in_it(table: Inputs, engine: str, tmp_path: Path) -> None:
    plan = plan_for(table, engine)
    loads(plan)
    path = tmp_path / "plan.yaml"
    plan.save(path)
    assert load_plan(path).yaml() == plan.yaml()


def test_vllm_gets_a_chain_in_every_bucket_and_never_none_unless_asked() -> None:
    dear = load_inputs(Names(ranks="example", hardware="h100-sxm", drafter="model:llama-3.1-8b"))
    slow = Problem(batches=(1, 64, 512))
    plan = plan_for(dear, "vllm", slow)
    assert all(chain_length(b.draft) for b in plan.buckets)
    assert any("add --allow-off" in note.text for note in plan.notes)
    off = plan_for(dear, "vllm", slow, allow_off=True)
    assert [b.speculate for b in off.buckets][-1] is False
    assert any("collapse" in note.text for note in off.notes)
    assert off.buckets[-1].engine_loss is not None
    assert off.buckets[-1].engine_loss.worst.share <= plan.buckets[-1].engine_loss.worst.share  # type: ignore[union-attr]
    if any(b.speculate for b in off.buckets):
        loads(off)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "medusa", "vllm==0.20.2"])
def test_losses_are_those_of_a_comparison(table: Inputs, engine: str) -> None:
    check_losses(table, engine)


@needs_shared
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_losses_are_those_of_a_comparison_on_a_trace(trace: Inputs, engine: str) -> None:
    check_losses(trace, engine)


def check_losses(inputs: Inputs, engine: str) -> None:
    free, own = plan_for(inputs, None), plan_for(inputs, engine)
    found = {c.batch: c for c in compare_with(free, Rival(name="own", drafts=own), inputs)}
    for bucket in own.buckets:
        loss, there = bucket.engine_loss, found.get(bucket.batch.max)
        assert loss is not None
        assert loss.share is not None
        assert loss.unrestricted is not None
        assert loss.worst is not None
        shares = {}
        for at in bucket.by_batch:
            point = Point(at.batch, 2048)
            drafts = (plan.bucket_for(at.batch).draft for plan in (free, own))
            best, ours = (price(draft, inputs.evidence, inputs.cost, point) for draft in drafts)
            shares[at.batch] = 1.0 - ours.tokens_per_s.value / best.tokens_per_s.value
        assert loss.share.value == pytest.approx(shares[bucket.batch.max], abs=1e-12)
        assert loss.worst.share == pytest.approx(max(shares.values()), abs=1e-12)
        assert loss.worst.batch == max(shares, key=lambda batch: shares[batch])
        if there is not None:
            assert loss.unrestricted == there.plan
            assert loss.share.value == pytest.approx(1.0 - 1.0 / (1.0 + there.gain.value), abs=1e-9)
        if loss.share.low is not None:
            assert loss.share.low <= loss.share.value <= loss.share.high  # type: ignore[operator]


def test_the_better_format_is_taken_and_all_are_told(table: Inputs) -> None:
    plan = plan_for(table, "sglang")
    assert plan.sources.engine is not None
    assert {f.format for f in plan.sources.engine.formats} == {"triple", "adaptive"}
    first, second = plan.sources.engine.formats
    assert (first.worst_loss, first.mean_loss) <= (second.worst_loss, second.mean_loss)
    assert plan.sources.engine.format == first.format
    assert max(b.engine_loss.worst.share for b in plan.buckets if b.engine_loss) == pytest.approx(first.worst_loss)


def test_formats_are_compared_by_the_largest_loss_then_by_the_mean() -> None:
    (form, *_) = format_questions(QUESTION, find_engine("vllm").formats)
    priced = option(DraftTree(()), 1.0, 1.0, 1)

    def restricted(*shares: float, misses: int = 0) -> Restricted:
        answers: list[Any] = [Answer(QUESTION, SimpleNamespace(meets_limit=i >= misses)) for i in range(2)]  # type: ignore[arg-type]
        pairs = zip((1, 8), shares, strict=True)
        losses = tuple(Lost(Point(b, 2048), share, priced) for b, share in pairs)
        return Restricted(form=form, answers=tuple(answers), losses=losses)

    assert restricted(0.25, 0.0, misses=1).order == (1, 0.0, 0.25, 0.125)
    even, uneven = restricted(0.2, 0.2), restricted(0.3, 0.0)  # the mean alone would take the second
    assert even.order < uneven.order
    assert restricted(0.2, 0.0).order < even.order
    assert uneven.order < restricted(0.0, 0.0, misses=1).order


def test_an_engine_with_one_setting_gets_one_bucket(table: Inputs) -> None:
    for engine in ("medusa", "llamacpp", "openvino"):
        (bucket,) = plan_for(table, engine).buckets
        assert (bucket.batch.min, bucket.batch.max) == (1, 64)
    assert len(plan_for(table, "vllm", Problem(batches=(1, 64, 1024))).buckets) > 1


def test_no_range_is_longer_than_the_first_where_the_engine_forbids_it(table: Inputs) -> None:
    plan = plan_for(table, "trtllm")
    assert plan.sources.engine is not None
    drafts = next(f.drafts for f in plan.sources.engine.formats if f.format == "schedule")
    lengths = [int(part.removeprefix("K = ").split(" ")[0]) for part in drafts.split("; ")]
    assert lengths[0] == max(lengths)


def test_limits_that_leave_nothing_are_refused(table: Inputs) -> None:
    with pytest.raises(SearchError, match="nothing to draft"):
        plan_for(table, "vllm", replace(QUESTION, limits=Limits(max_depth=0)))


@needs_shared
def test_triples_are_valued_where_their_own_drafts_start(trace: Inputs) -> None:
    (part,) = trace.evidence.parts
    question = Problem(batches=(4,))
    plan = plan_for(trace, "openvino", question)
    (bucket,) = plan.buckets
    assert bucket.dynamic is not None
    assert part.trace is not None
    replayed = part.values.replay(bucket.dynamic)
    assert bucket.acceptance_length.value == pytest.approx(replayed.tokens_per_step, rel=1e-12)
    assert bucket.acceptance_length.value != pytest.approx(float(np.sum(bucket.path_probabilities)), rel=1e-3)
    rivals = [t for t in OPENVINO.trees(num_steps=6, topk=8, num_draft_tokens=64) if t.num_draft_tokens % 4 == 0]
    best = max(price(t, trace.evidence, trace.cost, Point(4, 2048)).tokens_per_s.value for t in rivals)
    assert bucket.tokens_per_s.value >= best * (1.0 - 2 * TIE)
    assert any("recorded confidence" in note.text for note in plan.notes)
    again = price(bucket.dynamic, trace.evidence, trace.cost, Point(4, 2048))
    assert again.tokens_per_s.value == pytest.approx(bucket.tokens_per_s.value, rel=1e-12)
    loads(plan)


def test_without_confidence_a_triple_is_the_tree_of_average_confidence() -> None:
    inputs = load_inputs(Names(hardware="h100-sxm-vllm-0.24"))
    (bucket,) = plan_for(inputs, "openvino", Problem(batches=(4,))).buckets
    assert bucket.dynamic is not None
    assert bucket.tree == inputs.evidence.tree_of(bucket.dynamic)
    assert bucket.acceptance_length.value == pytest.approx(float(np.sum(bucket.path_probabilities)), rel=1e-12)
    replayed = inputs.evidence.replays(bucket.tree)[0]
    assert bucket.acceptance_length.value == pytest.approx(replayed.tokens_per_step, rel=1e-3)


def test_every_context_has_its_own_answer(table: Inputs) -> None:
    target = Target.find("vllm")
    plan = make_plan(QUESTION, table, command="x", contexts=(1024, 16384), target=target)
    assert len(plan.contexts) == 2
    assert all(b.engine_loss is not None for b in plan.buckets)
    assert any("does not look at the context" in note.text for note in plan.notes)
    for context in plan.contexts:
        loads(plan.at_context(context.max))


def test_a_format_that_does_not_know_the_drafter_is_left_out(table: Inputs) -> None:
    target = Target.find("trtllm", drafter="ngram")
    plan = make_plan(QUESTION, table, command="x", target=target)
    assert plan.sources.engine is not None
    assert [f.format for f in plan.sources.engine.formats] == ["schedule"]
    export(plan, target.engine, Setup(drafter="ngram"))


def test_a_drafter_that_the_release_has_not_is_refused(table: Inputs) -> None:
    with pytest.raises(InputError, match=r"vLLM runs a medusa drafter before 0\.33\.0"):
        make_plan(QUESTION, table, command="x", target=Target.find("vllm==0.33.0", drafter="medusa"))
    make_plan(QUESTION, table, command="x", target=Target.find("vllm==0.32.0", drafter="medusa"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dynamic: {num_steps: ", "dynamic: {num_steps: -", "out of range"),
        ("dynamic: {num_steps: ", "dynamic: {stages: 1, num_steps: ", "unknown key"),
        ("engine_loss:\n", "engine_loss:\n      by: 1\n", "unknown key"),
        ("allow_off: false", "allow_off: 3", "true or false"),
    ],
)
def test_what_a_plan_says_of_its_engine_is_checked(
    table: Inputs, old: str, new: str, message: str, tmp_path: Path
) -> None:
    text = plan_for(table, "openvino", Problem(batches=(4,))).yaml()
    assert old in text
    path = tmp_path / "plan.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FileFormatError, match=message) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}:")
