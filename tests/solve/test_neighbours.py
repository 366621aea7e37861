"""One node more or less: which trees are looked at beside a winner, against all trees there are."""

from __future__ import annotations

import numpy as np
import pytest
from costs import FakeCost
from hypothesis import given
from hypothesis import strategies as st
from oracles import Path, all_trees
from traces import trace_of

from treeopt.acceptance.model import path_probabilities
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.acceptance.traffic import Part, Traffic
from treeopt.draft_family import ANY_TREE, DraftFamily, StaticTrees
from treeopt.solve.neighbours import list_neighbours
from treeopt.solve.problem import Limits, Point, Problem
from treeopt.tree import DraftTree

NO_GAPS = StaticTrees(rank_gaps=False)


def traffic_of(seed: int) -> Traffic:
    rng = np.random.default_rng(seed)
    trace = trace_of([rng.integers(-1, 3, size=(40, 3)) for _ in range(4)])
    profile = RankProfile(
        name="random", evidence=trace.count(), conditions=Conditions(), sha256="0" * 64, documents=trace.documents
    )
    return Traffic(parts=(Part(name="random", weight=1.0, profile=profile, trace=trace),))


def differs_in_one(a: frozenset[Path], b: frozenset[Path]) -> bool:
    return len(a ^ b) == 1


@given(
    st.integers(0, 10_000),
    st.sampled_from([ANY_TREE, NO_GAPS]),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, 2]),
    st.integers(2, 5),
)
def test_neighbours_are_all_leaves_less_and_the_likeliest_guess_more_at_each_node(
    seed: int, family: DraftFamily, max_children: int | None, max_ranks: int | None, max_nodes: int
) -> None:
    traffic, limits = traffic_of(seed), Limits(max_nodes=max_nodes, max_children=max_children, max_ranks=max_ranks)
    every = [
        paths
        for paths in all_trees(max_ranks or 3, 2, max_nodes, max_children=max_children)
        if family.refusal(DraftTree(tuple(paths))) is None
    ]
    ours = every[seed % len(every)]
    tree = DraftTree(tuple(ours))
    problem = Problem(batches=(4,), family=family, limits=Limits(**{**vars(limits), "max_depth": 2}))
    found = list_neighbours(problem, [Point(4, 10)], traffic, tree, FakeCost(step_s=1.0)).prices.candidates
    drafts = [found.draft(i) for i in range(len(found.nodes))]
    trees = [frozenset(draft.paths) for draft in drafts if isinstance(draft, DraftTree)]
    assert trees[0] == ours
    near = [other for other in every if differs_in_one(ours, other)]
    assert set(trees[1:]) <= set(near)
    assert {t for t in trees[1:] if len(t) < len(ours)} == {t for t in near if len(t) < len(ours)}
    model = traffic.model_under(tree)

    def last_f(other: frozenset[Path]) -> tuple[Path, float]:
        (new,) = other - ours
        grown = DraftTree(tuple(other))
        return new[:-1], float(path_probabilities(model, grown)[grown.nodes.index(new)])

    most: dict[Path, float] = {}
    for other in near:
        if len(other) > len(ours):
            parent, f = last_f(other)
            most[parent] = max(most.get(parent, 0.0), f)
    assert dict(map(last_f, (t for t in trees if len(t) > len(ours)))) == pytest.approx(most)
    for draft, tokens in zip(drafts, found.tokens, strict=True):
        assert tokens == pytest.approx(path_probabilities(model, draft).sum())  # type: ignore[arg-type]
