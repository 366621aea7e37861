from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from costs import FakeCost, drafting_cost
from engines.builder import dynamic_paths
from hypothesis import given
from hypothesis import strategies as st
from oracles import TableModel, random_path_model
from solve.test_search import found
from traffics import traffic_of

from treeopt.acceptance.dynamic_tree import (
    DynamicTreeCaps,
    ModelValues,
    ValuedModel,
    dynamic_tree_shape,
    dynamic_tree_widths,
)
from treeopt.draft_family import OPENVINO, SGLANG, TENSORRT_LLM, DynamicTree, DynamicTreeRule, DynamicTrees
from treeopt.engines.sglang_abi import encode
from treeopt.errors import InputError, SearchError
from treeopt.solve.bucket import Bucket
from treeopt.solve.problem import TIE, Limits, Problem
from treeopt.solve.search import search

LIMITS = DynamicTreeCaps(num_steps=4, topk=4, num_draft_tokens=24)


def sure_drafter(rows: dict[tuple[int, ...], list[float]], depth: int, ranks: int) -> TableModel:
    return TableModel(depth, ranks, lambda path: np.array(rows.get(path, [0.01] * ranks)))


def test_by_hand() -> None:
    # Level 1: .6 .3; below (0,): .36 .06, below (1,): .27 .03; the two beams are (0, 0) and (1, 0).
    draft = sure_drafter({(): [0.6, 0.3], (0,): [0.6, 0.1], (1,): [0.9, 0.1], (1, 0): [0.9, 0.05]}, 3, 2)
    assert dynamic_tree_shape(draft, DynamicTree(2, 2, 5)).paths == ((0,), (1,), (0, 0), (1, 0))
    # (1, 0, 0) has .243, more than (0, 1) with .06.
    assert dynamic_tree_shape(draft, DynamicTree(3, 2, 6)).paths == ((0,), (1,), (0, 0), (1, 0), (1, 0, 0))


def test_a_node_that_is_no_beam_is_not_expanded() -> None:
    # (0, 1) is third of its level with k = 2, so its sure child is never listed.
    rows = {(): [0.8, 0.2], (0,): [0.5, 0.3], (1,): [0.9, 0.05], (0, 0): [0.8, 0.1], (0, 1): [0.99, 0.0]}
    draft = sure_drafter({**rows, (): [0.6, 0.4]}, 3, 2)  # level 2: .30, .18, .36, .02
    tree = dynamic_tree_shape(draft, DynamicTree(3, 2, 11))
    assert (0, 1) in tree.paths
    assert (0, 1, 0) not in tree.paths


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 3), st.data())
def test_the_shape_is_the_rule_written_out(seed: int, steps: int, topk: int, data: st.DataObject) -> None:
    draft = random_path_model(np.random.default_rng(seed), depth=3, ranks=3)
    triple = DynamicTree(steps, topk, data.draw(st.integers(2, topk + (steps - 1) * topk**2 + 1)))
    if topk == 1:
        triple = DynamicTree(steps, 1, steps + 1)
    expected = dynamic_paths(lambda path: draft.conditional(np.array([path], dtype=int))[0], *triple)
    tree = dynamic_tree_shape(draft, triple)
    assert set(tree.paths) == expected
    assert encode(tree, topk=topk, steps=steps).tree == tree  # what the engine builds fits its own encoding


def drafter(seed: int) -> tuple[TableModel, TableModel]:
    """A drafter's confidence and how its guesses are accepted, alike but not the same."""
    rng = np.random.default_rng(seed)
    ranks, sharp = LIMITS.topk, rng.uniform(0.3, 3.0)

    def row(_: tuple[int, ...]) -> np.ndarray:
        return np.sort(rng.dirichlet(np.full(ranks + 1, sharp))[:ranks])[::-1]

    draft = TableModel(LIMITS.num_steps, ranks, row)
    noise = {p: rng.uniform(0.5, 1.0, ranks) for p in draft._rows}
    return draft, TableModel(LIMITS.num_steps, ranks, lambda path: np.sort(draft._rows[path] * noise[path])[::-1])


def searched(rule: DynamicTreeRule, draft: TableModel, accept: TableModel, cost: FakeCost, batch: int) -> Bucket:
    """The best triple of an engine for a drafter whose confidence is not how its guesses are accepted."""
    model = ValuedModel(accept, ModelValues.of(accept, LIMITS, draft=draft), draft)
    limits = Limits(max_nodes=LIMITS.num_draft_tokens)
    question = Problem(batches=(batch,), context=0, limits=limits, family=DynamicTrees(rule=rule), may_be_off=False)
    return search(question, traffic_of(model), cost)[0]


