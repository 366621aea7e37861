"""A type's annotations as the schema of its file: what is written reads back, what contradicts it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.arrays import FloatArray
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import Document, parse_document
from treeopt.files.typed import Count, Group, Key, Share, check_format, json_text, read, write, yaml_text
from treeopt.tree import DraftTree


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(NamedTuple):
    low: Count
    high: int = 9


@dataclass(frozen=True, kw_only=True)
class Box:
    """What the project's records are made of, all at once."""

    FORMAT: ClassVar[str] = "test.box/1"
    WRITTEN: ClassVar[tuple[str | Group, ...]] = (
        *("name", "volume", "size", "paths", "nodes", "share", "colour"),
        Group("more", ("rates", "notes", "by_name", "kind", "exact")),
    )
    name: str
    size: Size
    tree: Annotated[DraftTree, Key("paths")]
    share: Share | None
    colour: Colour
    rates: FloatArray
    notes: tuple[str, ...]
    by_name: Mapping[str, Size]
    kind: Literal["a", "b"]
    exact: bool = True

    def __post_init__(self) -> None:
        if self.name == "nobody":
            raise InputError("nobody has no box", hint="name somebody")

    @property
    def nodes(self) -> int:
        return len(self.tree)

    @property
    def volume(self) -> float:
        return self.size.low * self.size.high / 3


BOX: Final = Box(
    name="mine",
    size=Size(2),
    tree=DraftTree(((0,), (1,), (0, 0))),
    share=0.123456789,
    colour=Colour.BLUE,
    rates=np.array([1.0, 1 / 3]),
    notes=("one", "two"),
    by_name={"x": Size(1, 2)},
    kind="b",
)
TEXT: Final = yaml_text(BOX)


def parsed(text: str) -> Document:
    return parse_document(text, name="box.yaml", what="box")


def test_a_record_is_written_in_the_order_of_its_keys() -> None:
    assert write(BOX) == {
        "format": "test.box/1",
        "name": "mine",
        "volume": 6.0,
        "size": {"low": 2, "high": 9},
        "paths": [[0], [1], [0, 0]],
        "nodes": 4,
        "share": 0.123457,
        "colour": "blue",
        "more": {
            "rates": [1.0, 0.333333],
            "notes": ["one", "two"],
            "by_name": {"x": {"low": 1, "high": 2}},
            "kind": "b",
            "exact": True,
        },
    }
    assert list(write(BOX))[:3] == ["format", "name", "volume"]


@pytest.mark.parametrize("text", [TEXT, json_text(BOX)])
def test_what_is_written_reads_back(text: str) -> None:
    again = read(Box, parsed(text).root)
    assert write(again) == write(BOX)
    assert again.tree == BOX.tree
    assert again.colour is Colour.BLUE


def test_what_has_a_default_or_follows_may_be_left_out() -> None:
    text = TEXT.replace("volume: 6.0\n", "").replace("nodes: 4\n", "").replace(", high: 9}", "}")
    assert write(read(Box, parsed(text).root)) == write(BOX)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("volume: 6.0", "volume: 7.0", r"box.yaml:3: volume: this contradicts the rest, which gives 6.0"),
        ("nodes: 4", "nodes: 5", r"nodes: this contradicts the rest, which gives 4"),
        ("name: mine", "name: nobody", "nobody has no box"),
        ("name: mine", "name: 7", "name: expected text, found int"),
        ("name: mine\n", "", "'name' is missing"),
        ("share: 0.123457", "share: 1.5", "share: 1.5 is out of range"),
        ("low: 2", "low: 0", "size.low: 0 is out of range"),
        ("low: 2", "low: 2.5", "2.5 is not a whole number"),
        ("colour: blue", "colour: green", "unknown 'green'"),
        ("kind: b", "kind: c", "unknown 'c'"),
        ("exact: true", "exact: 1", "expected true or false"),
        ("exact: true", "exactly: true", "unknown key"),
        ("[0, 0]", "[2, 0]", "has no parent"),
        ("rates: [1.0", "rates: [x", r"more.rates\[0\]: expected a number"),
        ("by_name:\n    x: {low: 1", "by_name:\n    x: {low: -1", "by_name.x.low: -1 is out of range"),
        ("share: 0.123457", "share: .inf", "not a finite number"),
    ],
)
def test_errors_name_file_line_and_key(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(FileFormatError, match=message) as caught:
        read(Box, parsed(TEXT.replace(old, new, 1)).root)
    assert str(caught.value).startswith("box.yaml:")
    assert caught.value.hint


def test_formats_are_told_apart() -> None:
    root = parsed("format: test.box/2\n").root
    assert check_format(root, "test.box/2", "test.box/1", what="box") == "test.box/2"
    with pytest.raises(FileFormatError, match=r"this is 'test.box/2', expected 'test.box/1'"):
        check_format(root, "test.box/1", what="box")
    with pytest.raises(FileFormatError, match="this is not a box"):
        check_format(parsed("a: 1").root, "test.box/1", what="box")


@given(
    st.text(max_size=8),
    st.floats(0, 1),
    st.lists(st.floats(-1e9, 1e9), max_size=4),
    st.dictionaries(st.text(min_size=1, max_size=5), st.integers(1, 10**9), max_size=3),
)
def test_any_values_read_back_to_six_digits(name: str, share: float, rates: list[float], sizes: dict[str, int]) -> None:
    given_size: dict[str, Any] = {key: Size(low, 0) for key, low in sizes.items()}
    name = name if name != "nobody" else ""
    box = Box(**{**vars(BOX), "name": name, "share": share, "rates": np.array(rates), "by_name": given_size})
    again = read(Box, parse_document(json_text(box), name="f", what="box").root)
    assert write(again) == write(box)
    assert again.rates == pytest.approx(rates, rel=1e-5)


@dataclass(frozen=True, kw_only=True)
class Note:
    """A record that leaves out what has its default, and keeps every digit."""

    SPARSE: ClassVar[bool] = True
    EXACT: ClassVar[bool] = True

    text: str
    weight: float = 0.5
    size: Size | None = None
    inner: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A value whose file is of another type."""

    text: str

    def document(self) -> Note:
        return Note(text=self.text)


@given(st.floats(-1e9, 1e9), st.lists(st.floats(-1e9, 1e9), max_size=3), st.booleans())
def test_a_sparse_and_exact_record_reads_back_to_the_last_digit(weight: float, inner: list[float], sized: bool) -> None:
    note = Note(text="x", weight=weight, size=Size(3) if sized else None, inner=tuple(inner))
    written = write(note)
    assert set(written) == {"text"} | {k for k in ("weight", "size", "inner") if getattr(note, k) != getattr(Note, k)}
    assert read(Note, parsed(yaml_text(note)).root) == note


def test_what_a_record_holds_is_as_exact_as_the_record() -> None:
    assert write(Note(text="x", inner=(1 / 3,)))["inner"] == [1 / 3]
    assert write({"x": 1 / 3}) == {"x": 0.333333}
    assert write(Size(2), digits=3) == {"low": 2, "high": 9}


def test_a_value_is_written_as_its_document() -> None:
    assert write((Stored(text="x"),)) == [{"text": "x"}]


@dataclass(frozen=True)
class Forgetful:
    WRITTEN: ClassVar[tuple[str, ...]] = ("kept",)
    kept: int
    lost: int = 0


def test_a_record_that_would_lose_what_it_reads_is_a_mistake_of_the_code() -> None:
    with pytest.raises(TypeError, match="WRITTEN lacks lost"):
        read(Forgetful, parsed("kept: 1").root)
