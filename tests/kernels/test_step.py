"""What is prepared once per step: ancestor bits, depths, and the step itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from attention_cases import Case, chain, make, random_tree, star, unequal  # noqa: E402

from treeopt.errors import InputError  # noqa: E402
from treeopt.kernels.step import ancestors, prepare_step  # noqa: E402
from treeopt.kernels.trees import NodeTrees  # noqa: E402
from treeopt.tree import DraftTree  # noqa: E402


@pytest.mark.parametrize("impl", ["triton", "torch"])
def test_ancestors_are_those_of_draft_trees(impl: str, device: str) -> None:
    trees = [DraftTree.from_parents(random_tree(n, n)) for n in (1, 5, 64, 65, 130)]
    found = ancestors(NodeTrees.from_parents([t.parents.tolist() for t in trees], device=device), impl=impl)
    assert found.impl == impl
    assert found.bits.shape == (265, 3)
    start = 0
    for tree in trees:
        mine = slice(start, start := start + len(tree))
        words = torch.from_numpy(tree.ancestor_bits.view("int64"))
        assert torch.equal(found.bits[mine, : words.shape[1]].cpu(), words)
        assert not found.bits[mine, words.shape[1] :].any()
        assert found.depths[mine].tolist() == tree.depths.tolist()


@pytest.mark.parametrize("tree", [chain(64), star(64), unequal(63), [-1], []], ids=len)
def test_bits_by_hand(tree: list[int], device: str) -> None:
    found = ancestors(NodeTrees.from_parents([tree, [-1]], device=device), impl="triton")
    seen = []
    for node in range(len(tree)):
        mask, at = 0, node
        while at >= 0:
            mask, at = mask | 1 << at, tree[at]
        seen.append(mask - (mask >> 63 << 64))
    assert found.bits[:, 0].tolist() == [*seen, 1]


def test_a_parent_behind_its_child_ends_the_walk(device: str) -> None:
    circle = torch.tensor([-1, 2, 1], dtype=torch.int32, device=device)
    offsets = torch.tensor([0, 3], dtype=torch.int32, device=device)
    found = ancestors(NodeTrees(parents=circle, offsets=offsets, max_nodes=3), impl="triton")
    assert found.bits[:, 0].tolist() == [1, 2, 6]


def test_steps_say_what_does_not_share_out(device: str) -> None:
    inputs = make(Case(trees=([-1],), lengths=(3,), kv_heads=2), device)
    with pytest.raises(InputError, match="argument q: 3 query heads"):
        prepare_step(inputs.q[:, :3], inputs.cache, inputs.trees)
