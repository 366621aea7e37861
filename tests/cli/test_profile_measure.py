"""`treeopt profile --out`: real timing on this machine's processor, whose speed no test judges."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_device import CONFIG

from treeopt.cost import load_hardware

pytest.importorskip("torch")

SMALL = ("--max-tokens", "8", "--max-context", "512", "--threads", "1", "--device", "cpu")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "toy.json"
    path.write_text(CONFIG)
    return path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven calls of each kernel, and small ceilings."""
    from treeopt.profile import grid, timer

    monkeypatch.setattr(timer, "REPEAT_S", 0.0)
    monkeypatch.setitem(grid._MATMUL, "cpu", 256)
    monkeypatch.setitem(grid._COPY_BYTES, "cpu", 1 << 24)


def test_a_profile_that_search_prices_with(run, tmp_path: Path, model: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "mine.yaml"
    ran = run("profile", "--out", out, "--model", model, *SMALL, "--seed", "3")
    assert ran.code == 0, ran
    for word in ("ceilings: copy", "gemm fp32", "attention fp32", "stream fp32", "held out", "over the floor"):
        assert word in ran.out
    for word in ("compaction", "norm", "rope", "sampling"):
        assert re.search(rf"^{word} +\d+ .*its price as a stream", ran.out, re.MULTILINE), word
    (curves,) = tmp_path.glob("mine-*.npz")
    assert f"wrote {out}, {curves.name} and mine.rows.jsonl" in ran.err
    hardware = load_hardware(out)
    assert hardware.source == "measured"
    assert "1 thread" in hardware.device
    assert hardware.measurement is not None
    assert hardware.measurement.engine.startswith("torch-")
    assert "--seed 3" in hardware.measurement.command
    searched = run(
        *("search", "--batch", "2", "--ranks", "example", "--hardware", out, "--model", model),
        *("--dtype", "fp32", "--context", "256", "--max-nodes", "4", "--json"),
    )
    assert searched.code == 0, searched
    plan = json.loads(searched.out)
    assert plan["sources"]["hardware"]["source"] == "measured"
    assert plan["sources"]["model"]["dtype"] == "fp32"
    # Everything is in the file: the same command only fits again, and says the same.
    again = run("profile", "--out", out, "--model", model, *SMALL, "--json")
    document = json.loads(again.out)
    assert document["format"] == "treeopt.profile/3"
    assert f"has {len(document['times'])} of these points already" in again.err
    lines = (tmp_path / "mine.rows.jsonl").read_text().splitlines()
    assert len(lines) in (len(document["times"]) + 1, len(document["times"]) + 2)  # and the ceilings
    assert {fit["family"] for fit in document["families"]} == {"gemm", "attention", "stream"}
    assert all(point["over_floor"] > 0 for point in document["times"])


def test_a_dry_run_writes_nothing(run, tmp_path: Path, model: Path) -> None:  # type: ignore[no-untyped-def]
    ran = run("profile", "--out", tmp_path / "mine.yaml", "--model", model, *SMALL, "--dry-run")
    assert ran.code == 0, ran
    assert "gemm 512 x 64" in ran.out
    assert "tree attention 4/2 heads of 32, B 4" in ran.out
    assert list(tmp_path.iterdir()) == [model]
    document = json.loads(run("profile", "--model", model, *SMALL, "--dry-run", "--json").out)
    assert document["format"] == "treeopt.profile-dry-run/1"
    assert f"{len(document['points'])} points, about" in ran.out
    assert min(document["floors_s"]) > 0


def test_no_time_is_no_profile_but_keeps_the_rows(run, wrong, tmp_path: Path, model: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "mine.yaml"
    ran = run("profile", "--out", out, "--model", model, *SMALL, "--budget-s", "1")
    assert ran.code == 1
    assert "note: the time allows about 0 of" in ran.err
    assert "too few to fit" in ran.err
    assert "run again with more time" in ran.err
    assert not out.exists()
    assert len((tmp_path / "mine.rows.jsonl").read_text().splitlines()) == 2  # the ceilings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "tpu"), ("unknown device 'tpu'", "known: cpu, cuda")),
        (("--dtype", "int4"), ("int4 kernels are not timed", "bf16, fp16, fp32, fp8")),
        (("--dtype", "fp12"), ("unknown dtype 'fp12'",)),
        (("--model", "nobody"), ("unknown model 'nobody'",)),
        (("--rows", "rows.csv"), ("rows.csv: timing rows go to a .jsonl file",)),
        (("--tp", "3"), ("do not share out over tp=3",)),
    ],
)
def test_wrong_options(  # type: ignore[no-untyped-def]
    run, wrong, tmp_path: Path, model: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    out = tmp_path / "mine.yaml"
    wrong(run("profile", "--out", out, "--model", model, *SMALL, *options), *words)
    assert list(tmp_path.iterdir()) == [model]


def test_where_the_files_go(run, wrong, tmp_path: Path, model: Path) -> None:  # type: ignore[no-untyped-def]
    wrong(run("profile", "--out", tmp_path / "no" / "mine.yaml", *SMALL), "no: no such file or directory")
    wrong(run("profile", "--out", model, "--model", model, *SMALL), "is an input of this command")
    missing = run("profile", "--seed", "1")
    assert (missing.code, missing.out) == (2, "")
    assert "give --out FILE, or a command" in missing.err


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU")
def test_no_gpu(run, wrong, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    wrong(run("profile", "--out", tmp_path / "mine.yaml", "--device", "cuda"), "torch finds no CUDA device")


def test_an_interrupted_run_says_what_is_kept(  # type: ignore[no-untyped-def]
    run, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from treeopt.profile import measure

    def two(left, *args, **options):  # type: ignore[no-untyped-def]
        for i, done in enumerate(timed(left, *args, **options)):
            if i == 2:
                raise KeyboardInterrupt
            yield done

    timed = measure.timed
    monkeypatch.setattr(measure, "timed", two)
    out = tmp_path / "mine.yaml"
    ran = run("profile", "--out", out, "--model", model, *SMALL)
    assert ran.code == 130
    rows = tmp_path / "mine.rows.jsonl"
    assert f"note: interrupted: {rows} keeps what was timed; the same command goes on from there" in ran.err
    assert rows.exists()
    rows.unlink()
    monkeypatch.setattr(measure, "timed", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert "interrupted: nothing was timed yet" in run("profile", "--out", out, "--model", model, *SMALL).err


def test_a_killed_run_goes_on(run, tmp_path: Path, model: Path) -> None:  # type: ignore[no-untyped-def]
    out, rows = tmp_path / "mine.yaml", tmp_path / "mine.rows.jsonl"
    options = ["profile", "--out", str(out), "--model", str(model), *SMALL]
    code = (
        "import sys; from treeopt.profile import grid; grid._MATMUL['cpu'] = 256; grid._COPY_BYTES['cpu'] = 1 << 24; "
        "from treeopt.cli import main; sys.argv = ['treeopt', *sys.argv[1:]]; main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *options], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while (not rows.exists() or rows.read_text().count("\n") < 6) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    before = rows.read_text()
    assert before.count("\n") >= 6
    assert not out.exists()
    rows.write_text(before + '{"operator": "gem')  # what the kill may leave
    ran = run(*options)
    assert ran.code == 0, ran
    assert " of these points already" in ran.err
    assert rows.read_text().startswith(before + '{"operator": "')  # only added to
    assert load_hardware(out).source == "measured"


def test_a_point_that_fails_is_left_out_and_the_rest_fitted(  # type: ignore[no-untyped-def]
    run, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from treeopt.profile import measure

    real = measure.workload

    def failing(point, pool, *, cold):  # type: ignore[no-untyped-def]
        if point.operator == "stream" and point.traffic_bytes in (4096, 8192):
            raise MemoryError("2.00 GiB are not there")
        return real(point, pool, cold=cold)

    monkeypatch.setattr(measure, "workload", failing)
    out = tmp_path / "mine.yaml"
    ran = run("profile", "--out", out, "--model", model, *SMALL)
    assert ran.code == 3, ran
    assert "note: timing " in ran.err
    assert "more: MemoryError: 2.00 GiB are not there" in ran.err
    assert f"points failed; without its line in {tmp_path / 'mine.rows.failed.jsonl'} a point is tried again" in ran.err
    assert load_hardware(out).source == "measured"
    rows = (tmp_path / "mine.rows.jsonl").read_text()
    again = run("profile", "--out", out, "--model", model, *SMALL)  # they are not tried again, and still told
    assert again.code == 3
    assert "more: MemoryError" in again.err
    assert (tmp_path / "mine.rows.jsonl").read_text() == rows
