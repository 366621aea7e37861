from __future__ import annotations

import numpy as np
import pytest
from decode.models import prompts, trees
from hypothesis import given
from hypothesis import strategies as st

from treeopt.decode.batch import TreeBatch
from treeopt.decode.step import nodes_step, prune, text_step, tree_step
from treeopt.tree import DraftTree

FORK = DraftTree(((0,), (1,), (1, 0)))


def test_a_tree_step_by_hand() -> None:
    trees = TreeBatch.of([FORK, DraftTree.chain(1)])
    step = tree_step(trees, np.array([[9, 5, 6, 7], [8, 4, -1, -1]]), lengths=np.array([2, 0]), rows=np.array([0, 1]))
    assert step.tokens.tolist() == [[9, 5, 6, 7], [8, 4, 0, 0]]
    assert step.positions.tolist() == [[2, 3, 3, 4], [0, 1, 0, 0]]
    assert step.counts.tolist() == [4, 2]
    assert drawn(step.mask[0]) == ["111000", "111100", "111010", "111011"]
    assert drawn(step.mask[1]) == ["100000", "110000", "001000", "000100"]  # padding sees itself


def drawn(mask: np.ndarray) -> list[str]:
    return ["".join(map(str, row)) for row in mask.astype(int).tolist()]


def test_a_text_step_by_hand() -> None:
    step = text_step([[1, 2], [3]], lengths=np.array([1, 0]), rows=np.array([4, 2]))
    assert step.tokens.tolist() == [[1, 2], [3, 0]]
    assert step.positions.tolist() == [[1, 2], [0, 0]]
    assert step.mask.astype(int).tolist() == [[[1, 1, 0], [1, 1, 1]], [[1, 0, 0], [0, 1, 0]]]


def test_a_level_of_a_tree_by_hand() -> None:
    """Three committed tokens; nodes 1 and 2 run at once behind the root's slot, then node 3 sees node 2's slot."""
    trees = TreeBatch.of([DraftTree(((0,), (1,), (1, 0), (1, 0, 0)))])
    tokens = np.array([[9, 5, 6, 7, -1]])
    committed = {"lengths": np.array([3]), "rows": np.array([0])}
    level = nodes_step(trees, tokens, [[2]], [[2, -1, -1, -1, -1]], starts=np.array([3]), **committed)
    assert level.positions.tolist() == [[3]]
    assert level.mask.astype(int).tolist() == [[[1, 1, 1, 1]]]
    deeper = nodes_step(trees, tokens, [[3]], [[2, 3, 4, -1, -1]], starts=np.array([5]), **committed)
    assert deeper.tokens.tolist() == [[7]]
    assert deeper.positions.tolist() == [[4]]
    assert deeper.mask.astype(int).tolist() == [[[1, 1, 1, 0, 1, 1]]]


@given(st.lists(trees(), min_size=1, max_size=4), st.data())
def test_steps_of_batches_are_steps_of_their_trees(chosen: list[DraftTree], data: st.DataObject) -> None:
    lengths = np.array([data.draw(st.integers(0, 5)) for _ in chosen])
    batch = TreeBatch.of(chosen)
    step = tree_step(batch, np.zeros(batch.parents.shape, dtype=np.int64), lengths=lengths, rows=np.arange(len(chosen)))
    for b, tree in enumerate(chosen):
        n, length = len(tree), int(lengths[b])
        for i, path in enumerate(tree.nodes):
            seen = {length + j for j, other in enumerate(tree.nodes) if path[: len(other)] == other}
            assert set(np.flatnonzero(step.mask[b, i]).tolist()) == {*range(length), *seen}
            assert step.positions[b, i] == length + len(path)
        assert step.mask[b, n:].sum(axis=1).tolist() == [1] * (batch.nodes - n)


@given(prompts())
def test_text_is_a_chain(texts: list[list[int]]) -> None:
    lengths = np.arange(len(texts))
    step = text_step(texts, lengths=lengths, rows=np.arange(len(texts)))
    for b, text in enumerate(texts):
        chain = DraftTree.chain(len(text) - 1)
        assert (step.mask[b, : len(text), : lengths[b] + len(text)] == chain.step_mask(int(lengths[b]))).all()
        assert step.positions[b, : len(text)].tolist() == chain.positions(int(lengths[b])).tolist()


@pytest.mark.parametrize(("remaining", "nodes"), [(1, 1), (2, 3), (3, 4), (4, 4)])
def test_a_tree_is_pruned_to_what_can_be_emitted(remaining: int, nodes: int) -> None:
    pruned = prune(FORK, remaining)
    assert len(pruned) == nodes
    assert pruned.depth + 1 <= remaining
