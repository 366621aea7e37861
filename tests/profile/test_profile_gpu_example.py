"""examples/profile_gpu.py runs to its end without a GPU, and says so."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType

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
    assert result["verdicts"] == []  # a processor cannot say
    assert [row for row in result["sweep"] if "time_s" not in row] == []
    assert "| MIN_PIECE | 256 |" in (tmp_path / "results" / "results.md").read_text()
    table = (tmp_path / "results" / "results.md").read_text()
    assert "CPU ONLY" in table
    assert "tree attention" not in table.split("| attention, one layer")[1]  # the kernel was not timed
    hardware = load_hardware(tmp_path / "results" / "profile.yaml")
    assert hardware.source == "measured"
    assert "thread" in hardware.device


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("profile_gpu", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["profile_gpu"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["profile_gpu"]
    return module


def test_verdicts_by_hand() -> None:
    module = loaded()

    def row(case: object, method: str, time_s: float, of_copy: float, of_product: float) -> dict[str, object]:
        shares = {"of_copy": of_copy, "of_product": of_product}
        return {"case": str(case), **case._asdict(), "method": method, "time_s": time_s, **shares}  # type: ignore[attr-defined]

    long, wide = module.Case(16, 16, 8192), module.Case(16, 64, 2048)
    rows = [
        row(long, "tree attention", 1.0, 0.81, 0.2),
        row(long, "sdpa, mask", 0.9, 0.9, 0.2),
        row(long, "flex", 1.5, 0.5, 0.1),
        {"case": str(long), "method": "sdpa, chain only", "failed": "no"},
        row(wide, "tree attention", 1.0, 0.3, 0.5),
        row(module.Case(1, 4, 100), "sdpa, mask", 1.0, 0.1, 0.1),
    ]
    assert [holds for _, holds in module.verdicts(rows)] == [True, False, True, False]


def test_the_constant_with_the_least_time_over_whole_cases() -> None:
    module = loaded()

    def row(value: int, case: str, time_s: float | None) -> dict[str, object]:
        found: dict[str, object] = {"constant": "MIN_PIECE", "value": value, "case": case}
        return found | ({"failed": "no"} if time_s is None else {"time_s": time_s})

    rows = [row(128, "a", 1.0), row(256, "a", 1.2), row(128, "b", 2.0), row(256, "b", 1.0)]
    assert module.best_constants(rows) == {"MIN_PIECE": 256}  # 1 + 1 against 1.2 + 0.5 of the first value's time
    rows += [row(128, "c", 9.0), row(256, "c", None)]
    assert module.best_constants(rows) == {"MIN_PIECE": 256}
    assert module.best_constants(rows[-1:]) == {}


def test_every_way_to_read_a_cache_is_checked_on_a_gpu() -> None:
    module = loaded()
    found = module.checks("cuda")
    assert {check.page_size for check in found if check.case is not None} == {0, 16, 64}
    assert {check.dtype for check in found} == {"bf16", "fp16", "fp32"}
    assert len({check.name + check.dtype for check in found}) == len(found)
