from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared import SHARED, needs_shared
from traces import trees

from treeopt.draft_family import pool_size
from treeopt.engines.sglang_abi import decode, encode, filled_up
from treeopt.errors import InputError
from treeopt.tree import DraftTree


def test_by_hand() -> None:
    # k = 2. Depth 1 has candidates 0, 1; depth 2 has 2..5, below (0,) then (1,); depth 3 has 6..9.
    flat = encode(DraftTree(((0,), (1,), (1, 0), (1, 1), (1, 1, 0))), topk=2)
    assert flat.selected.tolist() == [0, 1, 4, 5, 6]
    # Of depth 2 only (1, 1) = candidate 3 of 4 is expanded; the other slot takes any other, here candidate 0.
    assert flat.beams[0].tolist() == [3, 0]
    assert flat.parent_list.tolist() == [-1, 0, 1, 2 + 3, 2 + 0]


def test_one_step_needs_no_parents() -> None:
    flat = encode(DraftTree(((0,), (2,))), topk=4)
    assert flat.selected.tolist() == [0, 2]
    assert flat.parent_list.tolist() == []


def narrow(tree: DraftTree, k: int) -> bool:
    return len(tree) > 1 and max(tree.expanded_widths) <= k


@given(trees(depth=4, ranks=4).filter(lambda t: narrow(t, 4)), st.integers(0, 2))
def test_round_trip_and_order(tree: DraftTree, more_steps: int) -> None:
    flat = encode(tree, topk=4, steps=tree.depth + more_steps)
    assert decode(flat.parent_list.tolist(), flat.selected.tolist(), topk=4) == tree
    # SGLang sorts the selected indices, so its node i + 1 is ours only if ours rise too.
    assert (np.diff(flat.selected) > 0).all()
    assert flat.selected.max() < pool_size(flat.steps, 4)
    for beams in flat.beams:
        assert len(set(beams.tolist())) == 4


@given(trees(depth=3, ranks=3).filter(lambda t: narrow(t, 3)), st.integers(0, 12))
def test_filling_up_keeps_the_tree_and_the_limits(tree: DraftTree, more: int) -> None:
    nodes = min(len(tree) + more, pool_size(3, 3) + 1)
    filled = filled_up(tree, nodes, topk=3, steps=3)
    assert len(filled) == nodes
    assert set(tree.paths) <= set(filled.paths)
    assert encode(filled, topk=3, steps=3).tree == filled


def test_filling_up_to_the_whole_pool() -> None:
    assert len(filled_up(DraftTree(((2,), (2, 2), (2, 2, 2))), 22, topk=3, steps=3)) == 22
    with pytest.raises(InputError, match="list 21 candidates"):
        filled_up(DraftTree.chain(3), 23, topk=3, steps=3)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (DraftTree(()), "nothing to verify"),
        (DraftTree(((0,), (3,))), "rank 3"),
        (DraftTree.chain(5), "5 tokens deep"),
        (DraftTree(tuple((r,) for r in range(3)) + tuple((r, 0) for r in range(3)) + ((0, 0, 0),)), None),
        (DraftTree(tuple((r,) for r in range(3)) + tuple((r, s) for r in range(3) for s in range(2))), None),
    ],
)
def test_limits(tree: DraftTree, words: str | None) -> None:
    if words is None:
        assert encode(tree, topk=3, steps=4).tree == tree
        return
    with pytest.raises(InputError, match=words):
        encode(tree, topk=3, steps=4)


def test_too_many_expanded_nodes() -> None:
    wide = tuple((r,) for r in range(2)) + tuple((r, s) for r in range(2) for s in range(2))
    tree = DraftTree(wide + tuple((r, s, 0) for r in range(2) for s in range(2)))
    with pytest.raises(InputError, match="expands 4 nodes of a level, SGLang expands 2"):
        encode(tree, topk=2)


def test_an_index_without_a_parent() -> None:
    with pytest.raises(InputError, match="index 9 has no parent"):
        decode([-1, 0, 1], [0, 9], topk=2)


@needs_shared
def test_which_published_trees_fit() -> None:
    """76 of the 118 collected trees fit k = 10, 46 fit k = 8; `source` in each names its repository and commit."""
    fits = {8: 0, 10: 0}
    files = sorted((SHARED / "data" / "trees").glob("*.json"))
    for file in files:
        tree = DraftTree(tuple(tuple(path) for path in json.loads(file.read_text())["paths"]))
        for topk in fits:
            if int(tree.ranks.max()) < topk and int(tree.expanded_widths.max()) <= topk:
                flat = encode(tree, topk=topk)
                assert decode(flat.parent_list.tolist(), flat.selected.tolist(), topk=topk) == tree
                fits[topk] += 1
            else:
                with pytest.raises(InputError):
                    encode(tree, topk=topk)
    assert (len(files), fits[8], fits[10]) == (118, 46, 76)
