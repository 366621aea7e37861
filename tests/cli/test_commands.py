from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from treeopt.cli.options import DRAFTERS
from treeopt.cost import load_model, parse_drafter
from treeopt.files.shipped import locate

Run = Callable[..., Any]
Wrong = Callable[..., None]


def test_search_json_is_the_plan_itself(run: Run, plan: Path) -> None:
    ran = run("search", "--batches", "1,8,64", "--ranks", "example", "--json")
    assert ran.code == 0
    assert json.loads(ran.out) == yaml.safe_load(plan.read_text())
    assert ran.err == ""  # the document has all notes
    text = run("search", "--batches", "1,8,64", "--ranks", "example", "--notes")
    said = [f"{note['level']}: {note['text']}" for note in json.loads(ran.out)["notes"]]
    assert sorted(said) == sorted(text.err.splitlines())


def test_length_objective_fills_the_budget(run: Run) -> None:
    ran = run("search", "--batch", "64", "--ranks", "example", "--objective", "length", "--budget", "640", "--json")
    (bucket,) = json.loads(ran.out)["buckets"]
    assert (bucket["nodes"], bucket["verified_tokens"]) == (10, 640)
    assert bucket["acceptance_length"]["value"] == pytest.approx(3.419, abs=5e-4)


def test_a_trace_is_taken_as_it_is(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rank = rng.integers(-1, 3, (500, 4)).astype(np.int8)
    np.savez(tmp_path / "trace.npz", rank=rank, doc_id=np.repeat(np.arange(5), 100), pos=np.tile(np.arange(100), 5))
    ran = run("search", "--batch", "2", "--ranks", tmp_path / "trace.npz", "--json")
    ranks = json.loads(ran.out)["sources"]["ranks"]
    assert (ranks["evidence"], ranks["positions"], ranks["documents"]) == ("paths", 500, 5)


def test_the_recorded_command_does_not_depend_on_where_the_answer_goes(run: Run, plan: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    for out in ([f"--out={other}"], [f"-o{other}"], ["-o", str(other)]):
        other.unlink(missing_ok=True)
        run("search", "--batches", "1,8,64", "--ranks", "example", *out)
        assert other.read_bytes() == plan.read_bytes()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--batch", "0"], ["batch 0 is out of range"]),
        (["--batch", "-3"], ["batch -3"]),
        (["--batches", "1,x"], ["'x' is not a batch size"]),
        (["--batches", "8-2"], ["the range 8-2 falls"]),
        (["--batches", "1-99999999"], ["batch sizes"]),
        (["--batch", "8", "--ranks", "exmaple"], ["unknown rank profile 'exmaple'", "did you mean example"]),
        (["--batch", "8", "--hardware", "h100-smx"], ["unknown hardware profile 'h100-smx'", "h100-sxm"]),
        (["--batch", "8", "--model", "lama"], ["unknown model 'lama'"]),
        (["--batch", "8", "--drafter", "eagel"], ["eagel", "did you mean eagle"]),
        (["--batch", "8", "--drafter", "model:nope"], ["unknown model 'nope'"]),
        (["--batch", "8", "--objective", "speed"], ["unknown objective 'speed'"]),
        (["--batch", "8", "--dtype", "int3"], ["int3"]),
        (["--batch", "8", "--tp", "0"], ["0"]),
        (["--batch", "8", "--tp", "7"], ["7"]),
        (["--batch", "8", "--context", "-1"], ["context -1 is out of range"]),
        (["--batch", "8", "--max-nodes", "0"], ["--max-nodes 0"]),
        (["--batch", "8", "--budget", "0.5"], ["budget"]),
        (["--batch", "8", "--sharing-loss", "1.5"], ["sharing loss"]),
        (["--batch", "8", "--ranks", "none.yaml"], ["no such file"]),
    ],
)
def test_wrong_options_say_what_is_wrong(run: Run, wrong: Wrong, args: list[str], words: list[str]) -> None:
    wrong(run("search", *args), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format: [\nname: x", ["ranks.yaml:3: not valid YAML"]),
        ("", ["the file is empty"]),
        ("name: x", ["ranks.yaml:1: this is not a rank profile", "`format: treeopt.ranks/1`"]),
        ("format: treeopt.ranks/9\n", ["this is 'treeopt.ranks/9'"]),
        ("F\nprobabilities: [[0.7, 0.15],\n [1.3, 0.1]]", ["ranks.yaml:5:", "1.3 at depth 2, rank 0"]),
        ("F\nprobabilities: [[0.7, 0.45]]", ["ranks.yaml:4:", "sum to 1.15"]),
        ("F\nprobabilities: [[.nan]]", ["ranks.yaml:4:", "not a finite number"]),
        ("F\nprobabilities: []", ["ranks.yaml:4:"]),
        ("F\nreached: [10, 20]\ncounts: [[5], [5]]", ["ranks.yaml:4:", "trials rise from 10 to 20"]),
        ("F\nprobabilities: [[0.5]]\nprobabilites: 3", ["ranks.yaml:5:", "unknown key"]),
        ("P\npaths: [[[0], 5], [[0, 0], 6]]", ["ranks.yaml:5:", "counts never rise along a path"]),
        ("P\npaths: []", ["no path was ever followed"]),
    ],
)
def test_wrong_rank_profiles_name_file_and_line(
    run: Run, wrong: Wrong, text: str, words: list[str], tmp_path: Path
) -> None:
    head = "format: treeopt.ranks/1\nname: mine\n"
    text = text.replace("F\n", head + "evidence: depth-rank\n").replace("P\n", head + "evidence: paths\nstarts: 10\n")
    path = tmp_path / "ranks.yaml"
    path.write_text(text)
    wrong(run("search", "--batch", "8", "--ranks", path), *words)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"rank": np.zeros((0, 4), dtype=np.int8)}, ["the trace is empty"]),
        ({"rank": np.full((5, 4), np.nan)}, ["'rank' is float64"]),
        ({"rank": np.zeros(5, dtype=np.int8)}, ["expected whole numbers [T, D]"]),
        ({"rank": np.full((5, 4), -3)}, ["-3"]),
        ({"other": np.zeros(3)}, ["no array 'rank'"]),
    ],
)
def test_wrong_traces(run: Run, wrong: Wrong, arrays: dict[str, np.ndarray], words: list[str], tmp_path: Path) -> None:
    np.savez(tmp_path / "trace.npz", **arrays)  # type: ignore[arg-type]
    wrong(run("search", "--batch", "8", "--ranks", tmp_path / "trace.npz"), "trace.npz", *words)


