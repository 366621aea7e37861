from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plans import bucket_of, plan_of

import treeopt
from treeopt.answer import Span
from treeopt.draft_family import Chains
from treeopt.engines.fitting import fit_plan
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import parse_document
from treeopt.files.typed import write
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan, parse_plan, parse_tree
from treeopt.planner.inputs import inputs_of, load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.runtime import Hysteresis, load_runtime
from treeopt.solve.problem import Limits, Problem
from treeopt.solve.time_limit import TimeLimit
from treeopt.tree import DraftTree

LISTED = Problem(batches=(1, 8, 64), only_listed=True)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(LISTED, load_inputs(Names(ranks="example")), command="treeopt search")


def test_a_plan_reads_back_as_it_was_written(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    plan.save(path)
    again = treeopt.load_plan(path)
    assert again.yaml() == plan.yaml()
    assert again.document() == plan.document()
    assert yaml.safe_load(path.read_text()) == plan.document()


def test_json_holds_the_same_document(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan.json())
    assert load_plan(path).document() == plan.document()


def test_the_same_question_gives_the_same_bytes(plan: Plan) -> None:
    again = make_plan(LISTED, load_inputs(Names(ranks="example")), command="treeopt search")
    assert again.yaml() == plan.yaml()


def test_numbers_of_a_bucket_agree_with_each_other(plan: Plan) -> None:
    for bucket in plan.document()["buckets"]:
        batch, tokens = bucket["batch"]["max"], bucket["acceptance_length"]["value"]
        rate, plain = (where["tokens_per_s"]["value"] for where in (bucket, bucket["plain"]))
        assert tokens == pytest.approx(sum(bucket["evidence"]["path_probabilities"]), rel=1e-5)
        assert rate == pytest.approx(batch * tokens / bucket["step_time_s"], rel=1e-5)
        assert bucket["speedup"]["value"] == pytest.approx(rate / plain, rel=1e-5)
        assert bucket["speedup"]["value"] == pytest.approx(tokens / bucket["break_even_length"], rel=1e-5)
        assert bucket["verified_tokens"] == batch * bucket["nodes"]
        assert bucket["num_speculative_tokens"] == bucket["nodes"] - 1
        assert bucket["nodes"] == len(bucket["paths"]) + 1 == len(bucket["parents"])
        assert bucket["speculate"] == (bucket["nodes"] > 1)


def test_tree_for_finds_the_bucket(plan: Plan) -> None:
    assert plan.tree_for(1) == plan.buckets[0].tree
    assert plan.tree_for(64) == plan.buckets[-1].tree
    with pytest.raises(InputError, match="no batch 65") as caught:
        plan.bucket_for(65)
    assert "it covers 1, " in caught.value.hint
    assert "-64;" in caught.value.hint


def test_beyond_the_plan_the_nearest_bucket_s_tree_is_verified_everywhere(wide: Plan) -> None:
    """In Python, in the runtime, and in the schedule that engines load."""
    runtime = load_runtime(wide, hysteresis=Hysteresis(steps=1))
    for context in (1, 1024, 1025, 9000, 10**6):
        for batch in (1, 2, 8, 9, 64, 65, 1000):
            near = wide.at_context(min(context, 32768)).bucket_for(min(batch, 64)).tree
            assert wide.tree_for(batch, context) == runtime.bucket_of(batch, context).tree == near
    chains = plan_of(bucket_of(DraftTree.chain(3), 2, 4), bucket_of(DraftTree.chain(1), 5, 16))
    drafts = fit_plan(chains, Chains(per_batch=True)).schedule
    assert all(drafts.at(batch) == chains.tree_for(batch) for batch in (1, 2, 4, 5, 16, 17, 1000))
    with pytest.raises(InputError, match="a step of 0 requests"):
        wide.tree_for(0, 1024)


@pytest.fixture(scope="module")
def wide() -> Plan:
    """A plan with several contexts, limits and a cap."""
    question = Problem(
        batches=(1, 8, 64),
        only_listed=True,
        time_limit=TimeLimit(max_mean_s=0.004, max_p99_s=0.005),
        limits=Limits(max_depth=4),
    )
    return make_plan(
        question, load_inputs(Names(ranks="example", hardware="h100-sxm")), command="x", contexts=(1024, 8192, 32768)
    )


def test_a_plan_of_several_contexts_reads_back_as_it_was_written(wide: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    wide.save(path)
    again = load_plan(path)
    assert again.yaml() == wide.yaml()
    assert again.time_limit == wide.time_limit == TimeLimit(max_mean_s=0.004, max_p99_s=0.005)
    assert again.limits == Limits(max_depth=4)
    assert again.contexts == (Span(1024, 1024), Span(1025, 8192), Span(8193, 32768))


def test_tree_for_finds_batch_and_context(wide: Plan) -> None:
    parts = {c: wide.at_context(c) for c in (0, 1024, 1025, 8192, 32768)}
    assert parts[0] == parts[1024]
    assert (parts[8192].buckets[0].batch.min, parts[8192].buckets[-1].batch.max) == (1, 64)
    assert {b.context.max for b in parts[1025].buckets} == {8192}
    for batch in (1, 5, 64):
        assert wide.tree_for(batch, 5000) == parts[8192].tree_for(batch) == wide.bucket_for(batch, 8192).tree
    with pytest.raises(InputError, match="no context 32769"):
        wide.bucket_for(8, 32769)
    with pytest.raises(InputError, match="several contexts") as caught:
        wide.tree_for(8)
    assert "1025-8192" in caught.value.hint


def test_one_context_serves_every_length(plan: Plan) -> None:
    assert plan.tree_for(8, 10) == plan.tree_for(8, 10**6) == plan.tree_for(8)


def test_each_context_is_what_a_plan_for_it_alone_says(wide: Plan) -> None:
    question = Problem(
        batches=(1, 8, 64), only_listed=True, context=1024, time_limit=wide.time_limit, limits=wide.limits
    )
    alone = make_plan(question, load_inputs(Names(ranks="example", hardware="h100-sxm")), command="x")
    assert write(alone.buckets) == write(wide.at_context(1024).buckets)


def test_the_largest_batch_within_the_limit_is_told(wide: Plan) -> None:
    for bucket in wide.buckets:
        assert bucket.time_per_token is not None
        assert bucket.time_per_token.mean_s == pytest.approx(bucket.step_time_s / bucket.acceptance_length.value)
        assert bucket.time_per_token.mean_s <= bucket.time_per_token.p99_s
        within = bucket.time_per_token.mean_s <= 0.004 and bucket.time_per_token.p99_s <= 0.005
        assert bucket.meets_limit == within
        assert ("was found within" in bucket.reason) == (not within)
    for context in (1024, 8192):
        largest = max(b.batch.max for b in wide.at_context(context).buckets if b.meets_limit)
        assert any(
            f"at context {context} the largest listed batch" in n.text and f"is {largest}:" in n.text
            for n in wide.notes
        )
    assert not any(b.meets_limit for b in wide.at_context(32768).buckets if b.batch.max == 64)


OLD = Path(__file__).parent / "version_1"


@pytest.mark.parametrize("name", ["contexts", "engine", "mix"])
def test_plans_of_version_1_are_read(name: str, tmp_path: Path) -> None:
    """What treeopt 0.1 wrote says the same today, and is written as version 2."""
    path = OLD / f"{name}.yaml"
    old, plan = yaml.safe_load(path.read_text()), load_plan(path)
    for was, bucket in zip(old["buckets"], plan.document()["buckets"], strict=True):
        same = ("batch", "context", "speculate", "nodes", "depth", "paths", "parents", "step_time_s", "reason")
        assert {key: bucket[key] for key in same} == {key: was[key] for key in same}
        assert bucket["acceptance_length"] == {**was["expected_tokens"], "level": 0.95}
        assert bucket["verified_tokens"] == was["tokens_per_step"]
        assert bucket["plain"]["tokens_per_s"]["value"] == was["plain"]["tokens_per_s"]
        assert bucket["evidence"]["path_probabilities"] == was["path_probabilities"]
    assert [note.text for note in plan.notes] == old["notes"]
    assert plan.sources.ranks.sha256 == old["ranks"]["sha256"]
    again = tmp_path / "again.yaml"
    plan.save(again)
    assert load_plan(again).yaml() == plan.yaml()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  nodes: 13\n", "  nodes: 12\n", "which gives 13"),
        ("speculate: true", "speculate: false", "which gives true"),
        ("tokens_per_step: 13\n", "tokens_per_step: 14\n", "which gives 13"),
        ("expected_tokens: {value: ", "expected_tokens: {value: 1", "lies outside|sum to"),
        ("max_depth: 3", "max_depth: -3", "--max-depth -3"),
        ("max_mean_s: 0.004", "max_mean_s: 0.0", "0 ms per token"),
        ("resolvable", "resolved", "'resolvable' is missing|unknown key"),
    ],
)
def test_plans_of_version_1_that_contradict_themselves(old: str, new: str, message: str, tmp_path: Path) -> None:
    path, text = tmp_path / "plan.yaml", (OLD / "contexts.yaml").read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FileFormatError, match=message) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}:")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("context: {min: 1025, max: 8192}", "context: {min: 1026, max: 8192}", "contexts before end at 1024"),
        ("context: {min: 1025, max: 8192}", "context: {min: 1025, max: 1000}", "below the first"),
        (
            "batch: {min: 1, max: 1}\n  context: {min: 1025",
            "batch: {min: 2, max: 1}\n  context: {min: 1025",
            "batch",
        ),
        ("max_mean_s: 0.004", "max_mean_s: 0.0", "0 ms per token"),
        ("output_tokens: 256", "output_tokens: 0", "requests of 0 tokens"),
        ("max_depth: 4", "max_depth: -4", "--max-depth -4"),
        ("max_depth: 4", "deepest: 4", "unknown key"),
        ("time_per_token: {mean_s: ", "time_per_token: {mean_s: -", "out of range"),
        ("largest_term: ", "largest: x\n    largest_term: ", "unknown key"),
    ],
)
def test_contexts_and_limits_that_contradict_themselves(
    wide: Plan, old: str, new: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(change(wide, old, new))
    with pytest.raises(FileFormatError, match=message) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}:")


