from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines.conftest import Read
from engines.samples import CHAIN, EAGLE, TRIPLE

from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError
from treeopt.tree import DraftTree

torch = pytest.importorskip("torch")
Refused = Callable[..., None]
# Root with children 1, 2; node 1 with children 3, 4; node 2 with child 5; written by hand.
SMALL: dict[str, Any] = {
    "roots": [[0], [1, 2], [3, 4, 5]],
    "branches": [[2], [2, 1], [0, 0, 0]],
    "Successors": [[1, 2], [3, 4], [5], [], [], []],
    "mask": torch.tensor(
        [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [1, 0, 1, 0, 0, 0],
            [1, 1, 0, 1, 0, 0],
            [1, 1, 0, 0, 1, 0],
            [1, 0, 1, 0, 0, 1],
        ]
    ),
    "depth": torch.tensor([0, 1, 1, 2, 2, 2]),
    "size": 6,
}
TREE = DraftTree(((0,), (1,), (0, 0), (0, 1), (1, 0)))


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_written_as_sequoia_does() -> None:
    content = export(DraftSchedule.constant(TREE), find_engine("sequoia"), Setup()).written.content
    assert isinstance(content, bytes)
    found = torch.load(io.BytesIO(content), weights_only=True)
    assert list(found) == list(SMALL)
    for key, value in SMALL.items():
        same = torch.equal(found[key], value) if isinstance(value, torch.Tensor) else found[key] == value
        assert same, key
    assert found["mask"].dtype == found["depth"].dtype == torch.int64


def test_read_back(read: Read) -> None:
    assert read(saved(SMALL), "sequoia", "map.pt") == DraftSchedule.constant(TREE)
    for schedule in (CHAIN, EAGLE):
        content = export(schedule, find_engine("sequoia"), Setup()).written.content
        assert read(content, None, "map.pt") == schedule


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 5}, ["6 lists of successors for size 5"]),
        ({"Successors": [[1, 2], [3, 4], [5, 3], [], [], []]}, ["two parents"]),
        ({"Successors": [[1, 2], [3, 4], [9], [], [], []]}, ["no node"]),
        ({"Successors": [[1, 2], [3, 4], [], [5], [], []]}, ["'mask' does not belong"]),
        ({"Successors": [[1, 2], [3, 4], [], [], [], []]}, ["needs one root"]),
        ({"depth": torch.tensor([0, 1, 1, 2, 2, 1])}, ["'depth' does not belong"]),
        ({"branches": [[2], [1, 2], [0, 0, 0]]}, ["'roots' and 'branches'"]),
        ({"roots": [[0], [1, 2], [3, 4]], "branches": [[2], [2, 1], [0, 0]]}, ["'roots' and 'branches'"]),
    ],
)
def test_growmaps_that_contradict_themselves(refused: Refused, change: dict[str, Any], words: list[str]) -> None:
    refused(saved({**SMALL, **change}), "sequoia", *words, name="map.pt")


def test_other_torch_files(refused: Refused, tmp_path: Path) -> None:
    refused(saved([1, 2]), "sequoia", "no growmap", name="map.pt")
    refused(b"nothing", "sequoia", "torch cannot read it", name="map.pt")
    refused(saved(Path("x")), "sequoia", "torch cannot read it", name="map.pt")  # runs no code from the file


def test_ranks_have_no_gaps_in_a_growmap() -> None:
    with pytest.raises(InputError, match="better-ranked sibling"):
        export(DraftSchedule.constant(DraftTree(((0,), (2,)))), find_engine("sequoia"), Setup())
    with pytest.raises(InputError, match="no static tree"):
        export(TRIPLE, find_engine("sequoia"), Setup())
