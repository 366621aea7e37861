"""`treeopt profile fit`: from rows to a profile that `search` prices with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from timing_rows import TOKENS, decode_lines, gemm_lines, gemm_time_s, write_gemm

from treeopt.cost import Dtype, load_hardware
from treeopt.cost.kernels.gemm import Gemm
from treeopt.cost.kernels.times import KernelTimes

GIVEN = ("--name", "toy", "--datasheet", "h100-sxm", "--date", "2026-01-02")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_gemm(tmp_path)


def test_a_profile_is_written_and_priced_with(run, rows: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    decode = tmp_path / "decode.csv"
    decode.write_text("\n".join(decode_lines()) + "\n")
    out = tmp_path / "toy.yaml"
    ran = run("profile", "fit", "--rows", rows, decode, *GIVEN, "--out", out)
    assert ran.code == 0, ran
    assert "gemm bf16" in ran.out
    assert "t0+smooth-max" in ran.out
    assert "2.50" in ran.out  # TB/s
    hardware = load_hardware(out)
    assert (hardware.source, hardware.memory_bytes, hardware.device) == ("measured", 80e9, "NVIDIA H100 SXM 80 GB")
    assert hardware.measurement is not None
    assert (hardware.measurement.engine, hardware.measurement.date) == ("engine-1", "2026-01-02")
    assert hardware.sources["launch_s"] == "fitted: engine-1 GEMM rows of own measurement"
    times = hardware.kernel_times()
    assert isinstance(times, KernelTimes)
    found = times.gemm_s(np.array(TOKENS, dtype=float), Gemm(8192, 6144), Dtype.BF16)
    assert found.tolist() == pytest.approx([gemm_time_s(m, 8192, 6144) for m in TOKENS], rel=1e-3)
    searched = run("search", "--batch", "4", "--ranks", "example", "--hardware", out, "--json")
    assert searched.code == 0, searched
    assert json.loads(searched.out)["sources"]["hardware"]["source"] == "measured"


def test_the_same_rows_give_the_same_bytes(run, rows: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        out = tmp_path / name / "toy.yaml"
        assert run("profile", "fit", "--rows", rows, *GIVEN, "--out", out).code == 0
        files.append({path.name: path.read_bytes() for path in out.parent.iterdir()})
    assert files[0] == files[1]


def test_json_says_what_was_tried(run, rows: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    ran = run("profile", "fit", "--rows", rows, *GIVEN, "--processors", "8", "--out", tmp_path / "t.yaml", "--json")
    document = json.loads(ran.out)
    assert document["format"] == "treeopt.fit/2"
    (family,) = document["families"]
    assert {trial["form"] for trial in family["trials"]} == {"datasheet", "t0+max", "t0+smooth-max", "t0+tiles"}
    assert family["fit"]["rows"] == len(gemm_lines()) - 1


def test_rows_of_two_engines_are_not_one(run, wrong, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    lines = gemm_lines()
    both = tmp_path / "both.csv"
    both.write_text("\n".join([*lines, *(line.replace("engine-1", "engine-2") for line in lines[1:])]) + "\n")
    out = tmp_path / "toy.yaml"
    wrong(
        run("profile", "fit", "--rows", both, *GIVEN, "--out", out),
        "rows of several values of engine: engine-1, engine-2",
        "--select engine=engine-1",
    )
    assert not out.exists()
    ran = run("profile", "fit", "--rows", both, "--select", "engine=engine-2", *GIVEN, "--out", out)
    assert ran.code == 0
    assert "engine: engine-2" in out.read_text()


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("--select", "engine=engine-9"), ("unknown engine in the rows 'engine-9'",)),
        (("--select", "engine"), ("'engine' selects nothing",)),
        (("--datasheet", "h100-smx"), ("unknown hardware profile 'h100-smx'", "did you mean h100-sxm")),
    ],
)
def test_wrong_options(run, wrong, rows: Path, tmp_path: Path, extra: tuple[str, ...], words: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "toy.yaml"
    wrong(run("profile", "fit", "--rows", rows, *GIVEN, *extra, "--out", out), *words)
    assert not out.exists()


def test_memory_and_links_must_come_from_somewhere(run, wrong, rows: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    given = ("--rows", rows, "--name", "toy", "--out", tmp_path / "toy.yaml")
    wrong(run("profile", "fit", *given), "how much memory", "--datasheet NAME")
    ran = run("profile", "fit", *given, "--device", "a GPU", "--memory-gb", "24", "--link-gb-s", "32")
    assert ran.code == 0, ran
    hardware = load_hardware(tmp_path / "toy.yaml")
    assert (hardware.device, hardware.memory_bytes, hardware.link_bandwidth_bytes_per_s) == ("a GPU", 24e9, 32e9)


def test_never_over_the_rows(run, wrong, rows: Path) -> None:  # type: ignore[no-untyped-def]
    wrong(run("profile", "fit", "--rows", rows, *GIVEN, "--out", rows), "is an input of this command")


def test_a_curve_file_of_another_profile_is_refused(run, rows: Path, tmp_path: Path, wrong) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "toy.yaml"
    assert run("profile", "fit", "--rows", rows, *GIVEN, "--out", out).code == 0
    (curves,) = tmp_path.glob("toy-*.npz")
    curves.write_bytes(curves.read_bytes() + b"x")
    ran = run("search", "--batch", "1", "--ranks", "example", "--hardware", out)
    wrong(ran, f"rows.sha256: {curves.name} is another file than this profile's")
    curves.unlink()
    wrong(run("search", "--batch", "1", "--ranks", "example", "--hardware", out), f"{curves.name}: no such file")


def test_times_in_another_unit_are_told_by_the_data_sheet(run, rows: Path, tmp_path: Path, wrong) -> None:  # type: ignore[no-untyped-def]
    header, *lines = rows.read_text().splitlines()
    given = [line.rpartition(",") for line in lines]
    rows.write_text("\n".join([header, *(f"{sizes},{float(time) / 1000!r}" for sizes, _, time in given)]) + "\n")
    out = tmp_path / "toy.yaml"
    wrong(
        run("profile", "fit", "--rows", rows, *GIVEN, "--out", out), "TB/s, beside 3.35 TB/s of h100-sxm", "latency_us"
    )
    own = ("--device", "mine", "--memory-gb", "80", "--link-gb-s", "400")
    wrong(run("profile", "fit", "--rows", rows, *own, "--out", out), "TB/s, no GPU has")
    assert not out.exists()


@pytest.mark.parametrize("value", ["-5", "0"])
def test_memory_and_links_are_above_0(value: str, run, rows: Path, tmp_path: Path, wrong) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "toy.yaml"
    for given in (("--memory-gb", value, "--link-gb-s", "400"), ("--memory-gb", "80", "--link-gb-s", value)):
        wrong(run("profile", "fit", "--rows", rows, "--device", "mine", *given, "--out", out), "give a number above 0")
    assert not out.exists()


def test_a_profile_is_not_named_as_its_curves(run, rows: Path, tmp_path: Path, wrong) -> None:  # type: ignore[no-untyped-def]
    wrong(run("profile", "fit", "--rows", rows, *GIVEN, "--out", tmp_path / "toy.npz"), "name the profile .yaml")
    assert not (tmp_path / "toy.npz").exists()


def test_dates_are_dates(run, rows: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    given = ("--datasheet", "h100-sxm", "--date", "2026-99-99", "--out", tmp_path / "toy.yaml")
    assert run("profile", "fit", "--rows", rows, *given).code == 2


def test_the_tables_fit_80_columns(run, rows: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    decode = tmp_path / "decode.csv"
    decode.write_text("\n".join(decode_lines()) + "\n")
    ran = run("profile", "fit", "--rows", rows, decode, *GIVEN, "--processors", "8", "--out", tmp_path / "toy.yaml")
    assert max(map(len, ran.out.splitlines())) <= 80
