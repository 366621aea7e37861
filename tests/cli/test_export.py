from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Run = Callable[..., Any]
Wrong = Callable[..., None]
TREES = """format: treeopt.trees/1
ranges:
- batch: {min: 1, max: 4}
  paths: [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]
- batch: {min: 5, max: 16}
  paths: [[0], [0, 0]]
- batch: {min: 17, max: 256}
  paths: []
"""


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    path = tmp_path / "trees.yaml"
    path.write_text(TREES)
    return path


@pytest.mark.parametrize(
    ("engine", "content"),
    [
        (
            "vllm",
            '{"method":"eagle3","model":"D","num_speculative_tokens":4,'
            '"num_speculative_tokens_per_batch_size":[[1,4,4],[5,16,2],[17,256,0]]}\n',
        ),
        ("sglang", '{"1":{"candidate_steps":[4]},"5":{"candidate_steps":[2]},"17":{"candidate_steps":[0]}}\n'),
    ],
)
def test_stdout_is_the_file_and_stderr_says_how_to_use_it(run: Run, trees: Path, engine: str, content: str) -> None:
    ran = run("export", trees, "--engine", engine, "--draft-model", "D", "--model", "org/target")
    assert (ran.code, ran.out) == (0, content)
    for words in ("engine: ", "start: ", "org/target", "capture (", "at work if: ", "note: ", "known bug: "):
        assert words in ran.err


def test_the_loss_of_a_plan_is_said(run: Run, plan: Path) -> None:
    ran = run("export", plan, "--engine", "vllm")
    assert ran.code == 0
    buckets = yaml.safe_load(plan.read_text())["buckets"]
    losses = [line for line in ran.err.splitlines() if line.startswith(("lost: ", "gained: "))]
    assert len(losses) == sum(b["nodes"] != b["depth"] + 1 or b["nodes"] == 1 for b in buckets)
    first = buckets[0]
    assert (
        f"{1 - first['best_chain']['tokens_per_s']['value'] / first['tokens_per_s']['value']:.1%} of tokens/s"
        in losses[0]
    )


def test_files_and_folders(run: Run, wrong: Wrong, trees: Path, tmp_path: Path) -> None:
    ran = run("export", trees, "--engine", "sglang", "--out", tmp_path / "mine.json")
    assert (ran.code, ran.out) == (0, "")
    assert str(tmp_path / "mine.json") in ran.err.replace("\n", "")
    assert json.loads((tmp_path / "mine.json").read_text())["5"] == {"candidate_steps": [2]}
    folder = tmp_path / "folder"
    folder.mkdir()
    assert run("export", trees, "--engine", "trtllm", "--out", folder).code == 0
    config = yaml.safe_load((folder / "trtllm_config.yaml").read_text())
    assert config["speculative_config"]["draft_len_schedule"] == {4: 4, 16: 2}
    wrong(run("export", trees, "--engine", "vllm", "--out", trees), "is an input of this command")
    assert trees.read_text() == TREES


def test_json(run: Run, trees: Path) -> None:
    document = json.loads(run("export", trees, "--engine", "trtllm==1.4.0rc1", "--json").out)
    assert (document["format"], document["engine"], document["version"]) == ("treeopt.export/2", "trtllm", "1.4.0rc1")
    assert document["capture_sizes"] == {"unit": "requests", "sizes": [4, 16]}
    assert yaml.safe_load(document["content"])["speculative_config"]["max_draft_len"] == 4


def test_the_launch_line_names_the_file_in_its_folder(run: Run, trees: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    for engine, name in (("sglang", "sglang_adaptive.json"), ("trtllm", "trtllm_config.yaml")):
        assert str(folder / name) in run("export", trees, "--engine", engine, "--out", folder).err
    mine = tmp_path / "mine.json"
    assert f"open({str(mine)!r})" in run("export", "chain:3", "--engine", "medusa", "--out", mine).err


def test_sizes_below_1_are_a_usage_error(run: Run) -> None:
    for option in ("--max-batch", "--heads"):
        assert run("export", "chain:3", "--engine", "medusa", option, "0").code == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["sglang:3,4,16", "--engine", "vllm"], ["is no chain", "it loads"]),
        (["chain:4", "--engine", "vllm==0.9"], ["vLLM 0.9.0 is not known"]),
        (["none", "--engine", "sglang"], ["nothing is drafted"]),
        (["chain:1", "--engine", "eagle1"], ["1 deep"]),
        (["chain:5", "--engine", "medusa", "--heads", "4"], ["does not fit --heads 4", "--max-depth 4"]),
    ],
)
def test_what_cannot_be_loaded_is_refused(run: Run, wrong: Wrong, args: list[str], words: list[str]) -> None:
    wrong(run("export", *args), *words)


def test_several_contexts_need_one(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    path = tmp_path / "contexts.yaml"
    search = ("search", "--batches", "1,8", "--ranks", "example", "--contexts", "512,32768", "--out", path)
    assert run(*search).code == 0
    wrong(run("export", path, "--engine", "vllm"), "several contexts")
    assert run("export", path, "--engine", "vllm", "--context", "512").code == 0


def test_import_writes_trees_that_other_commands_read(run: Run, plan: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": [[1, 4, 4], [9, 16, 1]]}')
    out = tmp_path / "today.yaml"
    ran = run("import", config, "--out", out)
    assert (ran.code, ran.out) == (0, "")
    assert "read as vLLM, schedule" in ran.err
    assert "batch 5-8 is in no range" in ran.err
    assert run("import", config).out == out.read_text()
    assert json.loads(run("import", config, "--json").out) == yaml.safe_load(out.read_text())
    rows = json.loads(run("compare", plan, "--with", config, "--with", out, "--json").out)["comparisons"]
    by_rival = {
        name: [r["other"]["nodes"] for r in rows if r["rival"] == name] for name in ("config.json", "today.yaml")
    }
    assert by_rival["config.json"] == by_rival["today.yaml"]
    assert by_rival["config.json"][0] == 5


def test_import_of_one_tree(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    path.write_text("[[0], [1], [0, 0]]")
    out = tmp_path / "tree.yaml"
    assert run("import", path, "--engine", "medusa", "--out", out).code == 0
    assert yaml.safe_load(out.read_text()) == {"format": "treeopt.tree/1", "paths": [[0], [1], [0, 0]]}
    assert run("show", out).code == 0
    wrong(run("import", path, "--engine", "mlc"), "not what MLC-LLM")
    wrong(run("import", path, "--out", path), "is an input of this command")
    path.write_text("[[0], [0]]")
    wrong(run("import", path), "listed twice")


def test_compare_with_a_dynamic_tree(run: Run, plan: Path) -> None:
    ran = run("compare", plan, "--with", "sglang:2,2,4")
    assert ran.code == 0
    assert "shapes its tree anew in every step" in ran.err
    rows = json.loads(run("compare", plan, "--with", "sglang:2,2,4", "--json").out)["comparisons"]
    assert {r["other"]["nodes"] for r in rows} == {4}
