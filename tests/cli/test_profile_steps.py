"""`treeopt profile fit --steps` and `treeopt profile table`, from the command line to the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from treeopt.cost import Eagle, ModelStep, load_hardware, load_model
from treeopt.cost.served.published import TYPICAL
from treeopt.files.shipped import locate

Run = Callable[..., Any]
Wrong = Callable[..., None]
H100 = ("--hardware", "h100-sxm")
BATCHES, KS = (1, 8, 32, 64), (0, 1, 3, 5)


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Steps of Llama-3.1-8B + EAGLE: the shipped H100 roofline, 1 ms per step, 5 us per token, 0.4 ms if drafting."""
    kernels = ModelStep(
        model=load_model(locate("models", "llama-3.1-8b").path),
        times=load_hardware(locate("hardware", "h100-sxm").path).kernel_times(),
        drafter=Eagle(),
    )
    lines = ["batch,k,step_ms"]
    for batch in BATCHES:
        for K in KS:
            kernels_s = kernels.terms(
                batch=batch, nodes=K + 1, depth=K, widths=[1] * max(K, 1) if K else [0], context=300
            )
            seconds = kernels_s.total_s + 1e-3 + 5e-6 * batch * (K + 1) + 4e-4 * (K > 0)
            lines.append(f"{batch},{K},{seconds * 1e3!r}")
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_fitted_constants_stand_in_the_profile_and_in_its_steps(run: Run, steps: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    ran = run("profile", "fit", "--steps", steps, "--context", "300", *H100, "--out", out)
    assert ran.code == 0
    for words in ("per verified token", "error at batch sizes left out", "taken", "break-even E"):
        assert words in ran.out
    found = yaml.safe_load(out.read_text())
    assert found["name"] == "mine"
    engine = found["engine_steps"]
    assert engine["step_s"] == pytest.approx(1e-3, rel=1e-6)
    assert engine["verified_token_s"] == pytest.approx(5e-6, rel=1e-6)
    assert engine["speculative_step_s"] == pytest.approx(4e-4, rel=1e-6)
    assert engine["evidence"]["rows"] == 16
    assert engine["evidence"]["model"] == "llama-3.1-8b"
    assert load_hardware(out).engine_steps is not None


def test_json_holds_what_the_table_shows(run: Run, steps: Path, tmp_path: Path) -> None:
    ran = run("profile", "fit", "--steps", steps, "--context", "300", *H100, "--out", tmp_path / "mine.yaml", "--json")
    found = json.loads(ran.out)
    assert found["format"] == "treeopt.steps-fit/2"
    assert found["rows"] == 16
    assert [len(c["constants"]) for c in found["fit"]["candidates"]] == [0, 1, 2, 3, 4, 5]
    assert found["fit"]["held_out"]["max"] < 1e-6
    assert len(found["payoffs"]) == 12
    assert found["payoffs"][0]["break_even_length"] > 1.0


def test_what_cannot_be_fitted_is_an_error_and_writes_nothing(
    run: Run, wrong: Wrong, steps: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine.yaml"
    lines = steps.read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join(lines[:5]))
    wrong(run("profile", "fit", "--steps", few, "--out", out), "4 step times are too few")
    mixed = tmp_path / "mixed.csv"
    mixed.write_text("\n".join([*lines[:5], "8,0,0.0071", *lines[6:]]))
    wrong(run("profile", "fit", "--steps", mixed, "--out", out), "mixed.csv:6", "as if given in a larger unit")
    wrong(run("profile", "fit", "--steps", steps, "--out", steps), "is an input of this command")
    assert not out.exists()
    assert run("profile", "fit", "--out", out).code == 2
    assert run("profile", "fit", "--steps", steps, "--rows", steps, "--out", out).code == 2
    assert not out.exists()


@pytest.mark.parametrize("option", [("--processors", "132"), ("--from", "me"), ("--select", "a=b"), ("--licence", "x")])
def test_options_of_rows_are_refused_with_steps(option: tuple[str, str], run: Run, steps: Path, tmp_path: Path) -> None:
    ran = run("profile", "fit", "--steps", steps, *option, "--out", tmp_path / "mine.yaml")
    assert ran.code == 2
    assert option[0] in ran.err
    assert "belongs to --rows" in ran.err


@pytest.mark.parametrize("option", [("--tp", "2"), ("--context", "2048"), ("--model", "qwen3-8b")])
def test_options_of_steps_are_refused_with_rows(option: tuple[str, str], run: Run, tmp_path: Path) -> None:
    ran = run("profile", "fit", "--rows", tmp_path / "rows.csv", *option, "--out", tmp_path / "mine.yaml")
    assert ran.code == 2
    assert "belongs to --steps" in ran.err


def test_options_that_a_table_would_not_use_are_refused(run: Run, tmp_path: Path) -> None:
    table = ("profile", "table", "--batches", "1", "--draft-tokens", "1", "--out", tmp_path / "t.json")
    assert run(*table, "--engine", "vllm", "--cost", tmp_path / "c.json", "--tp", "2").code == 2
    assert run(*table, "--engine", "sglang", "--ranks", "example").code == 2


def test_tables_for_engines_agree_with_each_other(run: Run, tmp_path: Path) -> None:
    vllm, sglang, additive = (tmp_path / f"{name}.json" for name in ("vllm", "sglang", "additive"))
    common, priced = ("--batches", "1,8,64"), ("--context", "300")
    ran = run("profile", "table", "--engine", "vllm", *common, *priced, "--draft-tokens", "0-3", "--out", vllm)
    assert ran.code == 0
    found = json.loads(vllm.read_text())
    assert list(found["batch_stats"]) == ["1", "8", "64"]
    assert list(found["batch_stats"]["8"]) == ["0", "1", "2", "3"]
    # From the table that was just written.
    ran = run("profile", "table", "--engine", "sglang", *common, "--draft-tokens", "3", "--cost", vllm, "--out", sglang)
    assert ran.code == 0
    rates = json.loads(sglang.read_text())
    assert rates["sample_batch_tokens"] == [4, 32, 256]
    assert 1e3 / rates["sample_steps_per_sec"][1] == pytest.approx(found["batch_stats"]["8"]["3"])
    ran = run("profile", "table", "--engine", "sglang-additive", *common, "--draft-tokens", "0-3", "--out", additive)
    assert "misses single steps by up to" in ran.err
    assert json.loads(additive.read_text())["bs_probes"] == [1, 8, 64]


def test_vllms_table_carries_acceptance(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "vllm.json"
    command = ("profile", "table", "--engine", "vllm", "--batches", "1", "--draft-tokens", "0-3", "--out", out)
    assert run(*command, "--ranks", "example").code == 0
    rates = json.loads(out.read_text())["acceptance_rate_per_pos"]
    assert len(rates) == 3
    assert rates == sorted(rates, reverse=True)


def test_a_table_that_an_engine_cannot_hold_is_refused(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    common = ("--batches", "1,8", "--draft-tokens", "1,3", "--out", out)
    wrong(run("profile", "table", "--engine", "sglang", *common), "tokens per step only")
    wrong(run("profile", "table", "--engine", "vlm", *common), "unknown table 'vlm'", "did you mean vllm?")
    wrong(
        run("profile", "table", "--engine", "vllm", "--batches", "0,1", "--draft-tokens", "0", "--out", out),
        "0 requests",
    )
    assert not out.exists()


def test_curves_of_the_kernels_are_not_written_over(run: Run, steps: Path, tmp_path: Path) -> None:
    kernels = locate("hardware", "a100-sxm-vllm-0.14").path
    mine = tmp_path / "mine.yaml"
    for suffix in (".yaml", ".npz"):
        mine.with_suffix(suffix).write_bytes(
            kernels.with_suffix(suffix).read_bytes().replace(b"a100-sxm-vllm-0.14.npz", b"mine.npz")
        )
    before = mine.with_suffix(".npz").read_bytes()
    ran = run("profile", "fit", "--steps", steps, "--hardware", mine, "--out", tmp_path / "mine.yml")
    assert ran.code == 0
    assert mine.with_suffix(".npz").read_bytes() == before
    assert load_hardware(tmp_path / "mine.yml").fits is not None


def test_a_missing_file_of_steps_is_called_so(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    ran = run("profile", "fit", "--steps", tmp_path / "none.csv", "--out", tmp_path / "mine.yaml")
    wrong(ran, "no such file", "file of step times")


def test_search_charges_what_was_fitted(run: Run, steps: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    assert run("profile", "fit", "--steps", steps, "--context", "300", *H100, "--out", mine).code == 0
    plain_s = []
    for hardware in ("h100-sxm", mine):
        ran = run("search", "--batch", "8", "--context", "300", "--ranks", "example", "--hardware", hardware, "--json")
        plain_s.append(8 / json.loads(ran.out)["buckets"][0]["plain"]["tokens_per_s"]["value"])
    typical_s = TYPICAL.step_s + 8 * TYPICAL.verified_token_s  # a data sheet has no engine of its own
    assert plain_s[1] - plain_s[0] == pytest.approx(1e-3 + 8 * 5e-6 - typical_s, rel=1e-3)
