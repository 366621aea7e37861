"""Trees by confidence within a budget: against all trees, against a heap, and against a decoder step by step."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tests.shared import DATA, needs_shared
from treeopt.acceptance.budget_tree import DDTREE, JETSPEC, BudgetRule, BudgetValues, budget_rule, tree_by_confidence
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.trace import Trace
from treeopt.arrays import FloatArray
from treeopt.errors import InputError, UnknownNameError

Path = tuple[int, ...]
TRACES = ("smollm2_greedy_medusa_prose", "smollm2_greedy_eagle_code", "smollm2_t08_exit12_prose")


def drafter(rng: np.random.Generator, depth: int, topk: int) -> FloatArray:
    """`[D, K]` probabilities, best first, on a coarse grid half of the time so that scores tie."""
    prob = np.sort(rng.dirichlet(np.full(topk + 1, 0.6), size=depth)[:, :topk], axis=1)[:, ::-1]
    return np.round(prob * 8) / 8 if rng.random() < 0.5 else prob


def score(prob: FloatArray, path: Path) -> float:
    total = 1.0
    for depth, rank in enumerate(path):
        total *= prob[depth, rank]
    return total


def all_trees(depth: int, topk: int, drafted: int) -> Iterator[frozenset[Path]]:
    """Every set of rank paths that holds the parents of its paths."""

    def grow(tree: frozenset[Path], left: int, after: Path) -> Iterator[frozenset[Path]]:
        if not left:
            yield tree
            return
        open_ = {(*p, r) for p in (*tree, ()) for r in range(topk) if len(p) < depth} - tree
        for path in sorted(p for p in open_ if p > after or p[:-1] == after):
            yield from grow(tree | {path}, left - 1, path)

    yield from set(grow(frozenset(), drafted, ()))


def by_heap(prob: FloatArray, nodes: int) -> list[Path]:
    """DDTree's own way: pop the best, push its next sibling and its first child; equal scores: smaller path first."""
    depth, topk = prob.shape
    heap: list[tuple[float, Path]] = [(-prob[0, 0], (0,))]
    found: list[Path] = []
    while heap and len(found) < nodes - 1:
        _, path = heapq.heappop(heap)
        found.append(path)
        if path[-1] + 1 < topk:
            sibling = (*path[:-1], path[-1] + 1)
            heapq.heappush(heap, (-score(prob, sibling), sibling))
        if len(path) < depth:
            heapq.heappush(heap, (-score(prob, (*path, 0)), (*path, 0)))
    return found


def by_rows(prob: FloatArray, nodes: int) -> list[Path]:
    """JetSpec's own way: pop the best node, add all its children, until the nodes are spent."""
    depth, topk = prob.shape
    heap: list[tuple[float, Path]] = [(-1.0, ())]
    found: list[Path] = []
    while heap and len(found) < nodes - 1:
        _, path = heapq.heappop(heap)
        children = [(*path, r) for r in range(topk)]
        found += children
        if len(path) + 1 < depth:
            for child in children:
                heapq.heappush(heap, (-score(prob, child), child))
    return found[: nodes - 1]


@pytest.mark.parametrize("seed", range(200))
def test_no_tree_of_as_many_nodes_is_likelier(seed: int) -> None:
    rng = np.random.default_rng(seed)
    depth, topk, nodes = (int(rng.integers(1, high)) for high in (4, 4, 6))
    prob = drafter(rng, depth, topk)
    nodes = min(nodes, sum(topk**d for d in range(1, depth + 1))) + 1
    best = max(sum(score(prob, p) for p in tree) for tree in all_trees(depth, topk, nodes - 1))
    ours = tree_by_confidence(prob, nodes)
    assert len(ours) == nodes - 1
    assert sum(score(prob, p) for p in ours) == pytest.approx(best, abs=1e-12)
    assert all(p[:-1] in (*ours, ()) for p in ours)


@pytest.mark.parametrize("seed", range(200))
def test_the_order_is_that_of_the_engines(seed: int) -> None:
    rng = np.random.default_rng(seed + 1000)
    depth, topk, nodes = int(rng.integers(1, 8)), int(rng.integers(1, 9)), int(rng.integers(2, 70))
    prob = drafter(rng, depth, topk)
    assert tree_by_confidence(prob, nodes) == by_heap(prob, nodes)
    assert tree_by_confidence(prob, nodes, JETSPEC) == by_rows(prob, nodes)


