from __future__ import annotations

import itertools

import pytest
from engines.samples import EAGLE, chain, shared_trees
from oracles import all_trees
from shared import needs_shared

from treeopt.draft_family import (
    OFF,
    OPENVINO,
    SGLANG,
    TENSORRT_LLM,
    Chains,
    DynamicTree,
    DynamicTreeRule,
    DynamicTrees,
    StaticTrees,
    UniformTrees,
    as_dynamic_tree,
    has_leading_parents,
    is_uniform,
)
from treeopt.tree import DraftTree


@pytest.mark.parametrize(
    ("limits", "paths", "word"),
    [
        (StaticTrees(max_ranks=10), [[9]], "better-ranked sibling"),
        (StaticTrees(max_ranks=10, rank_gaps=True), [[10]], "rank of 10"),
        (StaticTrees(max_ranks=10, rank_gaps=True), [[9]], None),
        (StaticTrees(max_depth=2), [[0], [0, 0], [0, 0, 0]], "3 deep"),
        (StaticTrees(min_depth=2), [[0], [1]], "1 deep"),
        (StaticTrees(max_expanded=1), [[0], [1], [0, 0], [1, 0]], "2 nodes of one depth"),
        (StaticTrees(max_expanded=2), [[0], [1], [0, 0], [1, 0]], None),
        (UniformTrees(), [[0], [1], [0, 0]], "different numbers"),
        (UniformTrees(), [[0], [1], [0, 0], [1, 0]], None),
        (UniformTrees(equal_widths=True), [[0], [1], [0, 0], [1, 0]], "changes with the depth"),
        (UniformTrees(equal_widths=True), [[0], [0, 0]], None),
        (StaticTrees(), [[0], [1], [0, 1]], "better-ranked sibling"),
        (StaticTrees(rank_gaps=True), [[0], [1], [0, 1]], None),
    ],
)
def test_static_trees(limits: StaticTrees | UniformTrees, paths: list[list[int]], word: str | None) -> None:
    reason = limits.refusal(DraftTree(tuple(tuple(p) for p in paths)))
    assert reason is None if word is None else word in (reason or "")


def test_uniform_trees_are_those_of_some_widths() -> None:
    """Against the definition: some widths per depth give the same tree."""
    widths = [w for depth in range(1, 4) for w in itertools.product(range(1, 4), repeat=depth)]
    full = {DraftTree.from_widths(w) for w in widths} | {OFF}
    trees = [DraftTree(tuple(t)) for t in all_trees(3, 3, 6)]
    assert len(trees) > 100
    assert [is_uniform(t) for t in trees] == [t in full for t in trees]


@pytest.mark.parametrize(
    ("paths", "leading"),
    [
        ([[0], [1], [0, 0], [1, 0], [0, 0, 0]], True),
        ([[0], [1], [0, 0], [1, 0], [1, 0, 0]], False),  # (0) has children only, (1) has a grandchild
        ([[0], [1], [1, 0], [1, 0, 0]], True),  # (0) is no parent at all
        ([[0], [0, 0]], True),
        ([], True),
    ],
)
def test_parents_with_grandchildren_come_first(paths: list[list[int]], leading: bool) -> None:
    assert has_leading_parents(DraftTree(tuple(tuple(p) for p in paths))) is leading
    assert has_leading_parents(EAGLE.only) is True  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "length", "word"),
    [
        (Chains(), 4, None),
        (Chains(), 0, "draft nothing"),
        (Chains(may_be_off=True), 0, None),
        (Chains(max_length=3), 4, "longer than 3"),
    ],
)
def test_chains(limits: Chains, length: int, word: str | None) -> None:
    reason = limits.refusal(chain(length))
    assert reason is None if word is None else word in (reason or "")
    assert "no chain" in (limits.refusal(DraftTree(((0,), (1,)))) or "")


@pytest.mark.parametrize(
    ("rule", "triple", "fits"),
    [
        (SGLANG, DynamicTree(3, 4, 37), True),  # 4 + 2 x 16 candidates and the root
        (SGLANG, DynamicTree(3, 4, 38), False),
        (SGLANG, DynamicTree(3, 1, 4), True),
        (SGLANG, DynamicTree(3, 1, 5), False),
        (TENSORRT_LLM, DynamicTree(3, 4, 13), True),  # 3 x 4 and the root
        (TENSORRT_LLM, DynamicTree(3, 4, 14), False),
        (TENSORRT_LLM, DynamicTree(3, 4, 3), False),
        (OPENVINO, DynamicTree(3, 2, 11), True),  # 2 + 2 x 4 and the root
        (OPENVINO, DynamicTree(3, 2, 12), False),
    ],
)
def test_dynamic_trees(rule: DynamicTreeRule, triple: DynamicTree, fits: bool) -> None:
    assert (DynamicTrees(rule=rule).refusal(triple) is None) is fits


def test_a_chain_is_a_triple_and_a_static_tree_is_none() -> None:
    limits = DynamicTrees(rule=SGLANG)
    assert as_dynamic_tree(chain(3)) == DynamicTree(3, 1, 4)
    assert limits.refusal(chain(3)) is None
    assert "draft nothing" in (limits.refusal(OFF) or "")
    assert "static" in (limits.refusal(EAGLE.only) or "")  # type: ignore[arg-type]


def numbered_by_sglang(topk: int) -> StaticTrees:
    """topk guesses for each of topk expanded nodes per level (sglang 0.5.23, `spec_utils.py`)."""
    return StaticTrees(max_ranks=topk, max_expanded=topk, rank_gaps=True, min_depth=1)


@needs_shared
def test_how_many_published_trees_fit() -> None:
    """76 of 118 fit SGLang's numbering at k = 10, 46 at k = 8, 43 are uniform (counted with their own level sizes)."""
    trees = shared_trees()
    assert len(trees) == 118
    fits = {k: sum(numbered_by_sglang(k).refusal(t) is None for t in trees.values()) for k in (8, 10)}
    assert fits == {8: 46, 10: 76}
    assert sum(is_uniform(t) for t in trees.values()) == 43
    assert numbered_by_sglang(10).refusal(trees["medusa_mc_sim_7b_63"]) is None
    assert numbered_by_sglang(4).refusal(trees["eagle_mc_sim_7b_63"]) is None
    assert numbered_by_sglang(9).refusal(trees["medusa_mc_sim_7b_63"]) is not None
