from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from traces import shipped_trace, shuffled, trace_of, traces, trees

from treeopt.errors import InputError
from treeopt.frontier import Limits, best_families
from treeopt.ranks.model import PathModel, expected_tokens, path_probabilities
from treeopt.ranks.replay import accepted_lengths, draft_starts, replay
from treeopt.ranks.starts import cross_fitted, draft_start_counts, fixed_point
from treeopt.ranks.trace import Trace
from treeopt.tree import DraftTree


def best_of_eight(model: PathModel) -> DraftTree:
    return best_families(model, Limits(max_nodes=8))[-1].tree(8)


def highest_rank(model: PathModel) -> DraftTree:
    """One drafted node: the worst rank that was ever right."""
    return DraftTree(((model.ranks - 1,),))


@given(traces(), trees())
def test_counted_at_draft_starts_f_sums_to_the_replay(trace: Trace, tree: DraftTree) -> None:
    starts = draft_starts(trace, accepted_lengths(trace.rank, tree))
    assume((trace.rank[starts > 0, 0] >= 0).any())  # otherwise there is nothing to count
    counts = draft_start_counts(trace, tree)
    f = {item.path: item.count / counts.starts for item in counts}
    assert 1.0 + sum(f.get(path, 0.0) for path in tree.paths) == pytest.approx(
        replay(trace, tree).tokens_per_step, abs=1e-12
    )
    assert counts.starts == pytest.approx(replay(trace, tree).steps_per_phase, abs=1e-12)


def test_the_identity_on_a_real_trace_and_what_smoothing_adds() -> None:
    trace = shipped_trace()
    tree = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
    point = fixed_point(trace, lambda _: tree)
    f = {item.path: item.count / point.counts.starts for item in point.counts}
    replayed = replay(trace, tree).tokens_per_step
    assert 1.0 + sum(f[path] for path in tree.paths) == pytest.approx(replayed, abs=1e-12)
    assert expected_tokens(path_probabilities(point.model, tree)) == pytest.approx(replayed, rel=0.01)


def test_the_fixed_point_answers_itself() -> None:
    point = fixed_point(shipped_trace(), best_of_eight)
    assert point.converged
    assert best_of_eight(point.model) == point.tree
    assert draft_start_counts(shipped_trace(), point.tree).starts == point.counts.starts


def test_a_circle_keeps_the_tree_with_the_best_replay() -> None:
    trace = shipped_trace()
    circle = [DraftTree.chain(1), DraftTree.chain(3), DraftTree(tuple((rank,) for rank in range(3, 9)))]
    asked = iter([*circle, circle[0]])
    point = fixed_point(trace, lambda _: next(asked))
    assert not point.converged
    assert (point.tree, point.iterations) == (circle[1], 3)
    assert point.counts.starts == draft_start_counts(trace, circle[1]).starts


def test_a_search_that_never_settles_is_stopped() -> None:
    depth = iter(range(1000))
    point = fixed_point(trace_of([np.zeros((80, 30))]), lambda _: DraftTree.chain(next(depth) + 1))
    assert (point.tree, point.converged) == (DraftTree.chain(20), False)


def test_no_document_scores_a_tree_that_it_chose() -> None:
    zeros, ones = np.zeros((12, 1)), np.ones((12, 1))
    assert cross_fitted(trace_of([zeros, zeros]), highest_rank, folds=2).tokens_per_step == 2.0
    assert cross_fitted(trace_of([zeros, ones]), highest_rank, folds=2).tokens_per_step == 1.0


def test_cross_fitting_a_fixed_tree_is_its_replay() -> None:
    trace = shipped_trace()
    found = cross_fitted(trace, lambda _: DraftTree.chain(3))
    assert found.tokens.tolist() == replay(trace, DraftTree.chain(3)).tokens.tolist()


def test_the_order_of_documents_changes_nothing() -> None:
    trace = shipped_trace()
    other = shuffled(trace, np.random.default_rng(0).permutation(trace.documents).tolist())
    assert fixed_point(other, best_of_eight).tree == fixed_point(trace, best_of_eight).tree
    assert cross_fitted(other, best_of_eight).tokens.tolist() == cross_fitted(trace, best_of_eight).tokens.tolist()


def test_one_document_cannot_be_held_out() -> None:
    with pytest.raises(InputError, match="one document"):
        cross_fitted(trace_of([np.zeros((12, 2))]), best_of_eight)
