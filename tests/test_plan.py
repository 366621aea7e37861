from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import treeopt
from treeopt.documents import parse_document
from treeopt.errors import FileFormatError, InputError
from treeopt.inputs import Names, inputs_of, load_inputs
from treeopt.plan import Plan
from treeopt.plan_file import load_plan, parse_tree
from treeopt.planner import make_plan
from treeopt.search import Question
from treeopt.tree import DraftTree


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(Question(batches=(1, 8, 64)), load_inputs(Names(ranks="example")), command="treeopt search")


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
    again = make_plan(Question(batches=(1, 8, 64)), load_inputs(Names(ranks="example")), command="treeopt search")
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
    assert "-64" in caught.value.hint


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
        ("depth: ", "depth: 1", "the paths have"),
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
    made = make_plan(Question(batches=(4,)), load_inputs(Names(ranks=str(ranks))), command="x")
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