def change(plan: Plan, old: str, new: str) -> str:
    text = plan.yaml()
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("treeopt.plan/2", "treeopt.plan/3", "plan.yaml:1: format: this is 'treeopt.plan/3'"),
        ("format: treeopt.plan/2\n", "", "this is not a plan"),
        ("treeopt.plan/2", "treeopt.ranks/1", "expected 'treeopt.plan/2'"),
        ("\n  depth: ", "\n  depth: 1", "this contradicts the rest"),
        ("paths: [[0]", "paths: [[9]", r"no parent|contradicts the rest"),
        ("parents: [-1, 0", "parents: [-1, 1", "this contradicts the rest"),
        ("path_probabilities: [1.0", "path_probabilities: [1.0, 0.5", "values for"),
        ("path_probabilities: [1.0", "path_probabilities: [1.5", "1.5 is out of range"),
        ("step_time_s: ", "step_time_s: -", "out of range"),
        ("context: 2048", "context: .nan", "not a finite number"),
        ("min: 1,", "min: 0,", "out of range"),
        ("buckets:", "bucket:", "unknown key"),
        ("context: 2048\n", "", "'context' is missing"),
        ("speculate: true", "speculate: false", "this contradicts the rest, which gives true"),
        ("verdict: pays", "verdict: does-not-pay", 'which gives "pays"'),
        ("acceptance_length: {value: ", "acceptance_length: {value: 1", "path probabilities sum to"),
        ("  tokens_per_s: {value: ", "  tokens_per_s: {value: 1", "lies outside its interval"),
        ("step_time_s: 0.0", "step_time_s: 0.1", "batch x acceptance length / step time"),
        ("speedup: {value: ", "speedup: {value: 1", "lies outside its interval"),
        ("break_even_length: ", "break_even_length: 1", "the step takes, in plain steps"),
        ("num_speculative_tokens: ", "num_speculative_tokens: 1", "this contradicts the rest"),
        ("plain:\n    num_speculative_tokens: 0", "plain:\n    num_speculative_tokens: 1", "which gives 0"),
        ("level: 0.95}", "level: 0.95, width: 1}", "unknown key"),
        ("step_time_s: 0", "step_time_s: 0.0 #", "out of range"),
        ("batch: {min: 2,", "batch: {min: 3,", "the bucket before ends at 1"),
        ("rule: greedy", "rule: guess", "unknown rule 'guess'"),
        ("    sharing_loss: ", "    sharing: 1\n    sharing_loss: ", "unknown key"),
    ],
)
def test_plans_that_contradict_themselves(plan: Plan, old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(change(plan, old, new))
    with pytest.raises(FileFormatError, match=message) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}:")
    assert caught.value.hint


