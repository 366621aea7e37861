from __future__ import annotations

from pathlib import Path

import pytest

from treeopt.collect.prompts import read_prompts
from treeopt.errors import FileFormatError, InputError


def write(folder: Path, text: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text(text)
    return path


def test_reads_text_chats_and_tokens(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"prompt": "Hello", "category": "x"}\n\n{"messages": [{"role": "user", "content": "Hi"}]}\n'
        '{"token_ids": [3, 1], "doc_id": 70}\n',
    )
    found = read_prompts(path)
    assert [p.content for p in found] == ["Hello", ({"role": "user", "content": "Hi"},), (3, 1)]
    assert [p.doc_id for p in found] == [0, 1, 70]
    assert [p.where for p in found] == [f"{path}:1", f"{path}:3", f"{path}:4"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "found none of them"),
        ('{"text": "x"}', "found none of them"),
        ('{"prompt": "x", "token_ids": [1]}', "found prompt and token_ids"),
        ('{"prompt": ""}', "prompt is empty"),
        ('{"prompt": 3}', "prompt is empty or of the wrong kind"),
        ('{"messages": ["x"]}', "messages is empty or of the wrong kind"),
        ('{"token_ids": []}', "token_ids is empty"),
        ('{"token_ids": [1, -1]}', "token_ids is empty or of the wrong kind"),
        ('{"token_ids": [true]}', "token_ids is empty or of the wrong kind"),
        ('{"prompt": "x", "doc_id": "a"}', "doc_id is 'a'"),
        ('{"prompt": "x", "doc_id": -1}', "doc_id is -1"),
        ('{"prompt": "x", "doc_id": 0}', "document 0 is at"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, '{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(FileFormatError, match=message) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert caught.value.hint


def test_an_empty_file_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no prompts"):
        read_prompts(write(tmp_path, "\n\n"))
    with pytest.raises(InputError, match="no such file"):
        read_prompts(tmp_path / "missing.jsonl")
