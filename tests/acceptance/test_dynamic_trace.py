from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engines.builder import Path, dynamic_paths
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import SHARED, needs_shared
from traces import trace_of, traces

from treeopt.acceptance.dynamic_trace import Assumption, TraceValues
from treeopt.acceptance.dynamic_tree import DynamicTreeCaps
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.replay import draft_starts
from treeopt.acceptance.trace import Trace
from treeopt.draft_family import DynamicTree, pool_size

LIMITS = DynamicTreeCaps(num_steps=3, topk=3, num_draft_tokens=30)
TRIPLES = [DynamicTree(s, k, n) for s in (1, 2, 3) for k in (1, 2, 3) for n in range(2, pool_size(s, k) + 2)]


def confident(trace: Trace, seed: int, ranks: int = 3, sharp: float = 1.0) -> Trace:
    """The trace with the drafter's probabilities, some of them equal."""
    rng = np.random.default_rng(seed)
    prob = rng.dirichlet(np.full(ranks + 1, sharp), size=trace.rank.shape)[:, :, :ranks]
    prob = -np.sort(-prob, axis=2)
    prob[rng.random(prob.shape[:2]) < 0.2] = 0.25
    return replace(trace, topk_prob=prob.astype(np.float32))


def true_path(row: np.ndarray) -> list[int]:
    return [int(r) for r in row]


@settings(max_examples=25)
@given(traces(), st.integers(0, 2**32 - 1))
def test_the_estimate_is_the_rule_on_each_position(plain: Trace, seed: int) -> None:
    trace = confident(plain, seed)
    values = TraceValues.of(trace, LIMITS)
    for triple in TRIPLES[::7]:
        found = values.accepted(triple)
        for t in range(len(trace)):
            table = trace.topk_prob[t].astype(np.float64)
            paths = dynamic_paths(lambda path: table[len(path)], *triple)  # noqa: B023
            assert found[t] == _depth(true_path(trace.rank[t]), paths)


def _depth(ranks: list[int], paths: set[Path]) -> int:
    return max((d for d in range(1, len(ranks) + 1) if tuple(ranks[:d]) in paths), default=0)


@settings(max_examples=25)
@given(traces(), st.integers(0, 2**32 - 1), st.sampled_from([0.2, 1.0, 5.0]))
def test_any_drafter_lies_between_the_bounds(plain: Trace, seed: int, sharp: float) -> None:
    """Recorded along the true path, a drafter that sees the whole path accepts from `lower` to `upper`."""
    trace = confident(plain, seed, sharp=sharp)
    bounds = {a: TraceValues.of(trace, LIMITS, assumption=a) for a in Assumption}
    rng = np.random.default_rng(seed)
    for t in range(min(len(trace), 6)):
        ranks = true_path(trace.rank[t])
        rows: dict[Path, np.ndarray] = {
            tuple(ranks[:d]): trace.topk_prob[t, d].astype(np.float64)
            for d in range(3)
            if min(ranks[:d], default=0) >= 0
        }

        def row(path: Path, rows: dict[Path, np.ndarray] = rows) -> np.ndarray:
            if path not in rows:
                rows[path] = -np.sort(-rng.dirichlet(np.full(4, rng.choice([0.05, 1.0, 20.0])))[:3])
            return rows[path]

        for triple in TRIPLES[t::5]:
            true = _depth(ranks, dynamic_paths(row, *triple))
            assert bounds[Assumption.LOWER].accepted(triple)[t] <= true <= bounds[Assumption.UPPER].accepted(triple)[t]


@settings(max_examples=25)
@given(traces(), st.integers(0, 2**32 - 1))
def test_bounds_and_tokens_of_all_sizes(plain: Trace, seed: int) -> None:
    trace = confident(plain, seed)
    lower, estimate, upper = (TraceValues.of(trace, LIMITS, assumption=a) for a in Assumption)
    for triple in TRIPLES:
        low, found, high = (v.accepted(triple) for v in (lower, estimate, upper))
        assert (low <= found).all()
        assert (found <= high).all()
        mean = 1.0 + found[trace.complete].mean()
        assert estimate.tokens(triple.num_steps, triple.topk)[triple.num_draft_tokens] == pytest.approx(mean)


