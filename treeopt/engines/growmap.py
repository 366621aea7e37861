"""Sequoia's growmap: a `.pt` file of torch with the tree level by level; node 0 is the root, `size` counts it.

Format: Infini-AI-Lab/Sequoia at 0ff3ff7, `tree_search.py`: `roots` lists the nodes of each level, `branches` their
numbers of children, `Successors` the children of each node in the order of their ranks, `mask [N, N]` ancestors and
self, `depth [N]`. Ranks are the order among siblings, so a tree with rank gaps has no growmap.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

import numpy as np

from treeopt.draft_family import StaticTrees
from treeopt.engines.format import Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.errors import FileFormatError, TreeError
from treeopt.extras import require
from treeopt.files.documents import os_error
from treeopt.tree import DraftTree

_FILE: Final = "growmap.pt"
_KEYS: Final = ("roots", "branches", "Successors", "mask", "depth", "size")
_HINT: Final = f"a growmap is a torch file of a mapping with {', '.join(_KEYS)}"


def _write(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    tree = schedule.only_tree
    torch = require("torch", extra="gpu")
    levels = [np.flatnonzero(tree.depths == d).tolist() for d in range(tree.depth + 1)]
    growmap = {
        "roots": levels,
        "branches": [[len(tree.children[node]) for node in level] for level in levels],
        "Successors": [list(kids) for kids in tree.children],
        "mask": torch.from_numpy(tree.ancestor_mask.astype(np.int64)),
        "depth": torch.from_numpy(tree.depths),
        "size": len(tree),
    }
    buffer = io.BytesIO()
    torch.save(growmap, buffer)
    return Written(
        content=buffer.getvalue(),
        file_name=_FILE,
        launch=f"python tests/testbed.py --growmap {setup.written_to(_FILE)} --model {setup.draft_model} "
        f"--target {setup.model}",
        proof="the run prints decoding steps and tokens: their ratio exceeds 1",
    )


def _read(source: EngineFile) -> Found | None:
    if source.path is None or source.path.suffix not in (".pt", ".pth"):
        return None
    return Found(DraftSchedule.constant(_tree(_load(source.path), source.name)))


def _load(path: Path) -> dict[str, Any]:
    torch = require("torch", extra="gpu")
    if not path.is_file():
        raise os_error(FileNotFoundError(), path, what="growmap", verb="read")
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its zip and pickle readers raise
        raise FileFormatError(f"{path}: torch cannot read it: {error}".splitlines()[0], hint=_HINT) from None
    if not isinstance(value, dict) or not all(key in value for key in _KEYS):
        raise FileFormatError(f"{path}: no growmap", hint=_HINT)
    return value


def _tree(growmap: dict[str, Any], name: str) -> DraftTree:
    """The tree of `Successors`; the other entries must say the same."""
    successors, size = growmap["Successors"], int(growmap["size"])
    parents, ranks = [-1] * size, [0] * size
    if len(successors) != size:
        raise FileFormatError(f"{name}: {len(successors)} lists of successors for size {size}", hint=_HINT)
    for parent, children in enumerate(successors):
        for rank, child in enumerate(children):
            if not 0 < child < size or parents[child] != -1:
                raise FileFormatError(f"{name}: node {child} is no node, or has two parents", hint=_HINT)
            parents[child], ranks[child] = parent, rank
    try:
        tree = DraftTree.from_parents(parents, ranks)
    except TreeError as error:
        raise FileFormatError(f"{name}: {error}", hint=error.hint) from None
    _check_rest(growmap, parents, name)
    return tree


def _check_rest(growmap: dict[str, Any], parents: list[int], name: str) -> None:
    size = len(parents)
    mask = np.eye(size, dtype=np.bool_)
    for node in range(size):  # parents may be listed after their children, so walk up
        above = parents[node]
        while above != -1:
            mask[node, above] = True
            above = parents[above]
    wanted = {"mask": mask, "depth": mask.sum(axis=1) - 1}
    for key, value in wanted.items():
        if not np.array_equal(np.asarray(growmap[key]).astype(np.int64), value.astype(np.int64)):
            raise FileFormatError(f"{name}: '{key}' does not belong to the successors", hint=_HINT)
    levels = [list(level) for level in growmap["roots"]]
    counts = [[len(growmap["Successors"][node]) for node in level] for level in levels]
    listed = sorted(node for level in levels for node in level)
    if counts != [list(level) for level in growmap["branches"]] or listed != list(range(size)):
        raise FileFormatError(f"{name}: 'roots' and 'branches' do not belong to the successors", hint=_HINT)


SEQUOIA: Final = Engine(
    name="sequoia",
    title="Sequoia",
    checked="commit 0ff3ff7",
    checked_by="documentation only",
    formats=(
        Format(
            name="growmap",
            limits=StaticTrees(min_depth=1),
            write=_write,
            read=_read,
            drafters=Drafters(engine="Sequoia", words={"model": DrafterWord(text="")}),
        ),
    ),
)