def check(choice: Bucket, rates: dict[DynamicTree, float]) -> None:
    """The best of all is found; the choice is it or a smaller one within the tie, priced as listed."""
    best = max(rates.values())
    triple = choice.dynamic or DynamicTree(choice.tree.depth, 1, len(choice.tree))
    assert found(choice) == pytest.approx(best, rel=1e-12)
    assert choice.tokens_per_s.value == pytest.approx(rates[triple], rel=1e-12)
    assert rates[triple] >= best * (1.0 - TIE) - 1e-12


@pytest.mark.parametrize("rule", [SGLANG, TENSORRT_LLM], ids=lambda rule: rule.engine)
def test_search_equals_brute_force_on_100_drafters(rule: DynamicTreeRule) -> None:
    for seed in range(100):
        rng = np.random.default_rng(1000 + seed)
        draft, accept = drafter(seed)
        cost = drafting_cost(rng)
        batch = int(rng.integers(1, 9))
        check(searched(rule, draft, accept, cost, batch), all_rates(rule.engine, draft, accept, cost, batch))


def all_rates(
    engine: str, draft: TableModel, accept: TableModel, cost: FakeCost, batch: int
) -> dict[DynamicTree, float]:
    """Tokens/s of every triple that the engine accepts."""
    rates = {}
    for s, k, n in product(
        range(1, LIMITS.num_steps + 1), range(1, LIMITS.topk + 1), range(2, LIMITS.num_draft_tokens + 1)
    ):
        fits = (
            s <= n - 1 <= s * k
            if engine == "TensorRT-LLM"
            else (n == s + 1 if k == 1 else n - 1 <= k + (s - 1) * k * k)
        )
        if fits:
            tokens = 1.0 + sum(accept.f(path) for path in dynamic_paths(lambda p: draft._rows[p], s, k, n))
            widths = np.array([1] + [k] * (s - 1))
            rates[DynamicTree(s, k, n)] = batch * tokens / float(cost.step_time_s(batch, n, s, widths, 0))
    return rates


def test_widths_by_hand() -> None:
    assert dynamic_tree_widths(3, 4, levels=5).tolist() == [1, 4, 4, 0, 0]
    assert dynamic_tree_widths(2, 1, levels=2).tolist() == [1, 1]
    assert dynamic_tree_widths(0, 4, levels=0).tolist() == []
    assert dynamic_tree_widths(np.array([1, 3]), np.array([2, 5]), levels=3).tolist() == [[1, 0, 0], [1, 5, 5]]


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (SGLANG, (3, 4, 37), (3, 4, 38)),  # 4 + 2 x 16 candidates
        (SGLANG, (5, 1, 6), (5, 1, 5)),
        (TENSORRT_LLM, (3, 4, 13), (3, 4, 14)),  # 3 x 4 drafts at most, the root not counted there
        (TENSORRT_LLM, (3, 4, 4), (3, 4, 3)),
        (OPENVINO, (2, 2, 7), (2, 2, 8)),
    ],
)
def test_what_engines_accept(rule, good, bad) -> None:  # type: ignore[no-untyped-def]
    rule.check(DynamicTree(*good))
    with pytest.raises(InputError, match=rule.engine):
        rule.check(DynamicTree(*bad))
    listed = list(rule.trees(num_steps=5, topk=4, num_draft_tokens=64))
    assert DynamicTree(*good) in listed
    assert DynamicTree(*bad) not in listed


def test_values_beyond_the_pool_stay_those_of_the_pool() -> None:
    _, accept = drafter(0)
    tokens = ModelValues.of(accept, LIMITS).tokens(1, 3)
    assert tokens[1] == 1.0
    assert tokens[4] == tokens[24] == pytest.approx(1.0 + accept.conditional(np.zeros((1, 0), dtype=int))[0, :3].sum())


def test_what_the_evidence_does_not_reach() -> None:
    draft, accept = drafter(1)
    wide = dynamic_tree_shape(draft, DynamicTree(5, 6, 20))
    assert len(wide) == 20
    assert dynamic_tree_shape(draft, DynamicTree(1, 4, 5)).paths == ((0,), (1,), (2,), (3,))
    assert dynamic_tree_shape(draft, DynamicTree(1, 6, 6)).paths == ((0,), (1,), (2,), (3,), (4,))
    assert ModelValues.of(accept, DynamicTreeCaps(num_steps=9, topk=9)).limits == DynamicTreeCaps(num_steps=4, topk=4)
    with pytest.raises(SearchError, match="no dynamic tree"):
        DynamicTreeCaps(num_draft_tokens=1)
