from __future__ import annotations

import pytest

from treeopt.answer import Note
from treeopt.cli import console
from treeopt.engines.schedule import TreeFile
from treeopt.tree import DraftTree


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


def drawn(value: object, width: int) -> str:
    return str(value)


def test_warnings_stand_above_the_answer_and_three_notes_at_most_below(capfd: pytest.CaptureFixture[str]) -> None:
    said = [Note.note("first"), Note.warning("careful"), *(Note.note(f"gpu: {i}") for i in range(3)), "second", "third"]
    console.answer("the answer", False, drawn, [*said, Note.error("too large"), "second"], standing=("gpu: ",))
    lines = ["error: too large", "warning: careful", "note: first", "note: second", "note: third"]
    assert capfd.readouterr().err.splitlines() == lines
    console.answer("the answer", False, drawn, [*said, "fourth"], standing=("gpu: ",))
    lines = capfd.readouterr().err.splitlines()
    assert lines[-3:] == ["note: first", "note: second", "note: 5 more: add --notes"]
    console.answer("the answer", False, drawn, said, all_notes=True, standing=("gpu: ",))
    assert len(capfd.readouterr().err.splitlines()) == len(said)


def test_a_document_has_its_notes_in_itself(capfd: pytest.CaptureFixture[str]) -> None:
    console.answer(TreeFile(paths=DraftTree.chain(1)), True, drawn, ["first"])
    assert capfd.readouterr().err == ""
