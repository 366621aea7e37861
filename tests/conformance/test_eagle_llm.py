"""Path lists through EAGLE-1's own buffer functions (PyPI eagle-llm 1.2.1): mask, positions, what is drafted."""

from __future__ import annotations

import contextlib
import importlib
import json
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conformance.wheels import needs_conformance, wheel
from engines.samples import shared_trees
from oracles import all_trees
from shared import needs_shared

from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError
from treeopt.tree import DraftTree

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = needs_conformance
TOPK = 10


@pytest.fixture(scope="module")
def eagle() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.syspath_prepend(str(wheel("eagle-llm", "1.2.1")))
        verify, draft = (importlib.import_module(f"eagle.model.{name}") for name in ("utils", "utils_c"))
        yield SimpleNamespace(verify=verify.generate_tree_buffers, draft=draft.generate_tree_buffers)


def drafts_right(tree: DraftTree, buffers: dict[str, Any]) -> bool:
    """Whether each draft pass takes the guesses that the tree says, by its `tree_indices`.

    One pass gives a row of TOPK guesses per parent of the depth; the next pass indexes the rows as one list.
    """
    parents = [node for node, kids in enumerate(tree.children) if kids]
    for depth, indices in enumerate(buffers["tree_indices"], start=1):
        rows = [n for n in parents if tree.depths[n] == depth - 1]
        wanted = [
            rows.index(int(tree.parents[n])) * TOPK + int(tree.ranks[n]) for n in parents if tree.depths[n] == depth
        ]
        if indices.tolist() != wanted:
            return False
    return True


def verifies_right(tree: DraftTree, buffers: dict[str, Any]) -> bool:
    """Mask, positions, candidate index and retrieve paths of the verification."""
    parents = [node for node, kids in enumerate(tree.children) if kids]
    mask = buffers["tree_attn_mask"][0, 0].numpy().astype(bool)
    wanted = [1 + parents.index(int(p)) * TOPK + int(r) for p, r in zip(tree.parents[1:], tree.ranks[1:], strict=True)]
    leaves = [n for n, kids in enumerate(tree.children) if not kids]
    paths = {tuple(np.flatnonzero(tree.ancestor_mask[leaf]).tolist()) for leaf in leaves}
    retrieved = {tuple(n for n in row if n >= 0) for row in buffers["retrieve_indices"].tolist()}
    return (
        np.array_equal(mask, tree.ancestor_mask)
        and buffers["tree_position_ids"].tolist() == tree.depths.tolist()
        and buffers["tree_indices"].tolist() == [0, *wanted]
        and retrieved == paths
    )


def check(tree: DraftTree, eagle: Any) -> bool:
    """True where the tree was exported, and then EAGLE-1 does all of it right; else it does something wrong."""
    paths = [list(p) for p in tree.paths]
    try:
        content = export(DraftSchedule.constant(tree), find_engine("eagle1"), Setup()).written.content
    except InputError:
        with contextlib.suppress(IndexError, RuntimeError, ValueError):  # or it fails on the tree by itself
            verified = verifies_right(tree, eagle.verify(paths, "cpu"))
            assert not (verified and drafts_right(tree, eagle.draft(paths, "cpu")))
        return False
    listed = json.loads(content)
    assert verifies_right(tree, eagle.verify(listed, "cpu"))
    assert drafts_right(tree, eagle.draft(listed, "cpu"))
    return True


def test_all_small_trees(eagle: Any) -> None:
    """Whatever is exported is drafted and verified as the tree says; whatever is refused is not (but for gaps)."""
    done = [
        check(t, eagle) for t in (DraftTree(tuple(p)) for p in all_trees(2, 4, 7)) if len(t) > 1 and not t.has_rank_gaps
    ]
    assert sum(done) > 50
    assert not all(done)


@needs_shared
def test_published_trees(eagle: Any) -> None:
    trees = {name: t for name, t in shared_trees().items() if len(t) <= 130 and not t.has_rank_gaps}
    exported = {name for name, tree in trees.items() if check(tree, eagle)}
    assert {"eagle_mc_sim_7b_63", "medusa_mc_sim_7b_63"} <= exported
    assert "medusa_vicuna_13b_stage2" in trees.keys() - exported  # drafted from the wrong parents
