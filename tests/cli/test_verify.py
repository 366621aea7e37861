from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from plans import bucket_of, plan_of

from treeopt.draft_family import DynamicTree
from treeopt.plan.plan import Plan
from treeopt.tree import DraftTree
from treeopt.verify.dump import StepDump

PATHS = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
TREE = DraftTree(tuple(tuple(path) for path in PATHS))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree.json"
    path.write_text(json.dumps(PATHS))
    return path


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A tree, a chain, and no speculation."""
    buckets = (bucket_of(TREE, 1, 1), bucket_of(DraftTree.chain(3), 2, 8), bucket_of(DraftTree(()), 9, 64))
    return written(tmp_path / "plan.yaml", plan_of(*buckets))


def written(path: Path, plan: Plan) -> Path:
    path.write_text(yaml.safe_dump(plan.document(), sort_keys=False))
    return path


def dumped(path: Path, **changes: Any) -> Path:
    right = {"mask": TREE.step_mask(3).tolist(), "positions": TREE.positions(3).tolist(), "accepted": [0, 1, 4]}
    path.write_text(json.dumps({"format": StepDump.FORMAT, "prefix_len": 3, **right, **changes}))
    return path


def test_a_plan_is_verified_bucket_by_bucket(run: Callable[..., Any], plan: Path) -> None:
    pytest.importorskip("torch")
    ran = run("verify", plan)
    assert ran.code == 0, ran.err
    assert "toy transformer" in ran.out
    assert "float64 on cpu; attention: torch" in ran.out
    assert "FAILED" not in ran.out
    found = json.loads(run("verify", plan, "--json").out)
    assert (found["format"], found["passed"], found["rule"], found["exact"]) == (
        "treeopt.verification/1",
        True,
        "greedy",
        True,
    )
    checks = [check for report in found["trees"] for check in report["checks"]]
    assert all(check["passed"] for check in checks)
    assert max(check["worst"] for check in checks) < 1e-12
    assert {check["name"] for check in checks} >= {"distribution of every path", "parent gathering, every rule"}
    one = json.loads(run("verify", plan, "--batch", "1", "--json", "--seed", "3").out)
    assert [report["where"] for report in one["trees"]] == ["batch 1"]
    assert [(report["where"], report["nodes"]) for report in found["trees"]] == [
        ("batch 1", 8),
        ("batch 2-8", 4),
        ("batch 9-64", 1),
    ]


def test_a_plan_for_several_contexts(run: Callable[..., Any], wrong: Callable[..., None], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    short, long = (1, 1024), (1025, 8192)
    buckets = [bucket_of(TREE, 1, 8, contexts=short), bucket_of(DraftTree.chain(2), 9, 16, contexts=short)]
    buckets += [bucket_of(DraftTree.chain(3), 1, 8, contexts=long), bucket_of(DraftTree.chain(2), 9, 16, contexts=long)]
    path = written(tmp_path / "plan.yaml", plan_of(*buckets))

    def places(*arguments: str) -> list[str]:
        return [report["where"] for report in json.loads(run("verify", path, "--json", *arguments).out)["trees"]]

    first, third = "batch 1-8 at context 1-1024", "batch 1-8 at context 1025-8192"
    second = "batch 9-16 at context 1-1024, batch 9-16 at context 1025-8192"
    assert places() == [first, second, third]
    assert places("--batch", "8") == [first, third]
    assert places("--batch", "8", "--context", "100") == [first]
    dump = dumped(tmp_path / "dump.json")
    wrong(run("verify", path, "--batch", "8", "--dump", dump), "2 trees", first, third, "--context L")
    assert run("verify", path, "--batch", "8", "--context", "100", "--dump", dump).code == 0


def test_a_step_that_is_wrong_ends_with_three(
    run: Callable[..., Any], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from treeopt.decode.cache import SlotCache

    monkeypatch.setattr(SlotCache, "compact", lambda *args, **kwargs: None)
    ran = run("verify", tree)
    assert ran.code == 3
    failed = [line for line in ran.out.splitlines() if "FAILED in 1" in line]
    assert any(line.startswith("cache after compaction, in place") for line in failed)
    assert not any(line.startswith("cache after compaction, by copy") for line in failed)
    assert not json.loads(run("verify", tree, "--json").out)["passed"]


def test_an_approximate_rule_is_called_so(run: Callable[..., Any], plan: Path) -> None:
    pytest.importorskip("torch")
    typical = plan.with_name("typical.yaml")
    document = yaml.safe_load(plan.read_text()) | {"verification": {"rule": "typical", "exact": False}}
    typical.write_text(yaml.safe_dump(document, sort_keys=False))
    ran = run("verify", typical, "--batch", "64")
    assert ran.code == 0
    assert "typical (approximate)" in ran.out
    assert "does not follow the target's law" in ran.err


def test_another_engines_step(run: Callable[..., Any], tree: Path, tmp_path: Path) -> None:
    right = run("verify", tree, "--dump", dumped(tmp_path / "right.json"))
    assert right.code == 0
    assert "no difference" in right.out
    sequential = dumped(tmp_path / "wrong.json", positions=list(range(3, 11)), mask=np.tri(8, 11, 3).tolist())
    wrong = run("verify", tree, "--dump", sequential)
    assert wrong.code == 3
    lines = wrong.out.splitlines()
    first, second = (next(i for i, line in enumerate(lines) if name in line) for name in ("sibling", "sequential"))
    assert first < second
    found = json.loads(run("verify", tree, "--dump", sequential, "--json").out)
    assert found["format"] == "treeopt.diagnosis/2"
    assert found["differences"][0]["name"] == "sibling visible"
    assert found["contents"] == ["mask", "positions", "accepted"]
    assert found["unchecked"] == [{"key": "accepted", "needs": ["tokens", "target_tokens"]}]
    assert "'accepted' was not fully checked: that needs tokens and target_tokens in the dump" in wrong.err


def test_a_dump_with_nothing_to_check(
    run: Callable[..., Any], wrong: Callable[..., None], tree: Path, tmp_path: Path
) -> None:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"format": StepDump.FORMAT, "prefix_len": 3}))
    wrong(run("verify", tree, "--dump", path), "dump.json: it holds no arrays", "nothing to check", "positions")
    path.write_text(json.dumps({"format": StepDump.FORMAT, "prefix_len": 3, "tokens": list(range(8))}))
    wrong(run("verify", tree, "--dump", path), "it holds 'tokens'", "nothing to check")


def test_an_output_that_a_limit_explains(run: Callable[..., Any], tree: Path, tmp_path: Path) -> None:
    dump = dumped(tmp_path / "dump.json", tokens=list(range(8)), next_token=9, emitted=[1, 4])
    ran = run("verify", tree, "--dump", dump)
    assert ran.code == 0
    assert "note: only the first 2 of the step's 3 tokens were emitted" in ran.err
    (note,) = json.loads(run("verify", tree, "--dump", dump, "--json").out)["remarks"]
    assert "'tokens_left' in the dump would tell" in note
    assert run("verify", tree, "--dump", dumped(dump, tokens=list(range(8)), emitted=[1], tokens_left=2)).code == 3


def test_the_step_of_a_dynamic_tree(run: Callable[..., Any], wrong: Callable[..., None], tmp_path: Path) -> None:
    """Two buckets with one average tree, of which one is built anew in every step: 3 guesses, two levels, 5 nodes."""
    average = DraftTree(((0,), (1,), (0, 0), (0, 1)))
    fixed = bucket_of(average, 1, 1)
    path = written(
        tmp_path / "plan.yaml", plan_of(fixed, replace(bucket_of(average, 2, 8), dynamic=DynamicTree(2, 3, 5)))
    )
    step = DraftTree(((0,), (1,), (2,), (2, 0)))
    held = {"mask": step.step_mask(3).tolist(), "positions": step.positions(3).tolist(), "accepted": [0]}
    parents, dump = step.parents.tolist(), tmp_path / "dump.json"
    ran = run("verify", path, "--batch", "2", "--dump", dumped(dump, **held, parents=parents))
    assert ran.code == 0, ran
    assert "compared with the dump's own tree, and that with the limits of 2 steps, topk 3 and 5 nodes" in ran.err
    assert "batch 2-8 (a dynamic tree, built anew in this step), 5 nodes" in ran.out
    found = json.loads(run("verify", path, "--batch", "1", "--dump", dump, "--json").out)
    assert [d["name"] for d in found["differences"]] == ["another tree"]
    wrong(run("verify", path, "--batch", "2", "--dump", dumped(dump, **held)), "'parents' is missing", "this step")
    wide = DraftTree(((0,), (1,), (2,), (3,)))
    held |= {"mask": wide.step_mask(3).tolist(), "positions": wide.positions(3).tolist()}
    ran = run("verify", path, "--batch", "2", "--dump", dumped(dump, **held, parents=wide.parents.tolist()), "--json")
    assert ran.code == 3
    (difference,) = json.loads(ran.out)["differences"]
    assert "4 children below one node" in difference["detail"]


def test_trees_by_batch_size(run: Callable[..., Any], wrong: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "trees.yaml"
    drafts = [{"paths": PATHS}, {"paths": [[0]]}, {"paths": PATHS}]
    bounds = [(1, 4), (5, 8), (9, None)]
    ranges = [{"batch": {"min": a, "max": b}, **draft} for (a, b), draft in zip(bounds, drafts, strict=True)]
    path.write_text(json.dumps({"format": "treeopt.trees/1", "ranges": ranges}))
    dump = dumped(tmp_path / "dump.json")
    ran = run("verify", path, "--batch", "100", "--dump", dump)
    assert (ran.code, "batch 9 and up, 8 nodes" in ran.out) == (0, True), ran
    wrong(run("verify", path, "--dump", dump), "has 2 trees: batch 1-4, batch 9 and up; batch 5-8", "--batch B")
    wrong(run("verify", path, "--batch", "0", "--dump", dump), "has no batch 0")
    ranges[1] = {"batch": {"min": 5, "max": 8}, "dynamic": {"steps": 2, "topk": 3, "nodes": 5}}
    path.write_text(json.dumps({"format": "treeopt.trees/1", "ranges": ranges}))
    assert run("verify", path, "--batch", "4", "--dump", dump).code == 0
    wrong(run("verify", path, "--batch", "5", "--dump", dump), "a dynamic tree (steps 2, topk", "give the plan")


def test_the_example_that_it_writes_shows_no_difference(run: Callable[..., Any], plan: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "dump.npz"
    ran = run("verify", plan, "--batch", "1", "--write-dump", out)
    assert (ran.code, ran.out) == (0, "")
    assert f"wrote {out}" in ran.err
    with np.load(out) as archive:
        assert str(archive["format"]) == StepDump.FORMAT
        assert len(archive["accepted"]) > 1
    assert run("verify", plan, "--batch", "1", "--dump", out).code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dump", "none.npz"], ["none.npz: no such file"]),
        (["--batch", "4"], ["a bare tree has no batch sizes"]),
        (["--dtype", "int8"], ["dtype 'int8'", "bfloat16"]),
        (["--context", "-1"], ["a context of -1 tokens"]),
        (["--device", "meta"], ["device 'meta'", "cuda"]),
    ],
)
def test_wrong_input(
    run: Callable[..., Any], wrong: Callable[..., None], tree: Path, arguments: list[str], words: list[str]
) -> None:
    wrong(run("verify", tree, *arguments), *words)


def test_what_needs_one_tree(run: Callable[..., Any], wrong: Callable[..., None], plan: Path, tmp_path: Path) -> None:
    wrong(run("verify", plan, "--dump", dumped(tmp_path / "d.json")), "trees", "add --batch B")
    wrong(run("verify", plan, "--write-dump", plan, "--batch", "1"), "is an input of this command")
    both = run("verify", plan, "--write-dump", tmp_path / "a.npz", "--dump", tmp_path / "d.json")
    assert both.code == 2


def test_a_model_that_is_not_there(run: Callable[..., Any], wrong: Callable[..., None], tree: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    wrong(run("verify", tree, "--model", "./nowhere"), "no such model")


def test_the_kernel_in_the_interpreter(tree: Path) -> None:
    """In a process of its own: Triton reads the variable once, when it is imported."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    program = "import sys; from treeopt.cli import main; sys.argv[0] = 'treeopt'; main()"
    tree.write_text(json.dumps(PATHS[:5]))
    arguments = ["verify", str(tree), "--attention", "triton", "--context", "4", "--json"]
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["attention"] == "Triton kernel, interpreted on the CPU"
    assert found["dtype"] == "float32"
    assert found["passed"]
    errors = {check["name"]: check["worst"] for check in found["trees"][0]["checks"]}
    assert 0 < errors["distribution of every path"] < 1e-3
    assert "cache after compaction, by the kernel" in errors
