"""All published trees through every format: the same tree comes back, or the reason why it cannot go."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from shared import SHARED, needs_shared

from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.importing import import_file, load_drafts
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError
from treeopt.tree import DraftTree

TARGETS = ("paths", "medusa", "hydra", "eagle1", "trtllm==1.3.0", "vllm==0.20.2", "mlc", "sequoia")


def fits(name: str, stats: dict[str, Any], paths: list[list[int]]) -> bool:
    """Each engine's rules, from the numbers that the tree's file states, and EAGLE-1's from a walk through its rows."""
    below_10, contiguous, depth = stats["max_rank"] < 10, stats["contiguous_ranks"], stats["depth"]
    uniform, sizes = stats["uniform_branching_per_level"], [1, *stats["width_per_level"]]
    return {
        "paths": True,
        "medusa": below_10 and contiguous,
        "hydra": below_10 and contiguous,
        "eagle1": below_10 and contiguous and depth >= 2 and drafts_right(paths),
        "trtllm==1.3.0": depth >= 2 or stats["nodes"] == depth,  # a chain of 1 goes as a length
        "vllm==0.20.2": uniform,
        "mlc": uniform and len({b // a for a, b in pairwise(sizes)}) == 1,
        "sequoia": contiguous,
    }[name]


def drafts_right(paths: list[list[int]]) -> bool:
    """EAGLE-1 numbers rows by parents with grandchildren; its drafter made one row per parent."""
    parents = sorted({tuple(p[:-1]) for p in paths}, key=lambda p: (len(p), p))
    for depth in range(max(map(len, parents))):
        rows = [p for p in parents if len(p) == depth]
        used = list(dict.fromkeys(p[:-1] for p in parents if len(p) == depth + 1))
        if rows[: len(used)] != used:
            return False
    return True


@needs_shared
@pytest.mark.parametrize("name", TARGETS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    if name == "sequoia":
        pytest.importorskip("torch")
    target = find_engine(name)
    documents = [json.loads(path.read_text()) for path in sorted((SHARED / "data" / "trees").glob("*.json"))]
    assert len(documents) == 118
    for document in documents:
        schedule = DraftSchedule.constant(DraftTree(tuple(tuple(p) for p in document["paths"])))
        if not fits(name, document["stats"], document["paths"]):
            with pytest.raises(InputError):
                export(schedule, target, Setup())
            continue
        found = export(schedule, target, Setup())
        path = tmp_path / found.written.file_name
        content = found.written.content
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert import_file(path, target).schedule == schedule
        assert load_drafts(str(path)) == schedule
