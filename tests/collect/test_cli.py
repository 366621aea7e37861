from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from treeopt.cli.collect import collect

pytestmark = pytest.mark.filterwarnings("ignore")

app = typer.Typer()
app.command()(collect)


def test_collect_reports_what_it_wrote(target: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.npz"
    arguments = ["--target", str(target), "--draft", str(target), "--prompts", str(prompts), "--out", str(out)]
    options = ["--depth", "2", "--max-new-tokens", "6", "--shard", "1/2"]
    result = CliRunner().invoke(app, [*arguments, *options, "--json"], catch_exceptions=False)
    summary = json.loads(result.stdout)
    assert summary["documents"] == 5
    assert summary["top_guess_right"] == [1.0, 1.0]
    assert summary["conditions"]["rule"] == "greedy"
    assert out.exists()
    text = CliRunner().invoke(app, [*arguments, *options], catch_exceptions=False)
    assert "5 documents" in text.stdout
    assert "1.000, 1.000" in text.stdout
