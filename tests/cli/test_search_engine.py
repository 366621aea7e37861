"""`treeopt search --engine` and `--cost`, and what the other commands make of such plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from treeopt.verify.subjects import TreeSelection, subjects_of

Run = Callable[..., Any]
Wrong = Callable[..., None]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """60 short documents with the drafter's confidence."""
    rng = np.random.default_rng(0)
    size, length, depth, ranks = 60, 40, 4, 5
    prob = -np.sort(-rng.dirichlet(np.full(ranks + 1, 0.4), size=(size * length, depth)), axis=2)[:, :, :ranks]
    rank = np.array([[rng.choice(ranks + 1, p=[*row, 1 - row.sum()]) for row in rows] for rows in prob])
    rank = np.where(rank == ranks, -1, rank)
    after = length - 1 - np.tile(np.arange(length), size)
    path = tmp_path / "trace.npz"
    np.savez(
        path,
        rank=np.where(np.arange(depth) < after[:, None], rank, -2).astype(np.int8),
        topk_prob=prob.astype(np.float16),
        doc_id=np.repeat(np.arange(size), length),
        pos=np.tile(np.arange(length), size),
    )
    return path


def test_the_answer_says_what_the_engine_costs(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    apart = ("--batches", "1,64,1024", "--ranks", "example", "--hardware", "h100-sxm-vllm-0.24")
    ran = run("search", *apart, "--engine", "vllm", "--notes", "--out", path)
    assert ran.code == 0
    for words in ("for vllm 0.33.0 (schedule)", "engine loses", "without it"):
        assert words in ran.out
    assert "vLLM 0.33.0 loads a chain length per range of batch sizes" in ran.err
    document = yaml.safe_load(path.read_text())
    assert document["sources"]["engine"]["name"] == "vllm"
    for bucket in document["buckets"]:
        assert bucket["nodes"] == bucket["depth"] + 1
        loss = bucket["evidence"]["engine_loss"]
        share = 1 - bucket["tokens_per_s"]["value"] / loss["unrestricted"]["tokens_per_s"]["value"]
        assert loss["share"]["value"] == pytest.approx(share, abs=1e-5)
    exported = run("export", path, "--json")
    assert json.loads(exported.out)["engine"] == "vllm"
    assert json.loads(exported.out)["losses"] == []


def test_one_batch_names_the_tree_that_the_engine_lacks(run: Run) -> None:
    ran = run("search", "--batch", "8", "--engine", "vllm", "--hardware", "h100-sxm")
    assert ran.code == 0
    for words in ("verify a chain, K = ", "num_speculative_tokens in vLLM", "The engine's limits cost", "unrestricted"):
        assert words in ran.out


def test_a_plan_of_dynamic_trees_goes_through_every_command(run: Run, trace: Path, tmp_path: Path) -> None:
    plan, free = tmp_path / "plan.yaml", tmp_path / "free.yaml"
    search = ("search", "--batches", "1,8", "--ranks", trace, "--hardware", "h100-sxm", "--drafter", "eagle3")
    assert run(*search, "--out", free).code == 0
    ran = run(*search, "--engine", "openvino", "--out", plan)
    assert ran.code == 0
    assert "recorded confidence" in ran.err
    (bucket,) = yaml.safe_load(plan.read_text())["buckets"]
    steps, topk, nodes = (bucket["dynamic"][key] for key in ("num_steps", "topk", "num_draft_tokens"))
    assert bucket["nodes"] == nodes
    content = json.loads(run("export", plan).out)
    assert (content["tree_depth"], content["branching_factor"], content["num_assistant_tokens"]) == (
        *(steps, topk),
        nodes - 1,
    )
    shown = run("show", plan)
    assert shown.code == 0
    assert "average confidence" in shown.out + shown.err
    explained = " ".join(run("explain", plan, "--batch", "8").out.split())
    found = json.loads(run("explain", plan, "--batch", "8", "--json").out)
    same = f"{found['choice']['acceptance_length']['value']:.2f}" == f"{bucket['acceptance_length']['value']:.2f}"
    assert ("chosen anew in every step" in explained) == (not same)
    faster = found["best_here"]["tokens_per_s"]["value"] > 1.005 * found["choice"]["tokens_per_s"]["value"]
    assert ("without the engine's limits" in explained) == faster
    verified = subjects_of(plan, TreeSelection())
    assert [s.where for s in verified.subjects] == ["batch 1-8 (a dynamic tree, as built on average confidence)"]
    compared = run("compare", free, "--with", plan, "--with", f"openvino:{steps},{topk},{nodes - 1}", "--json")
    assert compared.code == 0
    rows = json.loads(compared.out)["comparisons"]
    at_8 = [row["other"]["tokens_per_s"]["value"] for row in rows if row["batch"] == 8]
    assert at_8[0] == pytest.approx(at_8[1], rel=1e-12)  # the plan and the same triple in words
    assert at_8[0] == pytest.approx(bucket["tokens_per_s"]["value"], rel=1e-5)
    (row,) = [row for row in rows if row["batch"] == 8 and row["rival"] == "plan.yaml"]
    assert bucket["evidence"]["engine_loss"]["share"]["value"] == pytest.approx(
        1 - 1 / (1 + row["gain"]["value"]), abs=1e-5
    )
    (replayed,) = json.loads(run("replay", plan, "--trace", trace, "--json").out)["replays"]
    assert replayed["acceptance_length"]["value"] == pytest.approx(bucket["acceptance_length"]["value"], rel=1e-5)


def test_one_context_of_several_is_replayed(run: Run, trace: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    search = ("search", "--batch", "8", "--contexts", "512,8192", "--ranks", trace, "--hardware", "h100-sxm")
    assert run(*search, "--out", plan).code == 0
    rows = json.loads(run("replay", plan, "--trace", trace, "--context", "512", "--json").out)["replays"]
    assert [row["context"] for row in rows] == [{"min": 512, "max": 512}]


def test_a_cost_table_stands_in_the_plan(run: Run, tmp_path: Path) -> None:
    table, plan = tmp_path / "steps.json", tmp_path / "plan.yaml"
    table.write_text('{"batch_stats": {"1": {"0": 7.0, "1": 7.5}, "8": {"0": 8.0, "1": 9.0}}}')
    search = ("search", "--batches", "1,8", "--ranks", "example", "--cost", table)
    ran = run(*search, "--out", plan)
    assert ran.code == 0
    assert "step times steps.json" in ran.out
    document = yaml.safe_load(plan.read_text())
    assert document["sources"]["cost"]["file"] == str(table)
    assert all(bucket["sensitivity"] is None for bucket in document["buckets"])
    assert run("compare", plan, "--with", "chain:1").code == 0
    assert run("explain", plan, "--batch", "8").code == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--engine", "vlm"], ["unknown engine 'vlm'", "did you mean"]),
        (["--engine", "vllm==0.9"], ["vLLM 0.9.0 is not known"]),
        (["--engine", "vllm", "--max-nodes", "1"], ["nothing to draft at batch 8"]),
        (["--cost", "no.json"], ["no.json"]),
        (["--engine", "lmdeploy", "--drafter", "medusa"], ["LMDeploy 0.18.0 runs no medusa drafter"]),
        (["--engine", "medusa", "--drafter", "eagle"], ["Medusa commit e2a5d20 runs no eagle drafter"]),
        (["--engine", "sequoia"], ["Sequoia commit 0ff3ff7 drafts with a model", "--drafter model:NAME"]),
    ],
)
def test_what_cannot_be_searched(run: Run, wrong: Wrong, args: list[str], words: list[str]) -> None:
    ran = run("search", "--batch", "8", "--ranks", "example", *args)
    wrong(ran, *words)
    assert "--method" not in ran.err  # an option of export


@pytest.mark.parametrize(
    ("engine", "priced"), [("medusa", "medusa"), ("vllm", "eagle"), ("openvino", "eagle3"), ("transformers", "mtp")]
)
def test_the_drafter_is_the_engines_own(run: Run, engine: str, priced: str) -> None:
    plan = json.loads(run("search", "--batch", "1", "--engine", engine, "--json").out)
    assert plan["sources"]["drafter"]["kind"] == priced


def test_off_needs_an_engine(run: Run) -> None:
    ran = run("search", "--batch", "8", "--allow-off")
    assert ran.code == 2
    assert "--allow-off" in ran.err


def test_a_plan_without_an_engine_needs_one_to_be_exported(run: Run, wrong: Wrong, plan: Path) -> None:
    wrong(run("export", plan), "no engine is named", "--engine NAME")
