from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

Run = Callable[..., Any]
Wrong = Callable[..., None]

SCRAPE = """\
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{model_name="m"} 100
vllm:spec_decode_num_draft_tokens_total{model_name="m"} 200
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 90
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 60
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 30
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rank = rng.choice([-1, 0, 0, 1], (600, 3))
    rank = np.where(np.arange(20)[None, :, None] + np.arange(3) < 20, rank.reshape(30, 20, 3), -2).reshape(600, 3)
    path = tmp_path / "trace.npz"
    np.savez(path, rank=rank, doc_id=np.repeat(np.arange(30), 20), pos=np.tile(np.arange(20), 30))
    return path


def test_import_show_and_search_a_serving_scrape(run: Run, tmp_path: Path) -> None:
    scrape, profile = tmp_path / "metrics.prom", tmp_path / "mine.yaml"
    scrape.write_text(SCRAPE)
    ran = run("ranks", "import", scrape, "--out", profile)
    assert ran.code == 0, ran.err
    assert "kind: vllm-prometheus" in ran.out
    assert "mean accepted length 1.9" in ran.out
    assert "chains up to 2 deep, never widths" in ran.out
    written = yaml.safe_load(profile.read_text())
    assert (written["evidence"], written["drafts"], written["accepted"]) == ("position", 100, [60, 30])
    assert "0.600" in run("ranks", "show", profile).out
    assert json.loads(run("ranks", "show", profile, "--json").out) == written
    (bucket,) = json.loads(run("search", "--batch", "4", "--ranks", profile, "--json").out)["buckets"]
    assert bucket["paths"] in ([[0]], [[0], [0, 0]])


def test_import_json_says_what_the_table_says(run: Run, tmp_path: Path) -> None:
    scrape = tmp_path / "metrics.prom"
    scrape.write_text(SCRAPE)
    document = json.loads(run("ranks", "import", scrape, "--json").out)
    assert (document["format"], document["kind"]) == ("treeopt.import/1", "vllm-prometheus")
    (source,) = document["sources"]
    assert source["counts"]["mean_accepted_length"] == pytest.approx(1.9)


def test_what_cannot_be_imported(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("nothing of interest\n")
    wrong(run("ranks", "import", text), "notes.txt")
    wrong(run("ranks", "import", tmp_path / "none.prom"), "no such file")
    wrong(run("ranks", "import", text, "--kind", "vlm-log"), "unknown kind", "did you mean")
    text.write_text(SCRAPE.replace('position="1"} 30', 'position="1"} 70'))
    out = tmp_path / "out.yaml"
    wrong(run("ranks", "import", text, "--out", out), "notes.txt")
    assert not out.exists()


def test_merge_adds_and_refuses(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    for name, count, temperature in (("a", 5, 0), ("b", 7, 0), ("c", 1, 0.8)):
        (tmp_path / f"{name}.yaml").write_text(
            f"format: treeopt.ranks/1\nname: {name}\nevidence: depth-rank\nreached: [10]\ncounts: [[{count}]]\n"
            f"conditions: {{temperature: {temperature}}}\n"
        )
    a, b, c, out = (tmp_path / f"{name}.yaml" for name in "abcd")
    assert run("ranks", "merge", a, b, "--out", out).code == 0
    assert yaml.safe_load(out.read_text())["counts"] == [[12]]
    wrong(run("ranks", "merge", a, c, "--out", tmp_path / "e.yaml"), "temperature differs", "--force")
    assert run("ranks", "merge", a, c, "--out", out, "--force").code == 0
    assert run("ranks", "merge", a, b).code == 2


def test_replay_stands_beside_the_prediction(run: Run, trace: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    run("search", "--batches", "1,64", "--ranks", trace, "--out", plan)
    buckets = yaml.safe_load(plan.read_text())["buckets"]
    document = json.loads(run("replay", plan, "--trace", trace, "--json").out)
    assert document["format"] == "treeopt.replay/2"
    for row, bucket in zip(document["replays"], buckets, strict=True):
        assert row["nodes"] == bucket["nodes"]
        assert row["predicted"] == bucket["acceptance_length"]["value"]
        replayed = row["acceptance_length"]
        assert replayed["low"] <= replayed["value"] <= replayed["high"]
        assert replayed["value"] == pytest.approx(row["predicted"], rel=0.02)
    ran = run("replay", plan, "--trace", trace)
    assert "replayed E" in ran.out
    assert "off by" in ran.out


def test_replay_takes_bare_trees_and_refuses_deep_ones(run: Run, wrong: Wrong, trace: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree.json"
    tree.write_text("[[0], [1]]")
    assert run("replay", tree, "--trace", trace).code == 0
    wrong(run("replay", tree, "--trace", trace, "--batch", "1"), "no batch sizes")
    tree.write_text("[[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]")
    wrong(run("replay", tree, "--trace", trace), "4 tokens deep")
    wrong(run("replay", tree, "--trace", tmp_path / "none.npz"), "none.npz")


def test_search_on_a_trace_has_intervals_and_can_hold_documents_out(run: Run, wrong: Wrong, trace: Path) -> None:
    (bucket,) = json.loads(run("search", "--batch", "2", "--ranks", trace, "--holdout", "0.5", "--json").out)["buckets"]
    for number in (bucket["acceptance_length"], bucket["evidence"]["held_out_length"]):
        assert number["low"] <= number["value"] <= number["high"]
    assert "On held-out documents" in run("search", "--batch", "2", "--ranks", trace, "--holdout", "0.5").out
    wrong(run("search", "--batch", "2", "--ranks", "example", "--holdout", "0.5"), "no documents for --holdout")


def test_mixing_reports_every_category(run: Run, wrong: Wrong, trace: Path) -> None:
    mix = f"{trace}=0.25,example=0.75"
    (bucket,) = json.loads(run("search", "--batch", "2", "--mix", mix, "--json").out)["buckets"]
    categories = bucket["evidence"]["categories"]
    assert [c["weight"] for c in categories] == [0.25, 0.75]
    mean = sum(c["weight"] * c["acceptance_length"] for c in categories)
    assert bucket["acceptance_length"]["value"] == pytest.approx(mean, rel=1e-4)
    assert "example (75% of drafts)" in run("search", "--batch", "2", "--mix", mix).out
    wrong(run("search", "--batch", "2", "--mix", "example=0.5"), "sum to 0.5")


def test_replay_judges_the_dynamic_tree(run: Run, wrong: Wrong, trace: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(trace))
    confidence = np.tile(np.array([0.5, 0.25, 0.1]), (600, 3, 1))
    np.savez(tmp_path / "sure.npz", **arrays, topk_prob=confidence)
    tree = tmp_path / "tree.json"
    tree.write_text("[[0], [1], [0, 0]]")
    (row,) = json.loads(run("replay", tree, "--trace", tmp_path / "sure.npz", "--dynamic", "--json").out)["replays"]
    # The same confidence everywhere: the rule picks (0), then (0, 0) and (1), which is the static tree.
    assert row["dynamic_gain"] == pytest.approx(0.0, abs=0.02)
    assert "at most" in run("replay", tree, "--trace", tmp_path / "sure.npz", "--dynamic").out
    wrong(run("replay", tree, "--trace", trace, "--dynamic"), "topk_prob")
