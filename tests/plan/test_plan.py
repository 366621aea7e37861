from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import treeopt
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import parse_document
from treeopt.plan.plan import Contexts, Plan
from treeopt.plan.reading import load_plan, parse_tree
from treeopt.planner.inputs import inputs_of, load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.solve.problem import Limits, Problem
from treeopt.solve.time_limit import TimeLimit
from treeopt.tree import DraftTree


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(Problem(batches=(1, 8, 64)), load_inputs(Names(ranks="example")), command="treeopt search")


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
    again = make_plan(Problem(batches=(1, 8, 64)), load_inputs(Names(ranks="example")), command="treeopt search")
    assert again.yaml() == plan.yaml()


def test_numbers_of_a_bucket_agree_with_each_other(plan: Plan) -> None:
    for bucket in plan.document()["buckets"]:
        batch, tokens = bucket["batch"]["max"], bucket["expected_tokens"]["value"]
        assert tokens == pytest.approx(sum(bucket["path_probabilities"]), rel=1e-5)
        assert bucket["tokens_per_s"] == pytest.approx(batch * tokens / bucket["step_time_s"], rel=1e-5)
        assert bucket["speedup"]["value"] == pytest.approx(
            bucket["tokens_per_s"] / bucket["plain"]["tokens_per_s"], rel=1e-5
        )
        assert bucket["speedup"]["value"] == pytest.approx(tokens / bucket["break_even_tokens"], rel=1e-5)
        assert bucket["tokens_per_step"] == batch * bucket["nodes"]
        assert bucket["nodes"] == len(bucket["paths"]) + 1 == len(bucket["parents"])
        assert bucket["speculate"] == (bucket["nodes"] > 1)


def test_tree_for_finds_the_bucket(plan: Plan) -> None:
    assert plan.tree_for(1) == plan.buckets[0].tree
    assert plan.tree_for(64) == plan.buckets[-1].tree
    with pytest.raises(InputError, match="no batch 65") as caught:
        plan.tree_for(65)
    assert "it covers 1, " in caught.value.hint
    assert "-64;" in caught.value.hint


@pytest.fixture(scope="module")
def wide() -> Plan:
    """A plan with several contexts, limits and a cap."""
    question = Problem(
        batches=(1, 8, 64), time_limit=TimeLimit(max_mean_s=0.004, max_p99_s=0.005), limits=Limits(max_depth=4)
    )
    return make_plan(
        question, load_inputs(Names(ranks="example", hardware="h100-sxm")), command="x", contexts=(1024, 8192, 32768)
    )


