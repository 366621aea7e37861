from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from check.logs import OFF, line_for, vllm_line
from check.simulated import metrics_of
from cli.conftest import Run
from plans import bucket_of, plan_of
from rich.console import Console

from treeopt.check.check import check_plan
from treeopt.check.matching import planned_survival
from treeopt.check.measured import Measured
from treeopt.check.report import Regret
from treeopt.plan.reading import load_plan
from treeopt.render.check import report as drift_report
from treeopt.tree import DraftTree


@pytest.fixture
def chains(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "chains.yaml"
    assert run("search", "--batch", "8", "--ranks", "example", "--max-children", "1", "--out", path).code == 0
    return path


def log(tmp_path: Path, plan: Path, factor: float) -> Path:
    (bucket,) = load_plan(plan).buckets
    path = tmp_path / f"log-{factor:g}.txt"
    path.write_text(line_for(planned_survival(bucket) * factor, 100_000) + "\n")
    return path


def test_a_plan_that_holds(run: Run, chains: Path, tmp_path: Path) -> None:
    ran = run("check", chains, "--metrics", log(tmp_path, chains, 1.0))
    assert ran.code == 0
    assert "the plan holds: no change of more than 5%" in ran.out
    assert "stable" in ran.out


def test_drift_is_exit_3(run: Run, chains: Path, tmp_path: Path) -> None:
    ran = run("check", chains, "--metrics", log(tmp_path, chains, 0.6))
    assert ran.code == 3
    assert "acceptance fell (batch 8)" in ran.out
    assert "next: collect ranks" in ran.out
    assert run("check", chains, "--metrics", log(tmp_path, chains, 0.6), "--gate", "0.9").code == 0


def test_json_has_the_numbers_of_the_table(run: Run, chains: Path, tmp_path: Path) -> None:
    ran = run("check", chains, "--metrics", log(tmp_path, chains, 0.6), "--json")
    assert ran.code == 3
    document = json.loads(ran.out)
    assert document["format"] == "treeopt.check/2"
    assert document["drifted"] is True
    (only,) = document["comparisons"]
    assert only["verdict"] == "drift"
    assert only["steps"] == 100_000
    assert only["measured_length"] < 0.95 * only["planned_length"]
    assert only["regret"]["loss"] >= 0.0
    assert [f["kind"] for f in document["findings"]] == ["acceptance fell"]


def test_not_active(run: Run, chains: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(vllm_line(100_000, tuple(np.linspace(0.9, 0.1, 12).round(3))) + "\n")
    ran = run("check", chains, "--metrics", path)
    assert ran.code == 3
    assert "plan not active (batch 8)" in ran.out
    assert "12 draft tokens per draft" in ran.out


@pytest.mark.parametrize("what", OFF)
def test_an_engine_without_speculation(run: Run, chains: Path, tmp_path: Path, what: str) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(OFF[what])
    ran = run("check", chains, "--metrics", path)
    assert ran.code == 3
    assert "plan not active (batch 8)" in ran.out
    assert "speculation is not on" in ran.err
    ran = run("ranks", "import", path)
    assert ran.code == 1
    assert f"{what} without" in ran.err
    assert "speculation is not on" in ran.err


def test_a_plan_is_no_measurement(run: Run, chains: Path) -> None:
    for command in (("ranks", "import", chains, "--draft-tokens", "3"), ("check", chains, "--metrics", chains)):
        ran = run(*command)
        assert ran.code == 1
        assert "this is a treeopt.plan/2, no measurement" in ran.err


def test_inputs_that_are_gone_leave_out_the_regret(run: Run, chains: Path, tmp_path: Path) -> None:
    chains.write_text(chains.read_text().replace("sha256: ", "sha256: 0"))
    ran = run("check", chains, "--metrics", log(tmp_path, chains, 1.0))
    assert ran.code == 0
    assert "unknown" in ran.out
    assert "what keeping the plan costs is not known" in ran.err


def test_wrong_inputs(run: Run, wrong: Callable[..., None], chains: Path, tmp_path: Path) -> None:
    wrong(run("check", chains, "--metrics", tmp_path / "none.txt"), "no such file")
    wrong(run("check", tmp_path / "none.yaml", "--metrics", log(tmp_path, chains, 1.0)), "no such file")
    wrong(run("check", chains, "--metrics", log(tmp_path, chains, 1.0), "--gate", "7"), "no share")
    wrong(run("check", chains, "--metrics", log(tmp_path, chains, 1.0), "--batch", "900"), "no batch 900")
    assert run("check", chains).code == 2


def test_every_number_is_readable_at_80_columns() -> None:
    tree = DraftTree(((0,), (1,), (0, 0), (0, 1)))
    plan = plan_of(bucket_of(tree, 129, 256, f=[1.0, 0.6, 0.2, 0.4, 0.1], half_width=0.01), documents=100)
    named = [Measured(name=f"a_server_with_a_long_name-{i}", draft_tokens=4, length=2.9, error=0.2) for i in range(2)]
    report = check_plan(plan, metrics_of(*named))
    regret = Regret(kept_tokens_per_s=90.0, best_tokens_per_s=100.0, nodes=64, depth=12)
    report = replace(report, comparisons=tuple(replace(c, regret=regret) for c in report.comparisons))
    text = io.StringIO()
    Console(file=text, width=80).print(drift_report(report, 80))
    said = text.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    for words in ("129-256", "2.30", "2.90", "+26.1%", "cannot tell", "10.0% (64 nodes)", *(m.name for m in named)):
        assert words in said
