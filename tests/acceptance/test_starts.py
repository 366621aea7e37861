from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from traces import shipped_trace, shuffled, traces, trees

from treeopt.acceptance.model import PathModel, expected_tokens, path_probabilities
from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.replay import accepted_lengths, draft_starts, replay
from treeopt.acceptance.smoothing import SmoothedPaths
from treeopt.acceptance.starts import MAX_ITERATIONS, settled_model
from treeopt.acceptance.trace import Trace
from treeopt.solve.best_trees import best_families
from treeopt.solve.problem import Limits
from treeopt.tree import DraftTree


def best_of_eight(model: PathModel) -> DraftTree:
    return best_families(model, Limits(max_nodes=8))[-1].tree(8)


def counted(trace: Trace, tree: DraftTree) -> PathCounts:
    """Rank paths at the tree's own draft starts: the share of start phases that begin a draft at each position."""
    return trace.count(draft_starts(trace, accepted_lengths(trace.rank, tree)) / trace.depth)


def settle(trace: Trace, choose: Callable[[PathModel], DraftTree]) -> SmoothedPaths:
    def under(tree: DraftTree | None) -> SmoothedPaths:
        return SmoothedPaths(trace.count() if tree is None else counted(trace, tree))

    return settled_model(under, choose, lambda tree: replay(trace, tree).tokens_per_step)


@given(traces(), trees())
def test_counted_at_draft_starts_f_sums_to_the_replay(trace: Trace, tree: DraftTree) -> None:
    starts = draft_starts(trace, accepted_lengths(trace.rank, tree))
    assume((trace.rank[starts > 0, 0] >= 0).any())  # otherwise there is nothing to count
    counts = counted(trace, tree)
    f = {item.path: item.count / counts.starts for item in counts}
    assert 1.0 + sum(f.get(path, 0.0) for path in tree.paths) == pytest.approx(
        replay(trace, tree).tokens_per_step, abs=1e-12
    )
    assert counts.starts == pytest.approx(replay(trace, tree).steps_per_phase, abs=1e-12)


def test_the_identity_on_a_real_trace_and_what_smoothing_adds() -> None:
    trace = shipped_trace()
    tree = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
    model = settle(trace, lambda _: tree)
    f = {item.path: item.count / model.counts.starts for item in model.counts}
    replayed = replay(trace, tree).tokens_per_step
    assert 1.0 + sum(f[path] for path in tree.paths) == pytest.approx(replayed, abs=1e-12)
    assert expected_tokens(path_probabilities(model, tree)) == pytest.approx(replayed, rel=0.01)


def test_the_fixed_point_answers_itself() -> None:
    trace = shipped_trace()
    model = settle(trace, best_of_eight)
    assert list(model.counts) == list(counted(trace, best_of_eight(model)))


def test_a_circle_keeps_the_tree_with_the_best_replay() -> None:
    trace = shipped_trace()
    circle = [DraftTree.chain(1), DraftTree.chain(3), DraftTree(tuple((rank,) for rank in range(3, 9)))]
    asked = iter([*circle, circle[0]])
    assert max(circle, key=lambda tree: replay(trace, tree).tokens_per_step) == circle[1]
    assert list(settle(trace, lambda _: next(asked)).counts) == list(counted(trace, circle[1]))


def test_a_search_that_never_settles_is_stopped() -> None:
    asked: list[int] = []

    def choose(model: PathModel) -> DraftTree:
        asked.append(len(asked) + 1)
        return DraftTree.chain(asked[-1])

    counts = shipped_trace().count()
    settled_model(lambda tree: SmoothedPaths(counts), choose, lambda tree: float(len(tree)))
    assert asked == list(range(1, MAX_ITERATIONS + 2))


def test_the_order_of_documents_changes_nothing() -> None:
    trace = shipped_trace()
    other = shuffled(trace, np.random.default_rng(0).permutation(trace.documents).tolist())
    models = [settle(documents, best_of_eight) for documents in (trace, other)]
    assert best_of_eight(models[0]) == best_of_eight(models[1])
    assert models[0].counts.starts == pytest.approx(models[1].counts.starts, rel=1e-12)