def test_evidence_that_changed_since_is_refused(plan: Plan, tmp_path: Path) -> None:
    ranks = tmp_path / "mine.yaml"
    ranks.write_text("format: treeopt.ranks/1\nname: mine\nevidence: depth-rank\nprobabilities: [[0.5, 0.2]]\n")
    made = make_plan(Problem(batches=(4,)), load_inputs(Names(ranks=str(ranks))), command="x")
    assert inputs_of(made).evidence.parts[0].name == "mine"
    ranks.write_text(ranks.read_text().replace("0.5", "0.6"))
    with pytest.raises(InputError, match="has changed since"):
        inputs_of(made)


@pytest.mark.parametrize(
    "text",
    ["[[0], [1], [0, 0]]", "- [0]\n- [1]\n- [0, 0]\n", "format: treeopt.tree/1\npaths: [[0, 0], [1], [0]]\n"],
)
def test_bare_trees(text: str) -> None:
    tree = parse_tree(parse_document(text, name="tree", what="tree"))
    assert tree == DraftTree(((0,), (1,), (0, 0)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[0], [1, 0]]", "no parent"),
        ("[0, 1]", "expected a list"),
        ("[[0], [a]]", "expected a number"),
        ("{paths: [[0]]}", "this is not a tree"),
        ("hello", "this is not a tree"),
    ],
)
def test_what_is_no_tree_file(text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        parse_tree(parse_document(text, name="tree", what="tree"))


CHECKED = (
    *("acceptance_length.value", "tokens_per_s.value", "speedup.value", "break_even_length", "step_time_s"),
    *("verified_tokens", "nodes", "depth", "num_speculative_tokens", "plain.tokens_per_s.value", "plain.step_time_s"),
    *("best_chain.tokens_per_s.value", "best_chain.step_time_s", "best_chain.acceptance_length.value"),
    *("best_chain.nodes", "evidence.runner_up.tokens_per_s.value", "evidence.time_per_token.mean_s"),
    *("evidence.path_probabilities.1", "sensitivity.terms.0.step_s"),
)


@given(st.sampled_from(CHECKED), st.integers(0, 2), st.floats(0.0, 1e3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_number_that_is_changed_alone_is_refused(plan: Plan, key: str, i: int, factor: float) -> None:
    """One number of a bucket times a factor: its line is named, whichever command reads the plan."""
    assume(abs(factor - 1.0) > 1e-2)
    document = yaml.safe_load(plan.yaml())
    place = document["buckets"][min(i, len(document["buckets"]) - 1)]
    *way, last = key.split(".")
    for step in way:
        place = place[int(step) if step.isdecimal() else step]
        assume(place is not None)
    at = int(last) if last.isdecimal() else last
    was = place[at]
    place[at] = round(was * factor) if isinstance(was, int) else was * factor
    assume(place[at] != was)
    with pytest.raises(FileFormatError, match=r"plan.yaml:\d+: buckets"):
        parse_plan(parse_document(yaml.safe_dump(document, sort_keys=False), name="plan.yaml", what="plan"))
