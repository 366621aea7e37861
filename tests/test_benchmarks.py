"""The scripts as the README gives them: from the clone's root, without a search path, data absent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from holdout import covers
from speed import line

from treeopt.acceptance.intervals import Interval

ROOT = Path(__file__).resolve().parents[1]


def ran(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # the package, as if it were installed
    command = [sys.executable, f"benchmarks/{script}", str(folder)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("script", "missing", "source"),
    [
        ("published_sweeps.py", "measured/vllm_step_ms_by_batch_k.csv", "vLLM PR #32374"),
        ("published_verdicts.py", "measured/specbundle_sglang.csv", "published speedups"),
        ("published_speedups.py", "measured/specbundle_sglang.csv", "published speedups"),
        ("served_time.py", "measured/aic_silicon_tpot.csv", "aiconfigurator-core (PyPI"),
        ("published_steps.py", "measured/vllm_step_ms_by_batch_k.csv", "vLLM PR #32374"),
        ("fits.py", "gemm/aic_gemm_bf16.csv", "aiconfigurator-core 0.12.0 (PyPI, Apache-2.0)"),
        ("regret.py", "gemm/aic_gemm_bf16.csv", "aiconfigurator-core 0.12.0 (PyPI, Apache-2.0)"),
        ("drafters.py", "drafters/acceptance.csv", "29 public sources"),
        ("holdout.py", "", "profiles/ranks/README.md"),
    ],
)
def test_data_that_is_absent_is_named(script: str, missing: str, source: str, tmp_path: Path) -> None:
    done = ran(script, tmp_path)
    assert done.returncode == 1
    assert str(tmp_path / missing) in done.stderr
    assert source in done.stderr
    assert "Traceback" not in done.stderr


def test_both_sides_of_a_judgement_carry_their_own_error() -> None:
    # 3 above the printed number and 4 below the replay: 5 apart at most, and the other sides do not matter.
    ours, theirs = Interval(99.0, 103.0), Interval(100.9, 200.0)
    assert covers(100.0, ours, 104.9, theirs)
    assert not covers(100.0, ours, 105.1, Interval(101.1, 200.0))
    # Below: 1 and 0.5.
    assert covers(100.0, ours, 98.9, Interval(90.0, 99.4))
    assert not covers(100.0, ours, 98.8, Interval(90.0, 99.3))


def test_a_limit_that_is_missed_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    line("late", 0.176, ".3f", "s", 0.1)
    line("in time", 69.4, ".0f", "MB", 69)
    line("without a limit", 5.0, ".1f", "s")
    assert capsys.readouterr().out.splitlines() == [
        "| late | 0.1 s | 0.176 s | **no** |",
        "| in time | 69 MB | 69 MB | yes |",
        "| without a limit |  | 5.0 s |  |",
    ]
