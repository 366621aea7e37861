from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from treeopt.cli.collect import collect
from treeopt.cli.command import command
from treeopt.collect import job
from treeopt.collect.record import Recorder
from treeopt.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")

app = command(collect)


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


def test_an_interrupted_run_says_what_is_kept(
    target: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, out = job.record_part, tmp_path / "t.npz"

    def second_interrupts(recorder: Recorder, part: job.Part, *given: Any) -> bytes:
        if part.index == 1:
            raise KeyboardInterrupt
        return record(recorder, part, *given)

    monkeypatch.setattr(job, "record_part", second_interrupts)
    asked = ["--target", str(target), "--draft", "ngram", "--prompts", str(prompts), "--out", str(out)]
    asked += ["--documents-per-part", "4", "--max-new-tokens", "4"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 1  # click's own; the whole command line ends with 130
    assert f"interrupted: {out}.parts keeps 1 of 3 parts; the same command goes on with the rest" in result.stderr
    assert not out.exists()
    monkeypatch.undo()
    again = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert out.exists()
    # Four tokens are written, six guessed ahead.
    assert again.stdout.splitlines()[-1].endswith(", -, -")


def test_an_exit_that_the_target_lacks_is_refused_before_its_weights_are_read(
    target: Path, prompts: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(target, bare)
    (bare / "model.safetensors").unlink()
    asked = ["--target", str(bare), "--draft", "early-exit:3", "--prompts", str(prompts)]
    with pytest.raises(InputError, match="early exit after 3 of 3 layers"):
        CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "t.npz")], catch_exceptions=False)
