"""`report`, `search --report` and `--plot`: what is written, and what is refused before the work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

INPUTS = Path(__file__).parents[1] / "golden" / "inputs"


def test_a_plan_becomes_a_page(run: Run, plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    ran = run("report", plan, "--out", out, "--with", "chain:2")
    assert ran.code == 0
    assert ran.out.startswith("Batch 1")
    assert out.read_text().startswith("<!doctype html>")
    assert json.loads(run("report", plan, "--out", out, "--json").out)["format"] == "treeopt.report/1"


def test_a_search_writes_its_page_beside_its_answer(run: Run, tmp_path: Path) -> None:
    out, plan = tmp_path / "page.html", tmp_path / "plan.yaml"
    with_page = run("search", "--batch", "8", "--ranks", "example", "--report", out, "--out", plan)
    without = run("search", "--batch", "8", "--ranks", "example", "--out", tmp_path / "again.yaml")
    assert with_page.out == without.out
    assert plan.read_bytes() == (tmp_path / "again.yaml").read_bytes()
    assert "<!doctype html>" in out.read_text()


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_single_pictures_are_written(run: Run, plan: Path, tmp_path: Path, suffix: str) -> None:
    begins = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    out = tmp_path / f"picture.{suffix}"
    rows = ("--rows", INPUTS / "gemm.csv", "--name", "toy", "--datasheet", "h100-sxm", "--out", tmp_path / "toy.yaml")
    commands = [("show", plan), ("show", plan, "--batch", "8"), ("compare", plan, "--with", "none")]
    for command in [*commands, ("profile", "fit", *rows)] if suffix == "svg" else commands[1:2]:
        assert run(*command, "--plot", out).code == 0, command
        assert out.read_bytes().startswith(begins)
        out.unlink()


def test_a_name_that_is_none_of_a_picture_is_refused(
    run: Run, plan: Path, tmp_path: Path, wrong: Callable[..., None]
) -> None:
    wrong(run("show", plan, "--plot", tmp_path / "a.jpeg"), "a.jpeg", ".svg")
    wrong(run("compare", plan, "--with", "none", "--plot", tmp_path / "no" / "a.svg"), "no")
    wrong(run("report", plan, "--out", plan), "input of this command")


def test_without_the_library_it_says_which_extra(
    run: Run, plan: Path, tmp_path: Path, wrong: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    wrong(run("report", plan, "--out", tmp_path / "a.html"), "matplotlib", "[report]")
    wrong(run("search", "--batch", "8", "--report", tmp_path / "a.html"), "matplotlib", "[report]")
    wrong(run("show", plan, "--plot", tmp_path / "a.svg"), "matplotlib", "[report]")
    assert not list(tmp_path.glob("a.*"))
