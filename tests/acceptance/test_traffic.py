from __future__ import annotations

import numpy as np
import pytest
from costs import FakeCost
from hypothesis import assume, given, settings
from traces import shipped_trace, shuffled, traces, trees

from treeopt.acceptance.model import exact_lengths, expected_tokens, path_probabilities
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.acceptance.replay import accepted_lengths, draft_starts, replay
from treeopt.acceptance.trace import Trace
from treeopt.acceptance.traffic import Part, Traffic
from treeopt.solve.problem import Limits, Problem
from treeopt.solve.search import search
from treeopt.tree import DraftTree


def traffic_on(trace: Trace) -> Traffic:
    profile = RankProfile(name="t", evidence=trace.count(), conditions=Conditions(), sha256="0" * 64)
    return Traffic(parts=(Part(name="t", weight=1.0, profile=profile, trace=trace),))


@settings(deadline=None)
@given(traces(), trees())
def test_f_where_drafts_start_is_the_share_of_them_that_followed_the_path_and_sums_to_the_replay(
    trace: Trace, tree: DraftTree
) -> None:
    assume((trace.rank[:, 0] >= 0).any())  # otherwise there is nothing to count
    starts = draft_starts(trace, accepted_lengths(trace.rank, tree))
    assume((trace.rank[starts > 0, 0] >= 0).any())
    counts = trace.count(starts / trace.depth)
    f = {item.path: item.count / counts.starts for item in counts}
    for path in tree.paths:
        followed = (trace.rank[:, : len(path)] == np.array(path, dtype=int)).all(axis=1)
        assert f.get(path, 0.0) == pytest.approx((starts * followed).sum() / starts.sum(), abs=1e-12)
    total = 1.0 + sum(f.get(path, 0.0) for path in tree.paths)
    assert total == pytest.approx(replay(trace, tree).tokens_per_step, abs=1e-12)
    traffic = traffic_on(trace)
    assert traffic.tokens(tree) == pytest.approx(float(traffic.path_probabilities(tree).sum()), abs=1e-12)
    assert traffic.lengths(tree) == pytest.approx(exact_lengths(tree, traffic.path_probabilities(tree)))


def test_smoothed_f_at_a_drafts_own_starts_is_near_what_was_counted() -> None:
    traffic = traffic_on(shipped_trace())
    tree = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
    smoothed = expected_tokens(path_probabilities(traffic.model_under(tree), tree))
    assert smoothed == traffic.tokens(tree)
    assert smoothed == pytest.approx(traffic.replays(tree)[0].tokens_per_step, rel=0.01)
    assert traffic.tokens(tree) < expected_tokens(path_probabilities(traffic.all_positions, tree))


def test_the_order_of_documents_changes_nothing() -> None:
    trace = shipped_trace()
    other = shuffled(trace, np.random.default_rng(0).permutation(trace.documents).tolist())
    cost = FakeCost(step_s=1.0, token_s=0.01, pass_s=0.02)
    problem = Problem(batches=(8,), limits=Limits(max_nodes=16))
    one, two = (search(problem, traffic_on(documents), cost)[0] for documents in (trace, other))
    assert one.tree == two.tree
    assert one.acceptance_length.value == pytest.approx(two.acceptance_length.value, rel=1e-12)
