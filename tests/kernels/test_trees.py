from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from treeopt.errors import InputError, TreeError  # noqa: E402
from treeopt.kernels.trees import NodeTrees  # noqa: E402


def test_parent_lists_are_packed_request_after_request() -> None:
    trees = NodeTrees.from_parents([[-1, 0, 0], [], [-1, 0]])
    assert trees.parents.tolist() == [-1, 0, 0, -1, 0]
    assert trees.offsets.tolist() == [0, 3, 3, 5]
    assert (trees.max_nodes, trees.requests, trees.words) == (3, 3, 1)
    assert trees.lists() == [[-1, 0, 0], [], [-1, 0]]
    trees.check()


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2, 0], [-1, -2]])
def test_parents_come_first(parents: list[int]) -> None:
    with pytest.raises(TreeError, match=r"argument trees\.parents: node \d of request 1"):
        NodeTrees.from_parents([[-1], parents])


@pytest.mark.parametrize("nodes", [0, 4097])
def test_more_nodes_than_the_kernels_take(nodes: int) -> None:
    trees = NodeTrees.from_parents([[-1]])
    with pytest.raises(InputError, match=r"argument trees\.max_nodes: \d+ nodes"):
        replace(trees, max_nodes=nodes)


def test_words_of_64_nodes() -> None:
    trees = NodeTrees.from_parents([[-1]])
    assert [replace(trees, max_nodes=n).words for n in (1, 64, 65, 128, 129)] == [1, 1, 2, 2, 3]


def test_wrong_tensors_are_named() -> None:
    trees = NodeTrees.from_parents([[-1, 0]])
    with pytest.raises(InputError, match=r"argument trees\.parents: its dtype is torch\.int64"):
        replace(trees, parents=trees.parents.long())
    with pytest.raises(InputError, match=r"argument trees\.offsets: its shape is \[1, 2\]"):
        replace(trees, offsets=trees.offsets[None])
    with pytest.raises(InputError, match=r"argument trees\.offsets: there is no request"):
        replace(trees, offsets=trees.offsets[:1])
