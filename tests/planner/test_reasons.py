"""What plans say in words: of jumps of the step time, of notes that differ in numbers, and of gains against losses."""

from __future__ import annotations

import pytest

from treeopt.answer import Note
from treeopt.errors import SearchError
from treeopt.plan.plan import Plan
from treeopt.planner.explain import explain
from treeopt.planner.for_engine import Target
from treeopt.planner.inputs import Inputs, load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.planner.reasons import cliff, furthest
from treeopt.solve.problem import Limits, Problem
from treeopt.solve.time_limit import TimeLimit


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return load_inputs(Names(ranks="example"))


def plan_for(inputs: Inputs, engine: str | None, *batches: int, max_nodes: int = 16) -> Plan:
    question = Problem(batches=batches, limits=Limits(max_nodes=max_nodes))
    return make_plan(question, inputs, command="x", target=None if engine is None else Target.find(engine))


def test_of_notes_that_differ_in_numbers_the_largest_is_kept() -> None:
    texts = [
        "to 384, asked for 768",
        "h100-0.24 has 80 GB",
        "to 384, asked for 1,024",
        "h100-0.24 has 9 GB",
        "b200-0.24",
    ]
    kept = furthest([Note.note(text) for text in texts])
    assert [note.text for note in kept] == ["to 384, asked for 1,024", "h100-0.24 has 80 GB", "b200-0.24"]


def test_every_bucket_tells_the_jump_it_is_beside(inputs: Inputs) -> None:
    plan = plan_for(inputs, None, 1, 16, 32, 64)
    said = {b.batches: cliff(inputs.cost, b.verified_tokens) for b in plan.buckets}
    assert any(said.values())
    for bucket in plan.buckets:
        found = said[bucket.batches]
        assert ("the weights' kernels take" in bucket.reason) == (found is not None)
        assert explain(plan, inputs, batch=bucket.batch.max).cliff == found
        if found is not None:
            assert found in bucket.reason
            assert any(f"batch {bucket.batches}" in note.text and found in note.text for note in plan.notes)


def test_one_bucket_tells_its_jump_once(inputs: Inputs) -> None:
    plan = plan_for(inputs, None, 32)
    found = cliff(inputs.cost, plan.buckets[0].verified_tokens)
    assert found is not None
    assert found in plan.buckets[0].reason
    assert not any(found in note.text for note in plan.notes)


def test_the_evidence_is_asked_for_steps_that_the_plan_has(inputs: Inputs) -> None:
    plan = plan_for(inputs, None, 1, 256, max_nodes=64)
    most = max(b.verified_tokens for b in plan.buckets)
    assert most < 256 * max(len(b.tree) for b in plan.buckets)
    assert any(note.text.endswith(f"asked for {most}") for note in plan.notes)


def test_plain_decoding_is_faster_by_what_it_gains_not_by_what_the_plan_loses(inputs: Inputs) -> None:
    slow = load_inputs(Names(ranks="example", drafter="model:llama-3.1-8b"))
    plan = plan_for(slow, "vllm", 512)
    (bucket,) = plan.buckets
    assert bucket.plain is not None
    gain = max(1.0 / at.speedup - 1.0 for at in bucket.by_batch if at.speedup is not None)
    assert gain >= bucket.plain.tokens_per_s.value / bucket.tokens_per_s.value - 1.0
    assert gain > 0.1
    assert any(f"plain decoding would be up to {gain:.1%} faster" in note.text for note in plan.notes)


def test_one_setting_for_all_tells_every_batch_size_what_it_loses(inputs: Inputs) -> None:
    (bucket,) = plan_for(inputs, "medusa", 1, 64).buckets
    assert [at.batch for at in bucket.by_batch] == [1, 2, 4, 8, 16, 32, 64]
    assert bucket.sharing_loss >= bucket.changes_loss == max(at.loss for at in bucket.by_batch) > 0.01
    assert bucket.optimality.gap < bucket.sharing_loss  # that of the best drafts, before one had to serve all


def test_nobody_is_told_to_use_less_than_one_request(inputs: Inputs) -> None:
    question = Problem(batches=(1,), time_limit=TimeLimit(max_mean_s=1e-4))
    with pytest.raises(SearchError, match=r"no draft meets --max-tpot-ms 0\.1; the fastest takes .* ms") as caught:
        make_plan(question, inputs, command="x")
    assert "smaller" not in caught.value.hint