def test_files_that_are_no_traces(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    path.write_bytes(b"not a zip")
    wrong(run("search", "--batch", "8", "--ranks", path), "not an NPZ file")
    np.savez(tmp_path / "whole.npz", rank=np.zeros((5000, 4), dtype=np.int64))
    path.write_bytes((tmp_path / "whole.npz").read_bytes()[:2000])
    wrong(run("search", "--batch", "8", "--ranks", path), "trace.npz")


def test_nothing_is_written_when_the_input_is_wrong(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    out = tmp_path / "plan.yaml"
    wrong(run("search", "--batch", "8", "--ranks", "nope", "--out", out))
    assert not out.exists()
    out.write_text("mine")
    wrong(run("search", "--batch", "8", "--ranks", "nope", "--out", out))
    assert out.read_text() == "mine"
    wrong(run("search", "--batch", "8", "--out", tmp_path), "is a directory")
    wrong(run("search", "--batch", "8", "--out", tmp_path / "no" / "plan.yaml"), "no such file or directory")
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_results_are_not_written_over_inputs_nor_over_devices(
    run: Run, wrong: Wrong, plan: Path, tmp_path: Path
) -> None:
    ranks = tmp_path / "ranks.yaml"
    ranks.write_text("format: treeopt.ranks/1\nname: mine\nevidence: depth-rank\nprobabilities: [[0.5]]\n")
    before = ranks.read_text()
    wrong(run("search", "--batch", "8", "--ranks", ranks, "--out", ranks), "is an input of this command")
    assert ranks.read_text() == before
    wrong(run("export", plan, "--engine", "paths", "--batch", "1", "--out", plan), "is an input of this command")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert run("export", plan, "--engine", "paths", "--batch", "1", "--out", pipe).code == 0
    assert json.loads(os.read(reader, 1 << 16)) is not None
    os.close(reader)
    assert pipe.is_fifo()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    assert run("export", plan, "--engine", "paths", "--batch", "1", "--out", link).code == 0
    assert link.is_symlink()
    assert (tmp_path / "target.json").exists()


def test_nothing_absurd_ends_in_a_traceback(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    wrong(run("search", "--batch", str(2**64)), "out of range")
    wrong(run("search", "--batches", "9" * 5000), "is not a batch size")
    wrong(run("search", "--batch", "8", "--context", "1" + "0" * 40), "context")
    wrong(run("search", "--batch", "8", "--max-nodes", "1000000"), "--max-nodes")
    path = tmp_path / "x.yaml"
    path.write_text("[[99999999999999999999999]]")
    wrong(run("show", path), "more than 18 digits")
    path.write_text("[[9999999999]]")
    wrong(run("show", path), "rank above")
    path.write_text(
        '{"format": "treeopt.ranks/1", "name": "\\ud800", "evidence": "depth-rank", "probabilities": [[0.5]]}'
    )
    wrong(run("search", "--batch", "8", "--ranks", path), "surrogate")


def test_usage_errors_exit_with_2(run: Run) -> None:
    assert run("search").code == 2
    assert run("search", "--batch", "1", "--batches", "2").code == 2
    assert run("search", "--batch", "many").code == 2
    assert run("nonsense").code == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "error: the output cannot be written: No space left"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "error: /tmp/x: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "/etc/x"), "error: /etc/x: Permission denied"),
        (ConnectionError("no such host: hub"), "error: no such host: hub"),  # libraries raise their own as these
    ],
)
def test_errors_of_the_system_are_told_apart(
    run: Run, wrong: Wrong, monkeypatch: pytest.MonkeyPatch, error: OSError, words: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("treeopt.planner.show.read_document", fails)
    ran = run("show", "plan.yaml")
    wrong(ran, words)
    assert ("output" in ran.err) == ("output" in words)


@pytest.mark.parametrize("command", ["search", "profile", "profile fit", "profile table"])
def test_every_command_says_the_same_of_drafters(run: Run, command: str) -> None:
    """And all of it is read."""
    said = " ".join(run(*command.split(), "--help").out.split())
    assert DRAFTERS in said
    model = load_model(locate("models", "llama-3.1-8b").path)
    for text in (*DRAFTERS.partition(", model:")[0].split(", "), "model:llama-3.1-8b", "pard:llama-3.1-8b"):
        assert parse_drafter(text, load_model=lambda _: model).kind == text.partition(":")[0]


def test_show_lists_the_buckets_of_a_plan(run: Run, wrong: Wrong, plan: Path) -> None:
    ran = run("show", plan)
    assert ran.code == 0
    assert "add --batch" in ran.err
    wrong(run("show", plan, "--batch", "65"), "no batch 65")


def test_show_reads_path_lists(run: Run, wrong: Wrong, tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    path.write_text("[[0], [2], [0, 0]]")
    ran = run("show", path, "--ranks", "example")
    assert ran.code == 0
    assert "rank gaps" in ran.out
    assert "0.700" in ran.out
    wrong(run("show", path, "--context", "-5"), "a context of -5 tokens")
    wrong(run("show", tmp_path), "is a directory")


def test_compare_with_nothing_a_chain_and_a_path_list(run: Run, plan: Path, tmp_path: Path) -> None:
    choices = tmp_path / "choices.json"
    choices.write_text("[[0], [1], [2]]")
    ran = run("compare", plan, "--with", "none", "--with", "chain:4", "--with", choices, "--json")
    assert ran.code == 0
    rows = json.loads(ran.out)["comparisons"]
    assert len(rows) == 3 * len(yaml.safe_load(plan.read_text())["buckets"])
    assert {r["verdict"] for r in rows if r["rival"] == "none"} == {"better"}
    assert next(r["other"]["acceptance_length"]["value"] for r in rows if r["rival"] == "chain:4") == pytest.approx(
        2.7731
    )
    assert {r["unmeasured_nodes"] for r in rows if r["rival"] == "choices.json"} == {1}
    table = run("compare", plan, "--with", choices)
    assert "no interval" in table.out  # these ranks are rates without documents
    assert "better" not in table.out
    assert "beyond the measured" in table.err


def test_a_plan_ties_with_itself(run: Run, plan: Path) -> None:
    rows = json.loads(run("compare", plan, "--with", plan, "--json").out)["comparisons"]
    assert {r["verdict"] for r in rows} == {"tie"}


@pytest.mark.parametrize("rival", ["chain:x", "chain:-1", "chain:99999999", "sglang:3,4,999", "nofile.json"])
def test_rivals_that_are_none(run: Run, wrong: Wrong, plan: Path, rival: str) -> None:
    wrong(run("compare", plan, "--with", rival), rival)


def test_export_writes_the_path_list(run: Run, wrong: Wrong, plan: Path, tmp_path: Path) -> None:
    ran = run("export", plan, "--engine", "paths", "--batch", "64")
    bucket = next(b for b in yaml.safe_load(plan.read_text())["buckets"] if b["batch"]["max"] == 64)
    assert json.loads(ran.out) == bucket["paths"]
    out = tmp_path / "choices.json"
    assert run("export", plan, "--engine", "paths", "--batch", "64", "--out", out).code == 0
    assert out.read_text() == ran.out
    wrong(run("export", plan, "--engine", "paths"), "add --batch")
    wrong(run("export", plan, "--engine", "vlm"), "unknown engine")
    wrong(run("export", tmp_path / "none.yaml", "--engine", "paths"), "no such file")


def test_search_loads_neither_torch_nor_scipy() -> None:
    code = (
        "import sys; sys.argv = ['treeopt', 'search', '--batch', '32', '--json']\n"
        "from treeopt.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'torch', 'triton', 'scipy', 'numpy.ma', 'difflib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
