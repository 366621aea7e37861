from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Run = Callable[..., Any]
Wrong = Callable[..., None]


@pytest.fixture
def wide(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "wide.yaml"
    args = ("--batches", "2,8", "--contexts", "1024,8192", "--ranks", "example", "--model", "qwen3-30b-a3b")
    assert run("search", *args, "--out", path).code == 0
    return path


def test_search_over_contexts_lists_them(run: Run, wide: Path) -> None:
    document = yaml.safe_load(wide.read_text())
    assert document["context"] == 8192
    assert {tuple(b["context"].values()) for b in document["buckets"]} == {(1024, 1024), (1025, 8192)}
    shown = run("show", wide)
    assert "contexts 1024, 8192" in shown.out
    assert "1025-8192" in shown.out
    assert "--context L" in shown.err


def test_show_takes_the_bucket_of_the_context(run: Run, wrong: Wrong, wide: Path) -> None:
    assert json.loads(run("show", wide, "--batch", "8", "--context", "4000", "--json").out)["positions"][0] == 4000
    wrong(run("show", wide, "--batch", "8"), "several contexts", "1025-8192")
    wrong(run("show", wide, "--batch", "8", "--context", "9000"), "no context 9000")


def test_compare_and_replay_tell_the_contexts(run: Run, wide: Path, tmp_path: Path) -> None:
    rows = json.loads(run("compare", wide, "--with", "none", "--with", wide, "--json").out)["comparisons"]
    assert {r["context"] for r in rows} == {1024, 8192}
    assert {r["verdict"] for r in rows if r["rival"] == "wide.yaml"} == {"tie"}
    assert "8192, 8" in run("compare", wide, "--with", "none").out


def test_limits_on_the_time_per_token(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    args = ("search", "--batches", "1,8,64", "--ranks", "example", "--max-tpot-ms", "4", "--max-p99-tpot-ms", "4.5")
    document = json.loads(run(*args, "--json").out)
    assert document["time_limit"] == {"max_mean_s": 0.004, "max_p99_s": 0.0045, "output_tokens": 256}
    assert [b["evidence"]["meets_limit"] for b in document["buckets"]][:: len(document["buckets"]) - 1] == [True, False]
    assert any("largest listed batch within the limit" in note["text"] for note in document["notes"])
    table = run(*args)
    for words in ("ms/token", "p99", "met", "exceeded"):
        assert words in table.out
    wrong(run("search", "--batch", "64", "--ranks", "example", "--max-tpot-ms", "1"), "no draft meets --max-tpot-ms 1")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--contexts", "1024,x"], ["'x' is not a context"]),
        (["--contexts", "8192,1024"], ["contexts must rise"]),
        (["--contexts", "-5"], ["'-5' is not a context"]),
        (["--contexts", "9999999999"], ["context 9999999999"]),
        (["--max-tpot-ms", "0"], ["0 ms per token"]),
        (["--max-p99-tpot-ms", "-1"], ["-1 ms per token"]),
        (["--output-tokens", "0"], ["requests of 0 tokens"]),
    ],
)
def test_wrong_contexts_and_limits(run: Run, wrong: Wrong, args: list[str], words: list[str]) -> None:
    wrong(run("search", "--batch", "8", *args), *words)


def test_one_or_several_contexts(run: Run) -> None:
    assert run("search", "--batch", "8", "--context", "5", "--contexts", "6").code == 2


def test_explain_tells_price_and_reason_of_every_node(run: Run, wide: Path) -> None:
    ran = run("explain", wide, "--batch", "2", "--context", "1024")
    assert ran.code == 0
    for words in ("Batch 2, context 1024", "of 128", "needs", "drafter", "Most of the step: experts"):
        assert words in ran.out
    document = json.loads(run("explain", wide, "--batch", "2", "--context", "1024", "--json").out)
    assert document["format"] == "treeopt.explain/2"
    assert [n["chosen"] for n in document["additions"]].count(True) == document["choice"]["nodes"] - 1


def test_explain_takes_the_only_bucket(run: Run, wrong: Wrong, wide: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.yaml"
    assert (
        run("search", "--batch", "512", "--model", "llama-3.2-1b", "--drafter", "model:llama-3.2-1b", "-o", one).code
        == 0
    )
    assert "do not speculate" in run("explain", one).out
    wrong(run("explain", wide), "several batch sizes", "add --batch")
    wrong(run("explain", wide, "--batch", "9", "--context", "1024"), "no batch 9")
