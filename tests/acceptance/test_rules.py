"""One list of rules: what a profile may name is what a plan may be for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from treeopt.acceptance.loading import load_profile
from treeopt.errors import FileFormatError
from treeopt.plan.reading import load_plan
from treeopt.planner.inputs import load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.solve.problem import Problem


def profile(folder: Path, rule: str) -> Path:
    path = folder / f"{rule}.yaml"
    path.write_text(
        "format: treeopt.ranks/1\nname: p\nevidence: depth-rank\nprobabilities: [[0.6, 0.1]]\n"
        f"conditions:\n  temperature: 1\n  rule: {rule}\n"
    )
    return path


@pytest.mark.parametrize(
    ("rule", "exact"),
    [
        ("greedy", True),
        ("target-sample", True),
        ("recursive-rejection", True),
        ("recursive-rejection-with-replacement", True),
        ("block", True),
        ("typical", False),
    ],
)
def test_a_plan_for_any_rule_can_be_read_again(tmp_path: Path, rule: str, exact: bool) -> None:
    inputs = load_inputs(Names(ranks=str(profile(tmp_path, rule))))
    plan = make_plan(Problem(batches=(1,)), inputs, command="x")
    assert plan.document()["verification"] == {"rule": rule, "exact": exact, "temperature": None}
    assert any("acceptance changes what the model says" in note.text for note in plan.notes) is not exact
    plan.save(tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml").verification.rule == rule


def test_a_profile_of_an_unknown_rule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FileFormatError, match=r"rejection\.yaml:7: conditions\.rule: unknown rule 'rejection'"
    ) as caught:
        load_profile(profile(tmp_path, "rejection"))
    assert "recursive-rejection-with-replacement, block, typical" in caught.value.hint


def test_a_trace_of_an_unknown_rule_is_refused(tmp_path: Path) -> None:
    arrays = {"rank": np.zeros((4, 2), dtype=np.int16), "doc_id": np.zeros(4, dtype=np.int64), "pos": np.arange(4)}
    np.savez(tmp_path / "t.npz", **arrays, conditions=json.dumps({"rule": "rejection"}))
    with pytest.raises(FileFormatError, match=r"t\.npz, its conditions:1: rule: unknown rule 'rejection'"):
        load_profile(tmp_path / "t.npz")
