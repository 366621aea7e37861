from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from engines.conftest import Read
from engines.samples import BINARY, CHAIN, EAGLE, TRIPLE, chain

from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.paths import export_paths
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError
from treeopt.tree import DraftTree

Refused = Callable[..., None]
ENGINES = ("paths", "medusa", "eagle1", "hydra")
# (0) has children only, (1) has a grandchild: EAGLE-1's drafter reads (1, 0) from the row of (0).
CROSSED = DraftTree(((0,), (1,), (0, 0), (1, 0), (1, 0, 0)))


def test_the_root_is_left_out_and_nodes_are_sorted() -> None:
    assert export_paths(DraftTree(((1,), (0, 0), (0,)))) == "[[0], [1], [0, 0]]"
    assert export_paths(DraftTree(())) == "[]"


@pytest.mark.parametrize("engine", ENGINES)
def test_read_back(engine: str, read: Read) -> None:
    for schedule in (CHAIN, BINARY, EAGLE):
        content = export(schedule, find_engine(engine), Setup()).written.content
        assert read(content, engine) == schedule
    with pytest.raises(InputError, match="no static tree"):
        export(TRIPLE, find_engine(engine), Setup())


@pytest.mark.parametrize(
    ("paths", "refusing"),
    [
        ([[0], [1], [0, 0]], set()),
        ([[0], [2], [0, 0]], {"medusa", "eagle1", "hydra"}),  # a rank gap
        ([*([r] for r in range(11)), [0, 0]], {"medusa", "eagle1", "hydra"}),  # rank 10 reads the next head
        ([[0], [1]], {"eagle1"}),  # fails on depth 1
        (CROSSED.paths, {"eagle1"}),
        ([], {"medusa", "eagle1", "hydra"}),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_engines_would_draft_wrongly(
    engine: str, paths: list[list[int]], refusing: set[str], read: Read
) -> None:
    schedule = DraftSchedule.constant(DraftTree(tuple(tuple(p) for p in paths)))
    if engine in refusing:
        with pytest.raises(InputError):
            export(schedule, find_engine(engine), Setup())
        if paths:
            with pytest.raises(InputError, match="does not draft this tree"):
                read(json.dumps(paths), engine)
        return
    assert read(export(schedule, find_engine(engine), Setup()).written.content, engine) == schedule


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[0], [1, 0]]", ["no parent [1]"]),
        ("[[0], [0, 0, 0]]", ["no parent [0, 0]"]),
        ("[[0], [0]]", ["listed twice"]),
        ("[[], [0]]", ["the root is listed"]),
        ("[[0], [-1]]", ["negative rank"]),
        ("[[0], [0.5]]", ["not a whole number"]),
        ('[["a"]]', ["expected a number"]),
    ],
)
def test_lists_that_the_engines_accept_or_crash_on(refused: Refused, text: str, words: list[str]) -> None:
    refused(text, "medusa", *words)
    refused(text, None, *words)


def test_unsorted_lists_are_sorted(read: Read) -> None:
    assert read("- [1]\n- [0, 0]\n- [0]\n").only == DraftTree(((0,), (1,), (0, 0)))


def test_heads() -> None:
    assert export(CHAIN, find_engine("medusa"), Setup(heads=4)).written.content == export_paths(chain(4))
    with pytest.raises(InputError, match="does not fit --heads 3: it is 4 deep"):
        export(CHAIN, find_engine("medusa"), Setup(heads=3))
