from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared import SHARED, needs_shared

from treeopt.errors import TreeError
from treeopt.tree import DraftTree

NINE = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0, 0))


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Any tree, grown by adding to a random node a random rank that it does not have yet."""
    paths: list[tuple[int, ...]] = [()]
    for _ in range(draw(st.integers(0, 80))):
        child = (*draw(st.sampled_from(paths)), draw(st.integers(0, 5)))
        if child not in paths:
            paths.append(child)
    return DraftTree(tuple(draw(st.permutations(paths[1:]))))


def test_nine_path_tree_by_hand() -> None:
    tree = DraftTree(NINE)
    assert len(tree) == 10
    assert tree.depth == 4
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 2, 3, 3, 4, 6]
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert tree.children[1] == (3, 4)
    assert np.flatnonzero(tree.ancestor_mask[9]).tolist() == [0, 1, 3, 6, 9]
    assert np.flatnonzero(tree.ancestor_mask[5]).tolist() == [0, 2, 5]
    assert tree.level_sizes.tolist() == [1, 2, 3, 3, 1]
    assert tree.expanded_widths.tolist() == [1, 2, 2, 1]
    assert tree.positions(100).tolist() == [100, 101, 101, 102, 102, 102, 103, 103, 103, 104]
    assert not tree.has_rank_gaps
    assert not tree.is_chain


def test_step_mask_shows_the_whole_prefix_and_the_ancestors() -> None:
    mask = DraftTree(NINE).step_mask(3)
    assert mask.shape == (10, 13)
    assert mask[:, :3].all()
    assert np.flatnonzero(mask[5]).tolist() == [0, 1, 2, 3 + 0, 3 + 2, 3 + 5]


def test_order_of_the_input_does_not_matter() -> None:
    assert DraftTree(tuple(reversed(NINE))) == DraftTree(NINE)


def test_empty_tree_is_plain_decoding() -> None:
    tree = DraftTree(())
    assert (len(tree), tree.depth, tree.is_chain) == (1, 0, True)
    assert tree.step_mask(2).tolist() == [[True, True, True]]
    assert tree.expanded_widths.tolist() == []
    assert tree.ancestor_bits.tolist() == [[1]]
    assert tree.euler_intervals.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([(0, 0)], r"\[0, 0\] has no parent \[0\]"),
        ([(0,), (0, 0, 0)], r"no parent \[0, 0\]"),
        ([(0,), (0,)], r"\[0\] is listed twice"),
        ([(0,), (-1,)], "negative rank"),
        ([(), (0,)], "the root is listed"),
        ([(0.5,)], "holds 0.5"),
        ([(True,)], "holds True"),
    ],
)
def test_what_is_not_a_tree(paths: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(TreeError, match=message) as caught:
        DraftTree(tuple(paths))
    assert caught.value.hint


def test_rank_gaps_are_legal_and_reported() -> None:
    assert DraftTree(((0,), (2,))).has_rank_gaps
    assert DraftTree(((0,), (0, 1))).has_rank_gaps
    assert not DraftTree(((0,), (1,), (1, 0))).has_rank_gaps


def test_from_parents_ranks_siblings_in_listed_order() -> None:
    # The root is node 3; its children are 1 and 0 is a child of 1.
    assert DraftTree.from_parents([1, 3, 3, -1]).paths == ((0,), (1,), (0, 0))
    assert DraftTree.from_parents([-1, 0, 0], ranks=[-1, 4, 1]).paths == ((1,), (4,))


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([-1, 2, 1], "cycle"),
        ([0], "needs one root"),
        ([-1, -1], "found 2"),
        ([-1, 7], "has parent 7"),
        ([-1, -2], "has parent -2"),
        ([], "needs one root"),
    ],
)
def test_what_is_not_a_parent_array(parents: list[int], message: str) -> None:
    with pytest.raises(TreeError, match=message):
        DraftTree.from_parents(parents)


def test_equal_ranks_of_siblings_are_refused() -> None:
    with pytest.raises(TreeError, match="listed twice"):
        DraftTree.from_parents([-1, 0, 0], ranks=[-1, 0, 0])
    with pytest.raises(TreeError, match="2 ranks"):
        DraftTree.from_parents([-1, 0, 0], ranks=[-1, 0])


def test_from_widths_is_the_full_product() -> None:
    tree = DraftTree.from_widths([2, 1, 2])
    assert tree.level_sizes.tolist() == [1, 2, 2, 4]
    assert (1, 0, 1) in tree.paths
    with pytest.raises(TreeError, match="width 0"):
        DraftTree.from_widths([2, 0])


def test_numbers_that_are_not_whole_are_refused() -> None:
    with pytest.raises(TreeError, match=r"parent 0\.5"):
        DraftTree.from_parents([-1, 0.5])  # type: ignore[list-item]
    with pytest.raises(TreeError, match=r"rank 1\.5"):
        DraftTree.from_parents([-1, 0], ranks=[-1, 1.5])  # type: ignore[list-item]
    for length in (1.5, True, "3"):
        with pytest.raises(TreeError, match=r"a context of|prefix length"):
            DraftTree.chain(1).positions(length)  # type: ignore[arg-type]
    assert DraftTree.from_parents(np.array([-1, 0])).paths == ((0,),)


def test_chain() -> None:
    assert DraftTree.chain(3).paths == ((0,), (0, 0), (0, 0, 0))
    assert DraftTree.chain(0) == DraftTree(())
    with pytest.raises(TreeError):
        DraftTree.chain(-1)


def test_negative_prefix_is_refused() -> None:
    with pytest.raises(TreeError, match="a context of"):
        DraftTree.chain(1).positions(-1)


@given(trees())
def test_every_array_says_the_same(tree: DraftTree) -> None:
    n = len(tree)
    by_paths = np.array([[b == a[: len(b)] for b in tree.nodes] for a in tree.nodes])
    np.testing.assert_array_equal(tree.ancestor_mask, by_paths)
    bits = [[bool(int(tree.ancestor_bits[i, j // 64]) >> (j % 64) & 1) for j in range(n)] for i in range(n)]
    np.testing.assert_array_equal(bits, by_paths)
    enter, leave = tree.euler_intervals.T
    np.testing.assert_array_equal((enter[None] <= enter[:, None]) & (enter[:, None] < leave[None]), by_paths)
    assert DraftTree.from_parents(tree.parents.tolist(), tree.ranks.tolist()) == tree
    assert (tree.parents[1:] < np.arange(1, n)).all()
    assert tree.level_sizes.sum() == n
    assert tree.expanded_widths.sum() == len(set(tree.parents[1:].tolist()))


def test_bitmask_of_more_than_64_nodes() -> None:
    tree = DraftTree.chain(129)
    assert tree.ancestor_bits.shape == (130, 3)
    assert tree.ancestor_bits[129].tolist() == [2**64 - 1, 2**64 - 1, 3]


@needs_shared
def test_all_118_collected_trees_load_with_their_published_sizes() -> None:
    files = sorted((SHARED / "data" / "trees").glob("*.json"))
    assert len(files) == 118
    for file in files:
        data = json.loads(file.read_text())
        tree = DraftTree(tuple(tuple(p) for p in data["paths"]))
        stats = data["stats"]
        assert len(tree) - 1 == stats["nodes"], file.name
        assert tree.depth == stats["depth"], file.name
        assert tree.level_sizes[1:].tolist() == stats["width_per_level"], file.name
        assert tree.expanded_widths.tolist() == stats["expanded_nodes_per_level"][: tree.depth], file.name
        assert tree.has_rank_gaps != stats["contiguous_ranks"], file.name
