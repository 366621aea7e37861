"""examples/profile_gpu.py runs to its end without a GPU, and says so."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path

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
        "sdpa, mask",
        "sdpa, mask, KV repeated",
        "sdpa, chain only",
        "flex",
    }
    assert result["verdicts"] == []  # a processor cannot say
    table = (tmp_path / "results" / "results.md").read_text()
    assert "CPU ONLY" in table
    assert "tree attention" not in table.split("| attention, one layer")[1]  # the kernel was not timed
    hardware = load_hardware(tmp_path / "results" / "profile.yaml")
    assert hardware.source == "measured"
    assert "thread" in hardware.device


def test_verdicts_by_hand() -> None:
    spec = importlib.util.spec_from_file_location("profile_gpu", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["profile_gpu"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["profile_gpu"]

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