@pytest.mark.parametrize("rule", [DDTREE, JETSPEC])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_accepted_is_what_the_tree_of_each_step_holds(seed: int, rule: BudgetRule) -> None:
    rng = np.random.default_rng(seed)
    depth, topk, T = int(rng.integers(1, 6)), int(rng.integers(1, 7)), 40
    prob = np.stack([drafter(rng, depth, topk) for _ in range(T)])
    rank = rng.integers(-1, topk + 1, size=(T, depth))
    trace = Trace(rank=rank, doc_id=np.zeros(T, dtype=np.int64), pos=np.arange(T), topk_prob=prob)
    values = BudgetValues(trace=trace, rule=rule, most=40)
    for nodes in (2, 5, 17, 40):
        build = by_heap if rule is DDTREE else by_rows
        for t in range(T):
            tree, path = {(), *build(prob[t], nodes)}, tuple(rank[t].tolist())
            assert values.accepted(nodes)[t] == max(d for d in range(depth + 1) if path[:d] in tree)


@needs_shared
@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("rule", [DDTREE, JETSPEC])
@pytest.mark.parametrize("nodes", [4, 16, 64])
def test_replay_is_what_a_decoder_gets_step_by_step(name: str, rule: BudgetRule, nodes: int) -> None:
    """On the first documents: draft, accept, emit, start again behind, from each of the first D positions."""
    whole = read_trace(DATA / f"traces/{name}.npz", confidence=True)
    trace = whole.select(np.arange(whole.documents) < 3)
    assert trace.topk_prob is not None
    build = by_heap if rule is DDTREE else by_rows
    tokens = steps = 0
    for low, high in itertools.pairwise(trace.bounds.tolist()):
        for phase in range(trace.depth):
            at = low + phase
            while at < high and trace.complete[at]:
                prob = trace.topk_prob[at].astype(np.float64)
                tree, path = {(), *build(prob, nodes)}, tuple(trace.rank[at].tolist())
                accepted = max(d for d in range(trace.depth + 1) if path[:d] in tree)
                tokens, steps, at = tokens + accepted + 1, steps + 1, at + accepted + 1
    replayed = BudgetValues(trace=trace, rule=rule, most=64).replay(nodes)
    assert (replayed.tokens.sum(), replayed.steps.sum()) == (tokens, steps)


def test_more_nodes_never_accept_less(random_trace: Trace) -> None:
    values = BudgetValues(trace=random_trace, most=32)
    lengths = [values.accepted(nodes) for nodes in range(2, 33)]
    assert all((b >= a).all() for a, b in itertools.pairwise(lengths))
    assert BudgetValues(trace=random_trace, most=32, depth=2).accepted(32).max() <= 2


@pytest.fixture
def random_trace() -> Trace:
    rng = np.random.default_rng(3)
    prob = np.stack([drafter(rng, 4, 5) for _ in range(200)])
    rank = np.where(rng.random((200, 4)) < 0.6, 0, rng.integers(-1, 6, size=(200, 4)))
    return Trace(rank=rank, doc_id=np.arange(200) // 50, pos=np.arange(200) % 50, topk_prob=prob)


def test_budgets_as_the_engines_count_them() -> None:
    assert (DDTREE.nodes(64), DDTREE.budget(65)) == (65, 64)
    assert (JETSPEC.nodes(64), JETSPEC.budget(64)) == (64, 64)
    assert budget_rule("ddtree") is DDTREE
    with pytest.raises(UnknownNameError, match="unknown rule 'dtree'"):
        budget_rule("dtree")


def test_what_cannot_be_valued_says_why(random_trace: Trace) -> None:
    bare = Trace(rank=random_trace.rank, doc_id=random_trace.doc_id, pos=random_trace.pos)
    with pytest.raises(EvidenceError, match="no 'topk_prob'"):
        BudgetValues(trace=bare)
    for wrong in ({"most": 1}, {"most": 5000}, {"depth": 9}, {"topk": 6}):
        with pytest.raises(InputError, match="out of range"):
            BudgetValues(trace=random_trace, **wrong)  # type: ignore[arg-type]