def test_a_sure_drafter_by_hand() -> None:
    # Right guesses 1, 0: the path (1, 0) has .4 x .9 = .36; (0, 0), were it as sure, .5 x .9 = .45.
    trace = trace_of([np.array([[1, 0]] * 4)])
    trace = replace(trace, topk_prob=np.tile(np.array([[0.5, 0.4], [0.9, 0.05]]), (4, 1, 1)))
    found = {
        a: [int(TraceValues.of(trace, LIMITS, assumption=a).accepted(DynamicTree(2, 2, n))[0]) for n in range(2, 8)]
        for a in Assumption
    }
    # Estimate: .5 (0), .45 (0 0), .4 (1), .36 (1 0): N = 4 holds (1), N = 5 holds (1, 0).
    assert found[Assumption.ESTIMATE] == [0, 0, 1, 2, 2, 2]
    # Nothing below (0): .5, .4, .36.
    assert found[Assumption.UPPER] == [0, 1, 2, 2, 2, 2]
    # Below (0) at most floor(.5 / .4) = 1 node beats (1), and floor(.5 / .36) = 1 beats (1, 0).
    assert found[Assumption.LOWER] == [0, 0, 1, 2, 2, 2]


def test_a_full_beam_by_hand() -> None:
    # (1, 0) has .3 x .8 = .24; below (0) two nodes of .3 each may take both beams, so (1, 0) need not be expanded.
    trace = trace_of([np.array([[1, 0, 0]] * 5)])
    trace = replace(trace, topk_prob=np.tile(np.array([[0.6, 0.3], [0.8, 0.1], [0.9, 0.05]]), (5, 1, 1)))
    found = {a: TraceValues.of(trace, LIMITS, assumption=a).accepted(DynamicTree(3, 2, 11))[0] for a in Assumption}
    # As sure as below the right guess: .48, .06, .24, .03, and (1, 0) is the second of the two beams.
    assert found == {Assumption.LOWER: 2, Assumption.ESTIMATE: 3, Assumption.UPPER: 3}


def test_at_its_own_draft_starts_e_is_the_replay() -> None:
    rng = np.random.default_rng(5)
    trace = confident(trace_of([rng.integers(-1, 3, size=(40, 3)) for _ in range(6)]), 1)
    values = TraceValues.of(trace, LIMITS)
    triple = DynamicTree(3, 2, 6)
    there = values.weighted(draft_starts(trace, values.accepted(triple)))
    assert there.tokens(3, 2)[6] == pytest.approx(values.replay(triple).tokens_per_step)


def test_a_trace_without_confidence() -> None:
    with pytest.raises(EvidenceError, match="topk_prob"):
        TraceValues.of(trace_of([np.zeros((8, 3), dtype=int)]), LIMITS)


def test_limits_follow_the_record() -> None:
    trace = confident(trace_of([np.zeros((8, 3), dtype=int)]), 0, ranks=2)
    assert TraceValues.of(trace, DynamicTreeCaps()).limits == DynamicTreeCaps(num_steps=3, topk=2, num_draft_tokens=64)


@needs_shared
def test_real_drafters() -> None:
    trace = read_trace(SHARED / "data" / "traces" / "smollm2_greedy_medusa_prose.npz", confidence=True)
    limits = DynamicTreeCaps(num_steps=4, topk=8, num_draft_tokens=32)
    values = TraceValues.of(trace, limits)
    low, high = (
        TraceValues.of(trace, limits, assumption=end).tokens(4, 8)[32] for end in (Assumption.LOWER, Assumption.UPPER)
    )
    found = values.tokens(4, 8)[32]
    assert low < found < high
    # By hand for a sample: parallel heads never see the path, so the estimate is exact for them.
    for t in range(0, len(trace), 997):
        table = trace.topk_prob[t].astype(np.float64)
        paths = dynamic_paths(lambda path: table[len(path)], 4, 8, 32)  # noqa: B023
        assert values.accepted(DynamicTree(4, 8, 32))[t] == _depth(true_path(trace.rank[t]), paths)
