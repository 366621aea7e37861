from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared import SHARED, needs_shared
from traces import accepted, trees

from treeopt.errors import InputError
from treeopt.runtime.tables import Shape, Tables, tables_of
from treeopt.tree import DraftTree


def test_by_hand() -> None:
    # Nodes: 0 root, 1 (0), 2 (2), 3 (0, 1), 4 (2, 0).
    tree = DraftTree(((0,), (2,), (0, 1), (2, 0)))
    tables = tables_of(tree, Shape(nodes=6, leaves=3, parents=(1, 3), children=(2, 3)))
    assert tables.valid.tolist() == [True] * 5 + [False]
    assert tables.parents.tolist() == [-1, 0, 0, 1, 2, -1]
    assert tables.depths.tolist() == [0, 1, 1, 2, 2, 0]
    assert tables.ranks.tolist() == [-1, 0, 2, 1, 0, -1]
    assert tables.next_child.tolist() == [1, 3, 4, -1, -1, -1]
    assert tables.next_sibling.tolist() == [-1, 2, -1, -1, -1, -1]
    assert tables.leaves.tolist() == [3, 4, -1]
    assert tables.retrieve_paths.tolist() == [[0, 1, 3], [0, 2, 4], [-1, -1, -1]]
    assert tables.bits.tolist() == [[1], [0b11], [0b101], [0b1011], [0b10101], [0b100000]]
    first, second = tables.passes
    assert (first.parents.tolist(), first.nodes.tolist(), first.rank.tolist()) == ([0], [1, 2], [0, 2])
    assert second.parents.tolist() == [1, 2, 0]
    assert second.nodes.tolist() == [3, 4, 6]
    assert (second.parent_slot.tolist(), second.rank.tolist()) == ([0, 1, 0], [1, 0, 0])


def test_plain_decoding_is_the_root_alone() -> None:
    tables = tables_of(DraftTree(()))
    assert tables.mask.tolist() == [[True]]
    assert tables.retrieve_paths.tolist() == [[0]]
    assert tables.passes == ()


def drafted(tables: Tables, guesses: int) -> list[tuple[int, ...] | None]:
    """A drafter whose token is the path that it drafted, run through the passes."""
    token: list[tuple[int, ...] | None] = [None] * (len(tables.valid) + 1)
    token[0] = ()
    for one in tables.passes:
        listed = [(*(token[p] or ()), rank) for p in one.parents for rank in range(guesses)]
        for node, slot, rank in zip(one.nodes, one.parent_slot, one.rank, strict=True):
            token[node] = listed[slot * guesses + rank]
    return token[:-1]


def verified(tables: Tables, right: list[int]) -> int:
    """How many of the right ranks are accepted along the links."""
    node = depth = 0
    for rank in right:
        child = int(tables.next_child[node])
        while child != -1 and tables.ranks[child] != rank:
            child = int(tables.next_sibling[child])
        if child == -1:
            break
        node, depth = child, depth + 1
    return depth


shapes = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))


@given(trees(depth=4, ranks=3), shapes, st.lists(st.integers(0, 3), max_size=5))
def test_drafting_and_verifying_with_the_tables(
    tree: DraftTree, more: tuple[int, int, int, int], right: list[int]
) -> None:
    own = Shape.of(tree)
    larger = Shape(
        nodes=own.nodes + more[0],
        leaves=own.leaves + more[1],
        parents=tuple(x + more[2] for x in own.parents) + (1,) * more[3],
        children=tuple(y + more[2] for y in own.children) + (1,) * more[3],
    )
    for tables in (tables_of(tree), tables_of(tree, larger)):
        assert drafted(tables, 3)[: len(tree)] == list(tree.nodes)
        assert verified(tables, right) == accepted(right, tree)
        # Along the retrieve paths: the longest common start of any row.
        best = 0
        for row in tables.retrieve_paths[tables.leaves >= 0]:
            ranks = [int(tables.ranks[node]) for node in row[1:] if node >= 0]
            common = next((i for i, (a, b) in enumerate(zip(ranks, right, strict=False)) if a != b), None)
            best = max(best, min(len(ranks), len(right)) if common is None else common)
        assert best == accepted(right, tree)


@given(trees(depth=4, ranks=3), st.integers(0, 70))
def test_mask_and_bits(tree: DraftTree, more: int) -> None:
    own, N = Shape.of(tree), len(tree)
    tables = tables_of(tree, Shape(nodes=N + more, leaves=own.leaves, parents=own.parents, children=own.children))
    assert (tables.mask[:N, :N] == tree.ancestor_mask).all()
    # Padding sees itself and is seen by nobody.
    assert tables.mask[N:].sum() == tables.mask[:, N:].sum() == more
    unpacked = [[(int(word) >> j) & 1 for word in row for j in range(64)] for row in tables.bits.tolist()]
    assert (np.array(unpacked)[:, : N + more] == tables.mask).all()
    assert (tables.depths[:N] == tree.depths).all()


@given(trees(), trees())
def test_a_common_shape_holds_both(a: DraftTree, b: DraftTree) -> None:
    both = Shape.of(a) | Shape.of(b)
    first, second = tables_of(a, both), tables_of(b, both)
    assert first.retrieve_paths.shape == second.retrieve_paths.shape
    assert [p.nodes.shape for p in first.passes] == [p.nodes.shape for p in second.passes]
    assert [p.parents.shape for p in first.passes] == [p.parents.shape for p in second.passes]
    assert first.mask.shape == second.mask.shape


def test_a_shape_that_is_too_small() -> None:
    with pytest.raises(InputError, match="does not fit"):
        tables_of(DraftTree.chain(3), Shape.of(DraftTree.chain(2)))


def test_nodes_rounded_up() -> None:
    assert Shape.of(DraftTree.chain(8), multiple_of=8).nodes == 16
    for wrong in (0, -8):
        with pytest.raises(InputError, match=f"multiples of {wrong} nodes"):
            Shape.of(DraftTree.chain(8), multiple_of=wrong)


@needs_shared
def test_every_published_tree() -> None:
    for file in sorted((SHARED / "data" / "trees").glob("*.json")):
        tree = DraftTree(tuple(tuple(path) for path in json.loads(file.read_text())["paths"]))
        tables = tables_of(tree)
        assert drafted(tables, int(tree.ranks.max()) + 1) == list(tree.nodes)
        leaf = tree.nodes[int(tables.leaves[-1])]
        assert verified(tables, list(leaf)) == len(leaf)
