from __future__ import annotations

import pytest

from treeopt.cli import console


def test_a_pipe_has_the_width_of_a_wide_table_unless_columns_says_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.text import Text

    for columns, width in (("", 160), ("80", 80), ("100", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        assert console.width() == width
        console.result(Text("word " * 60))
        longest = max(len(line.rstrip()) for line in capsys.readouterr().out.splitlines())
        assert width - 5 <= longest <= width


def test_an_interruption_says_what_is_kept_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), console.if_interrupted(lambda: "half of it is kept"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "note: interrupted: half of it is kept\n"
