from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from treeopt.answer import Estimate
from treeopt.render.text import Column, gain, tables


def printed(report: RenderableType, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(report)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


KEYS = [Column(name="key", cells=["a", "b"], is_text=True)]
GROUPS = [
    [Column(name="one", cells=["1", "22"]), Column(name="two", cells=["333", "4444"])],
    [Column(name="three", cells=["5", "6"])],
]


def test_what_fits_is_one_table() -> None:
    assert printed(tables(KEYS, GROUPS, 21), 21) == [
        "key  one   two  three",
        "a      1   333      5",
        "b     22  4444      6",
    ]


def test_what_is_wider_goes_below_with_the_keys_and_nothing_is_cut() -> None:
    lines = ["key  one   two", "a      1   333", "b     22  4444", "", "key  three", "a        5", "b        6"]
    assert printed(tables(KEYS, GROUPS, 20), 20) == lines
    assert printed(tables(KEYS, GROUPS, 10), 20) == lines  # a group is never parted


def test_text_is_folded_where_it_is_too_long_for_a_table_of_its_own() -> None:
    groups = [*GROUPS, [Column(name="where", cells=["batch 1: a node", ""], is_text=True)]]
    assert printed(tables(KEYS, groups, 14), 14)[8:] == ["key  where", "a    batch 1:", "     a node", "b"]


@pytest.mark.parametrize(("ends", "words"), [({}, "-0.7%"), ({"low": -0.0125, "high": 0.1}, "-0.7% [-1.2%, +10.0%]")])
def test_a_gain_with_and_without_its_interval(ends: dict[str, float], words: str) -> None:
    assert gain(Estimate(value=-0.0071, **ends)) == words
