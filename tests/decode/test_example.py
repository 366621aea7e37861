from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "decode_tree.py"


def test_decode_tree(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", ["decode_tree.py"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    assert "the same text in all ways: True" in out
    plain, chain, tree = (float(found) for found in re.findall(r": ([\d.]+) tokens per step", out))
    assert plain == 1.0 < chain < tree
    replayed = float(out.rsplit(maxsplit=1)[-1])
    assert replayed == pytest.approx(tree, rel=0.2)  # the run is one of the phases, and cuts trees at its end
