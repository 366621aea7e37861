"""examples/profile_gpu.py runs to its end without a GPU, and says so."""

from __future__ import annotations

import importlib
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from treeopt.cost import load_hardware

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "profile_gpu.py"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from treeopt.profile import grid, timer

    monkeypatch.setattr(timer, "REPEAT_S", 0.0)
    monkeypatch.setitem(grid._MATMUL, "cpu", 256)
    monkeypatch.setitem(grid._COPY_BYTES, "cpu", 1 << 24)
    monkeypatch.setattr(grid, "STREAM_BYTES", tuple(1 << k for k in range(10, 23)))


@pytest.mark.filterwarnings("ignore")  # FlexAttention without a compiler, Triton's interpreter
def test_it_runs_to_the_end(quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--device", "cpu", "--out", str(tmp_path / "results")])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert stop.value.code in (0, None)
    result = json.loads((tmp_path / "results" / "results.json").read_text())
    assert [row for row in result["checks"] if not row["passed"]] == []
    assert [row for row in result["attention"] if "failed" in row] == []
    assert {row["method"] for row in result["attention"]} == {
        "torch reference",
        "the same, pages of 16",
        "the same, no pages",
        "sdpa, mask",
        "sdpa, mask, KV repeated",
        "sdpa, chain only",
        "flex",
    }
    assert (result["verdicts"], result["page"]) == ([], [])  # a processor cannot say
    assert result["patch"] == "none: no GPU was timed"
    assert [row for row in result["sweep"] if "time_s" not in row] == []
    assert "| MIN_PIECE | 256 |" in (tmp_path / "results" / "results.md").read_text()
    table = (tmp_path / "results" / "results.md").read_text()
    assert "CPU ONLY" in table
    assert "tree attention" not in table.split("| attention, one layer")[1]  # the kernel was not timed
    hardware = load_hardware(tmp_path / "results" / "profile.yaml")
    assert hardware.source == "measured"
    assert "thread" in hardware.device


def part(name: str) -> Any:
    """A part of the program."""
    if str(EXAMPLE.parent) not in sys.path:
        sys.path.insert(0, str(EXAMPLE.parent))
    return importlib.import_module(f"on_gpu.{name}")


def test_verdicts_by_hand() -> None:
    cases, report = part("cases"), part("report")

    def row(case: object, method: str, time_s: float, of_copy: float, of_product: float) -> dict[str, object]:
        shares = {"of_copy": of_copy, "of_product": of_product}
        return {"case": str(case), **case._asdict(), "method": method, "time_s": time_s, **shares}  # type: ignore[attr-defined]

    long, wide = cases.Case(16, 16, 8192), cases.Case(16, 64, 2048)
    rows = [
        row(long, "tree attention", 1.0, 0.81, 0.2),
        row(long, "sdpa, mask", 0.9, 0.9, 0.2),
        row(long, "flex", 1.5, 0.5, 0.1),
        {"case": str(long), "method": "sdpa, chain only", "failed": "no"},
        row(wide, "tree attention", 1.0, 0.3, 0.5),
        row(cases.Case(1, 4, 100), "sdpa, mask", 1.0, 0.1, 0.1),
    ]
    assert [holds for _, holds in report.verdicts(rows)] == [True, False, True, False]


def test_the_constant_with_the_least_time_over_whole_cases() -> None:
    module = part("sweep")

    def row(value: int, case: str, time_s: float | None) -> dict[str, object]:
        found: dict[str, object] = {"constant": "MIN_PIECE", "value": value, "case": case}
        return found | ({"failed": "no"} if time_s is None else {"time_s": time_s})

    rows = [row(128, "a", 1.0), row(256, "a", 1.2), row(128, "b", 2.0), row(256, "b", 1.0)]
    assert module.best_constants(rows) == {"MIN_PIECE": 256}  # 1 + 1 against 1.2 + 0.5 of the first value's time
    rows += [row(128, "c", 9.0), row(256, "c", None)]
    assert module.best_constants(rows) == {"MIN_PIECE": 256}
    assert module.best_constants(rows[-1:]) == {}


def test_every_way_to_read_a_cache_is_checked_on_a_gpu() -> None:
    found = part("checks").checks("cuda")
    assert {check.page_size for check in found if check.case is not None} == {0, 16, 64}
    assert {check.dtype for check in found} == {"bf16", "fp16", "fp32"}
    assert len({check.name + check.dtype for check in found}) == len(found)


def test_what_measured_best_is_a_patch_that_applies(tmp_path: Path) -> None:
    """A constant of the schedule, a tile, and the chip's memory rate: put in by patch(1), all else as it was."""
    sweep, root = part("sweep"), EXAMPLE.parents[1]
    best = {"MIN_PIECE": 256, "EFFICIENCY": 0.46, "tile of 64 rows": "64, 64, 4, 3, 1, 32"}
    best["tile of 128 rows"] = "128, 64, 8, 2, 1, 16"
    (tmp_path / "kernels").mkdir()
    for name in ("slicing.py", "config.py", "chip.py"):
        (tmp_path / "kernels" / name).write_text((root / "kernels" / name).read_text())
    text = sweep.patch(best, "sm_90", 2400, root=tmp_path)
    done = subprocess.run(["patch", "-p1"], input=text, text=True, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    changed = {}
    for name in ("slicing.py", "config.py", "chip.py"):
        before, after = ((folder / "kernels" / name).read_text().splitlines() for folder in (root, tmp_path))
        changed[name] = [new.strip() for old, new in zip(before, after, strict=True) if old != new]
    assert [line.partition("  #")[0] for line in changed["slicing.py"]] == ["MIN_PIECE: Final = 256"]
    assert changed["config.py"] == ["_config(64, 64, 4, 3, 1),", "_config(128, 64, 8, 2, 1, tail=16),"]
    assert changed["chip.py"] == ["dram_bytes_per_clock=2400,"]
    assert sweep.patch({"MIN_PIECE": 128}, "sm_90", None) == ""


def test_tiles_are_swept_on_cases_that_take_them() -> None:
    """Each of the table's and its rivals have the rows that the case's tile has."""
    from treeopt.kernels import config

    sweep, key = part("sweep"), (config.HeadShape(128, 128), 2)
    usual = config.TABLE[key]
    settings = [found for found in sweep.settings("cuda", key) if found.constant.startswith("tile")]
    assert {found.constant for found in settings} == {f"tile of {rows} rows" for rows in (16, 64, 128)}
    try:
        for found in settings:
            found.apply()
            rows = int(found.value.split(", ")[0])
            for case in found.cases:
                line = config.attention_config(shape=key[0], element_bytes=2, rows=case.nodes * 4)
                assert line.block_m == rows
                assert str(line.block_n) == found.value.split(", ")[1]
            config.TABLE[key] = usual
    finally:
        config.TABLE[key] = usual


def test_a_verdict_for_every_line_of_the_page() -> None:
    report, cases = part("report"), part("cases")
    first = str(cases.modelled()[0])
    result = {
        "checks": [{"kernel": "tree attention B=1, pages of 64", "passed": True}],
        "attention": [{"case": first, "method": "tree attention", "time_s": 1.0}],
        "sweep": [
            {"constant": "MIN_PIECE", "value": value, "case": "a", "time_s": 1.0 / value} for value in (128, 256)
        ],
        "constants": {"MIN_PIECE": 128, "EFFICIENCY": 0.46, "tile of 64 rows": "64, 64, 4, 2, 2, 32"},
    }
    found = dict(report.page_verdicts(result))
    assert found["right against float64, pages of 64: 1 of 1"] is True
    assert found["right against float64, compaction: 0 of 0"] is None
    launches = {text: holds for text, holds in found.items() if text.startswith("launch table")}
    assert len(launches) == len(cases.modelled()) == 18
    assert [holds for text, holds in launches.items() if first + ":" in text] == [False]  # a second
    assert sum(holds is None for holds in launches.values()) == 17
    assert found["slicing.py, MIN_PIECE = 128: 256 took least time"] is False
    assert found["config.py, tile of 64 rows = 64, 64, 4, 2, 2, 32: not swept"] is None
