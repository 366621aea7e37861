from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import dump_yaml, parse_document, read_document

TEXT = """\
name: x
rows:
  - {a: 1, b: two}
  - a: .nan
    c: 3
"""


def document():  # type: ignore[no-untyped-def]
    return parse_document(TEXT, name="file.yaml", what="test file")


def test_values_are_read_with_their_type() -> None:
    root = document().root
    rows = list(root.get("rows").items())
    assert root.get("name").text() == "x"
    assert rows[0].get("a").integer() == 1
    assert rows[0].get("missing", 7).integer() == 7


@pytest.mark.parametrize(
    ("read", "line", "message"),
    [
        (lambda r: r.get("nothing"), 1, "'nothing' is missing"),
        (lambda r: next(r.get("rows").items()).get("b").number(), 3, r"rows\[0\].b: expected a number, found str"),
        (lambda r: list(r.get("rows").items())[1].get("a").number(), 4, "not a finite number"),
        (lambda r: list(r.get("rows").items())[1].get("c").number(high=2), 5, "3 is out of range"),
        (lambda r: list(r.get("rows").items())[1].only("a"), 5, "unknown key"),
        (lambda r: r.get("rows").text(), 2, "expected text, found list"),
        (lambda r: r.get("name").mapping(), 1, "expected a mapping"),
        (lambda r: list(r.get("name").items()), 1, "expected a list"),
        (lambda r: r.get("name").boolean(), 1, "expected true or false"),
    ],
)
def test_errors_name_file_line_and_value(read, line: int, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FileFormatError, match=message) as caught:
        read(document().root)
    assert str(caught.value).startswith(f"file.yaml:{line}: ")
    assert caught.value.hint


def test_numbers_that_yaml_reads_as_text() -> None:
    root = parse_document("a: 3e9\nb: 1.5\nc: true\n", name="f", what="test file").root
    assert root.get("a").number() == 3e9
    with pytest.raises(FileFormatError, match="not a whole number"):
        root.get("b").integer()
    with pytest.raises(FileFormatError, match="expected a number, found bool"):
        root.get("c").number()


def test_malformed_yaml_names_the_line() -> None:
    with pytest.raises(FileFormatError, match=r"f:3: not valid YAML"):
        parse_document("a: 1\nb: [1, 2\nc: 3\n", name="f", what="test file")
    with pytest.raises(FileFormatError, match=r"f:\d+: not valid YAML"):
        parse_document('{"a": 1,,}', name="f", what="test file")
    with pytest.raises(FileFormatError, match="empty"):
        parse_document("# nothing\n", name="f", what="test file")


def test_json_is_read_with_lines_too() -> None:
    root = parse_document('{\n "a": [1,\n 2, "x"]}', name="f", what="test file").root
    with pytest.raises(FileFormatError, match=r"f:3: a\[2\]: expected a number"):
        [v.number() for v in root.get("a").items()]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parsed = parse_document(text, name="f", what="test file")
        parsed.root.get("format")
    except FileFormatError:
        return


@given(st.integers(0, 3000))
def test_deep_nesting_is_refused_not_a_crash(depth: int) -> None:
    for opener in ("[", '{"a":'):
        with contextlib.suppress(FileFormatError):
            parse_document(opener * depth, name="f", what="test file")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_document(tmp_path / "none.yaml", what="plan")
    with pytest.raises(InputError, match="is a directory"):
        read_document(tmp_path, what="plan")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="not a text file") as caught:
        read_document(binary, what="plan")
    assert "YAML" not in caught.value.hint  # rows of times are CSV


def test_yaml_is_block_outside_and_flow_inside() -> None:
    value = {"a": {"x": 1, "y": [1, 2]}, "rows": [{"k": 1}], "paths": [[0], [0, 1]], "none": None}
    text = dump_yaml(value)
    assert yaml.safe_load(text) == value
    assert "- {k: 1}" in text
    assert "paths: [[0], [0, 1]]" in text