def test_a_plan_of_several_contexts_reads_back_as_it_was_written(wide: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    wide.save(path)
    again = load_plan(path)
    assert again.yaml() == wide.yaml()
    assert again.latency == wide.latency == TimeLimit(max_mean_s=0.004, max_p99_s=0.005)
    assert again.limits == Limits(max_depth=4)
    assert again.contexts == (Contexts(1024, 1024), Contexts(1025, 8192), Contexts(8193, 32768))


def test_tree_for_finds_batch_and_context(wide: Plan) -> None:
    parts = {c: wide.at_context(c) for c in (0, 1024, 1025, 8192, 32768)}
    assert parts[0] == parts[1024]
    assert (parts[8192].buckets[0].batch_min, parts[8192].buckets[-1].batch_max) == (1, 64)
    assert {b.context_max for b in parts[1025].buckets} == {8192}
    for batch in (1, 5, 64):
        assert wide.tree_for(batch, 5000) == parts[8192].tree_for(batch) == wide.bucket_for(batch, 8192).tree
    with pytest.raises(InputError, match="no context 32769"):
        wide.tree_for(8, 32769)
    with pytest.raises(InputError, match="several contexts") as caught:
        wide.tree_for(8)
    assert "1025-8192" in caught.value.hint


def test_one_context_serves_every_length(plan: Plan) -> None:
    assert plan.tree_for(8, 10) == plan.tree_for(8, 10**6) == plan.tree_for(8)


def test_each_context_is_what_a_plan_for_it_alone_says(wide: Plan) -> None:
    question = Problem(batches=(1, 8, 64), context=1024, time_limit=wide.latency, limits=wide.limits)
    alone = make_plan(question, load_inputs(Names(ranks="example", hardware="h100-sxm")), command="x")
    assert [b.document() for b in alone.buckets] == [b.document() for b in wide.at_context(1024).buckets]


def test_the_largest_batch_within_the_limit_is_told(wide: Plan) -> None:
    for bucket in wide.buckets:
        assert bucket.time_per_token is not None
        assert bucket.time_per_token.mean_s == pytest.approx(bucket.step_time_s / bucket.expected_tokens.value)
        assert bucket.time_per_token.mean_s <= bucket.time_per_token.p99_s
        within = bucket.time_per_token.mean_s <= 0.004 and bucket.time_per_token.p99_s <= 0.005
        assert bucket.meets_limit == within
        assert ("was found within" in bucket.reason) == (not within)
    for context in (1024, 8192):
        largest = max(b.batch_max for b in wide.at_context(context).buckets if b.meets_limit)
        assert any(f"at context {context} the largest listed batch" in n and f"is {largest}:" in n for n in wide.notes)
    assert not any(b.meets_limit for b in wide.at_context(32768).buckets if b.batch_max == 64)


def test_files_of_before_contexts_and_limits_are_read(plan: Plan, tmp_path: Path) -> None:
    document = plan.document()
    for key in ("limits", "latency"):
        del document[key]
    for bucket in document["buckets"]:
        for key in ("context", "time_per_token_s", "meets_limit", "cost_sensitivity"):
            del bucket[key]
    path = tmp_path / "old.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    old = load_plan(path)
    assert [b.tree for b in old.buckets] == [b.tree for b in plan.buckets]
    assert {(b.context_min, b.context_max) for b in old.buckets} == {(2048, 2048)}
    assert old.buckets[0].time_per_token is None
    assert old.buckets[0].cost_sensitivity is None
    again = tmp_path / "again.yaml"
    old.save(again)
    assert load_plan(again).yaml() == old.yaml()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("context: {min: 1025, max: 8192}", "context: {min: 1026, max: 8192}", "contexts before end at 1024"),
        ("context: {min: 1025, max: 8192}", "context: {min: 1025, max: 1000}", "out of range"),
        (
            "batch: {min: 1, max: 1}\n  context: {min: 1025",
            "batch: {min: 2, max: 1}\n  context: {min: 1025",
            "batch",
        ),
        ("max_mean_s: 0.004", "max_mean_s: 0.0", "0 ms per token"),
        ("output_tokens: 256", "output_tokens: 0", "requests of 0 tokens"),
        ("max_depth: 4", "max_depth: -4", "--max-depth -4"),
        ("max_depth: 4", "deepest: 4", "unknown key"),
        ("time_per_token_s: {mean: ", "time_per_token_s: {mean: -", "out of range"),
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
        ("treeopt.plan/1", "treeopt.plan/2", "plan.yaml:1: format: this is 'treeopt.plan/2'"),
        ("format: treeopt.plan/1\n", "", "this is not a plan"),
        ("treeopt.plan/1", "treeopt.ranks/1", "expected 'treeopt.plan/1'"),
        ("\n  depth: ", "\n  depth: 1", "the paths have"),
        ("paths: [[0]", "paths: [[9]", r"no parent|not the parents"),
        ("parents: [-1, 0", "parents: [-1, 1", "not the parents"),
        ("path_probabilities: [1.0", "path_probabilities: [1.0, 0.5", "values for"),
        ("path_probabilities: [1.0", "path_probabilities: [1.5", "1.5 is out of range"),
        ("step_time_s: ", "step_time_s: -", "out of range"),
        ("context: 2048", "context: .nan", "not a finite number"),
        ("min: 1,", "min: 0,", "out of range"),
        ("buckets:", "bucket:", "unknown key"),
        ("context: 2048\n", "", "'context' is missing"),
        ("speculate: true", "speculate: false", "the tree has"),
        ("expected_tokens: {value: ", "expected_tokens: {value: 1", "path probabilities sum to"),
        ("step_time_s: 0", "step_time_s: 0.0 #", "out of range"),
        ("max: 1}", "max: 3}", "the bucket before ends at 3"),
        ("rule: greedy", "rule: guess", "unknown rule 'guess'"),
        ("sharing_loss: ", "sharing: 1\n  sharing_loss: ", "unknown key"),
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


def test_files_of_before_engines_and_cost_tables_are_read(plan: Plan, tmp_path: Path) -> None:
    document = plan.document()
    for key in ("cost", "engine"):
        assert document.pop(key) is None
    for bucket in document["buckets"]:
        assert bucket.pop("dynamic") is None
        assert bucket.pop("engine_loss") is None
    path = tmp_path / "old.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    assert load_plan(path).yaml() == plan.yaml()
