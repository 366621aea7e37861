"""`treeopt bench`, from the command line to its files, on a tiny random model."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from collect.conftest import save_llama

Run = Callable[..., Any]
Wrong = Callable[..., None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "target", seed=1, layers=3)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"token_ids": [3 + i, 7, 11 + i]}) + "\n" for i in range(4)))
    return path


@pytest.fixture
def small_plan(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    options = ("--max-depth", "2", "--max-nodes", "6", "--context", "32")
    assert run("search", "--batches", "1,2", *options, "--out", path).code == 0
    return path


@pytest.mark.filterwarnings("ignore")
def test_a_plan_is_run_and_compared(run: Run, model: Path, prompts: Path, small_plan: Path, tmp_path: Path) -> None:
    out, steps = tmp_path / "bench.yaml", tmp_path / "steps.csv"
    asked = ("--target", model, "--draft", "early-exit:2", "--plan", small_plan, "--prompts", prompts)
    sizes = ("--batches", "1,2", "--new-tokens", "12", "--device", "cpu", "--together", "--with", "chain:1")
    ran = run("bench", *asked, *sizes, "--out", out, "--steps-out", steps)
    assert ran.code == 0, ran.err
    for words in ("acceptance error", "cost error", "plain decoding", "predicted"):
        assert words in ran.out
    assert "the plan's step times are for" in ran.err  # an H100's
    assert "the plan prices the drafter eagle, this run drafts with early-exit:2" in ran.err
    assert "this run writes 12" in ran.err
    assert ran.err.count("no intervals: 4 texts and") == 2  # of 8 that it takes
    assert "too few texts or steps for an interval" in ran.out
    found = yaml.safe_load(out.read_text())
    assert found["format"] == "treeopt.bench/2"
    assert found["kept"] is None
    assert {promise["measured"]["verdict"] for promise in found["promises"]} == {None}
    assert {cell["batch"] for cell in found["cells"]} == {1, 2}
    for cell in found["cells"]:
        log = cell["log_residual"]
        assert log["acceptance"]["value"] + log["cost"]["value"] == pytest.approx(
            log["total"]["value"], abs=2e-5
        )  # six digits of each
        assert cell["measured"]["acceptance_length"]["value"] >= 1.0
    rows = list(csv.DictReader(steps.read_text().splitlines()))
    assert len(rows) == len(found["cells"])
    assert json.loads(rows[0]["paths"]) == []


@pytest.mark.filterwarnings("ignore")
def test_json_is_the_file(run: Run, model: Path, small_plan: Path, tmp_path: Path) -> None:
    out, own = tmp_path / "bench.json", ("--clock", "cpu", "--threads", "1")
    asked = ("--target", model, "--draft", "ngram", "--plan", small_plan, "--device", "cpu")
    ran = run("bench", *asked, "--batches", "2", "--new-tokens", "12", *own, "--out", out, "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == json.loads(out.read_text())
    assert json.loads(ran.out)["setting"]["clock"] == "cpu"
    assert json.loads(ran.out)["setting"]["prompts"] == 16
    assert "built-in prompts" in ran.err


def test_the_command_that_a_bench_names_fits_its_steps(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from bench.world import cells_of

    from treeopt.bench.steps import fit_note, steps_csv
    from treeopt.planner.inputs import load_inputs
    from treeopt.planner.names import Names

    inputs = load_inputs(Names(ranks="example", drafter="ngram", hardware="a100-sxm", tp=2))
    cells, path = cells_of(inputs.cost, (1, 2, 4, 8), (0, 2, 5)), tmp_path / "my steps.csv"
    path.write_text(steps_csv(cells))
    said = fit_note(cells, inputs, path)
    ran = run(*shlex.split(said.removeprefix("fit them with treeopt")))
    assert ran.code == 0, ran.err
    assert "12 step times at 4 batch sizes" in ran.out
    fitted = yaml.safe_load((tmp_path / "my steps-hardware.yaml").read_text())
    assert fitted["engine_steps"]["evidence"]["drafter"] == "ngram"
    # The plan that is made with it is benched again: its steps are fitted to another file.
    assert fit_note(cells, inputs, path).endswith("my steps-hardware-2.yaml'")


@pytest.mark.filterwarnings("ignore")
def test_an_exit_that_the_target_lacks_is_named_before_its_weights_are_read(
    run: Run, wrong: Wrong, model: Path, prompts: Path, small_plan: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    bare = tmp_path / "bare"
    shutil.copytree(model, bare)
    (bare / "model.safetensors").unlink()
    asked = ("bench", "--plan", small_plan, "--prompts", prompts, "--device", "cpu", "--target", bare)
    wrong(run(*asked, "--draft", "early-exit:99"), "early exit after 99 of 3 layers")
    wrong(run(*asked, "--draft", "early-exit:0"), "early-exit:0")


def test_an_interrupted_bench_says_that_nothing_is_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch, small_plan: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    from treeopt.bench.setup import BenchRequest

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BenchRequest, "load", interrupt)
    out = tmp_path / "bench.json"
    ran = run("bench", "--plan", small_plan, "--target", tmp_path, "--draft", "ngram", "--device", "cpu", "--out", out)
    assert ran.code == 130
    assert "note: interrupted: nothing is kept" in ran.err
    assert not out.exists()


def test_wrong_input_is_named_before_anything_is_loaded(
    run: Run, wrong: Wrong, prompts: Path, small_plan: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    base = ("bench", "--plan", small_plan, "--prompts", prompts, "--device", "cpu", "--target", tmp_path / "none")
    wrong(run(*base, "--draft", "ngram", "--batches", "9"), "the plan has no batch 9")
    wrong(run(*base, "--draft", "ngram"), "no such model")
    wrong(run(*base, "--draft", "medusa:heads"), "does not run Medusa heads")
    wrong(run(*base, "--draft", "ngrm"), "ngrm")
    wrong(run(*base, "--draft", "ngram", "--dtype", "fp7"), "fp7", "float32")
    wrong(run(*base, "--draft", "ngram", "--out", small_plan), str(small_plan))
    wrong(run(*base, "--draft", "ngram", "--out", tmp_path / "no" / "x.json"), "no: no such file", "bench result")
    wrong(run(*base, "--draft", "ngram", "--steps-out", tmp_path), "is a directory", "file of step times")
    wrong(run(*base, "--draft", "ngram", "--with", "chain:x"), "chain:x")
    wrong(run(*base, "--draft", "ngram", "--clock", "cpu", "--threads", "2"), "2 threads", "--threads 1")
