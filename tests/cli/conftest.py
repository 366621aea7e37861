from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from treeopt.cli import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `treeopt ARGS` in this process."""

    monkeypatch.delenv("COLUMNS", raising=False)  # parallel workers have one

    def call(*args: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["treeopt", *map(str, args)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        return Ran(code, *capsys.readouterr())

    return call


@pytest.fixture
def wrong() -> Callable[..., None]:
    """Exit 1, nothing on stdout, one error line and one hint line that say all the words."""

    def check(ran: Ran, *words: str) -> None:
        assert ran.code == 1, ran
        assert ran.out == ""
        lines = ran.err.splitlines()
        assert [line.split(":")[0] for line in lines] == ["error", "hint"], ran.err
        for word in words:
            assert word in ran.err

    return check


@pytest.fixture
def plan(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    assert run("search", "--batches", "1,8,64", "--ranks", "example", "--out", path).code == 0
    return path
