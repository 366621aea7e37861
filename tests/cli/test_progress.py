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
