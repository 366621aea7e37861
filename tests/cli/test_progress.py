from __future__ import annotations

import pytest

from treeopt.cli import progress
from treeopt.cli.progress import progress as told


def test_the_last_line_counts_all(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((0.0, 4.0, 12.0, 30.0, 31.0))
    with monkeypatch.context() as patch:
        patch.setattr(progress.time, "monotonic", lambda: next(seconds))
        with told("timed", 3, "points", total=9.0) as advance:
            for _ in range(3):
                advance(3.0, 1)
    assert capsys.readouterr().err.splitlines() == [
        "timed 2 of 3 points, about 6 s left",  # 3 of 9 are left after 12 s
        "timed 3 of 3 points in 31 s",
    ]
    with told("timed", 3, "points", total=9.0) as advance:
        advance(3.0, 1)
    assert capsys.readouterr().err == ""  # a short run says nothing


def test_a_log_is_told_that_the_work_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model is loaded for minutes before the first document, and one document may take as long."""
    seconds = iter((0.0, 29.0, 31.0, 40.0, 50.0, 85.0, 90.0))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))
    with progress._Lines("collected", 2, "documents", 2.0) as lines:
        lines.quiet()  # 29 s
        lines.quiet()
        lines.quiet()  # 9 s after a line
        lines.advance(1.0, 1)
        lines.quiet()
    assert capsys.readouterr().err.splitlines() == [
        "collected 0 of 2 documents after 31 s",
        "collected 1 of 2 documents, about 50 s left",
        "collected 1 of 2 documents, about 85 s left",
        "collected 1 of 2 documents in 90 s",
    ]
