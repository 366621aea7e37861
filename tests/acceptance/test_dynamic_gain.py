from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from traces import trace_of

from treeopt.acceptance.dynamic_trace import dynamic_gain
from treeopt.acceptance.trace import Trace
from treeopt.errors import InputError
from treeopt.tree import DraftTree

STAR = tuple((r,) for r in range(64))


def with_confidence(documents: list[np.ndarray], prob: np.ndarray) -> Trace:
    return replace(trace_of(documents), topk_prob=prob)


def random_trace(seed: int) -> Trace:
    """Three depths, four ranks, all of them with their probability."""
    rng = np.random.default_rng(seed)
    prob = -np.sort(-rng.dirichlet(np.ones(4), size=(300, 3)), axis=2)
    return with_confidence([rng.integers(-1, 4, size=(300, 3))], prob)


def test_a_confident_drafter_goes_deep_and_an_unsure_one_wide() -> None:
    """Two drafted nodes; where it is sure both top guesses are right, where it is not the second guess is."""
    sure, unsure = [[0.9, 0.1], [0.8, 0.2]], [[0.6, 0.4], [0.5, 0.5]]
    prob = np.array([sure, unsure] * 10)
    trace = with_confidence([np.array([[0, 0], [1, -1]] * 10)], prob)
    found = dynamic_gain(trace, DraftTree.chain(2))
    assert found.nodes == 3
    # Of the 18 complete rows the chain accepts two tokens in 9 and none in 9, the dynamic tree two and one.
    assert found.static.all_position_tokens == 2.0
    assert found.estimate.all_position_tokens == found.upper.all_position_tokens == 2.5
    assert found.gain_upper == pytest.approx(0.25)


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_the_estimate_for_parallel_heads(nodes: int) -> None:
    """All products of the heads' probabilities, sorted: so few nodes fill no level's beams."""
    trace = random_trace(nodes)
    assert trace.topk_prob is not None
    tokens = []
    for ranks, prob in zip(trace.rank[trace.complete].tolist(), trace.topk_prob[trace.complete], strict=True):
        value = {
            path: np.prod([prob[d][r] for d, r in enumerate(path)])
            for depth in (1, 2, 3)
            for path in product(range(4), repeat=depth)
        }
        best = set(sorted(value, key=lambda path: -value[path])[: nodes - 1])
        tokens.append(1 + max((d for d in (1, 2, 3) if tuple(ranks[:d]) in best), default=0))
    found = dynamic_gain(trace, DraftTree(STAR[: nodes - 1]))
    assert found.estimate.all_position_tokens == pytest.approx(np.mean(tokens), abs=1e-12)


@pytest.mark.parametrize("nodes", [2, 3, 5, 9])
def test_the_upper_answer_drops_what_is_below_wrong_guesses(nodes: int) -> None:
    trace = random_trace(nodes)
    assert trace.topk_prob is not None
    tokens = []
    for ranks, prob in zip(trace.rank[trace.complete].tolist(), trace.topk_prob[trace.complete], strict=True):
        value, above = {}, 1.0
        for depth in range(3):
            value |= {(*ranks[:depth], r): above * prob[depth][r] for r in range(4)}
            if ranks[depth] < 0:
                break
            above = value[tuple(ranks[: depth + 1])]
        best = set(sorted(value, key=lambda path: -value[path])[: nodes - 1])
        tokens.append(1 + max((d for d in (1, 2, 3) if tuple(ranks[:d]) in best), default=0))
    found = dynamic_gain(trace, DraftTree(STAR[: nodes - 1]))
    assert found.upper.all_position_tokens == pytest.approx(np.mean(tokens), abs=1e-12)
    assert (found.upper.position_tokens >= found.estimate.position_tokens).all()


def test_ties_do_not_verify_more_nodes_than_there_are() -> None:
    trace = with_confidence([np.zeros((12, 4), dtype=np.int64)], np.tile([1.0, 0.0], (12, 4, 1)))
    found = dynamic_gain(trace, DraftTree.chain(2))
    assert found.estimate.tokens_per_step == found.upper.tokens_per_step == 3.0


def test_equal_confidence_leaves_the_better_rank_first() -> None:
    trace = with_confidence([np.ones((12, 1), dtype=np.int64)], np.full((12, 1, 2), 0.5))
    assert dynamic_gain(trace, DraftTree(((1,),))).upper.tokens_per_step == 1.0
    assert dynamic_gain(trace, DraftTree(((0,), (1,)))).upper.tokens_per_step == 2.0


def test_plain_decoding_has_nothing_to_gain() -> None:
    found = dynamic_gain(random_trace(0), DraftTree(()))
    assert (found.gain, found.gain_upper) == (0.0, 0.0)


def test_a_trace_without_confidence() -> None:
    with pytest.raises(InputError, match="no 'topk_prob'"):
        dynamic_gain(trace_of([np.zeros((9, 2))]), DraftTree.chain(1))
