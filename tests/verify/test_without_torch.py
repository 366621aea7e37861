"""The toy in numpy: the same logits as in torch, and `treeopt verify` where torch is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from treeopt.decode.toy import ToyShape, ToyTransformer
from treeopt.tree import DraftTree
from treeopt.verify.case import Case
from treeopt.verify.checks import check_tree, tokens_for

BUSHY = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0, 0)))
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; sys.argv[0] = 'treeopt'; from treeopt.cli import main; main()"


def test_both_libraries_compute_the_same() -> None:
    pytest.importorskip("torch")
    shape, text = ToyShape(), np.arange(20) % 32
    ours, theirs = ToyTransformer(shape, seed=3, library="numpy"), ToyTransformer(shape, seed=3)
    np.testing.assert_allclose(ours.reference(text), theirs.reference(text).numpy(), atol=1e-12)
    np.testing.assert_allclose(ours.reference(text, first=17), theirs.reference(text).numpy()[17:], atol=1e-12)


def test_every_check_runs_in_numpy() -> None:
    model, rng = ToyTransformer(library="numpy"), np.random.default_rng(0)
    case = Case(model=model, tree=BUSHY, prefix=rng.integers(0, 32, 7), tokens=tokens_for(BUSHY, 32, rng))
    checks = check_tree(case)
    assert [check.name for check in checks if not check.passed] == []
    assert max(check.worst for check in checks) < 1e-12


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`treeopt` in a process that cannot import torch."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_verify_needs_no_torch_for_the_toy(tmp_path: Path) -> None:
    (tmp_path / "tree.json").write_text("[[0], [1], [0, 0]]")
    found = run(tmp_path, "verify", "tree.json", "--json")
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["passed"]
    assert document["attention"] == "numpy, under the step mask"
    assert [library.partition(" ")[0] for library in document["libraries"]] == ["numpy"]
    shown = run(tmp_path, "show", "tree.json")
    assert shown.returncode == 0
    assert "4 nodes, depth 2" in shown.stdout


@pytest.mark.parametrize("asked", [("--attention", "triton"), ("--dtype", "bfloat16"), ("--device", "cuda")])
def test_what_needs_torch_says_how_to_install_it(asked: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "tree.json").write_text("[[0], [1], [0, 0]]")
    found = run(tmp_path, "verify", "tree.json", *asked)
    assert found.returncode == 1
    assert "error: torch is not installed" in found.stderr
    assert "[gpu]'" in found.stderr
