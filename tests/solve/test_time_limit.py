from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import TableModel, random_path_model

from treeopt.acceptance.model import exact_lengths, expected_tokens, path_probabilities
from treeopt.acceptance.replay import Replay
from treeopt.errors import InputError
from treeopt.solve.time_limit import TimeLimit, TimePerToken, documents_p99, most_steps, steps_needed, time_per_token
from treeopt.tree import DraftTree

TREE = DraftTree(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))


def random_f(seed: int) -> tuple[TableModel, np.ndarray]:
    model = random_path_model(np.random.default_rng(seed), 3, 2)
    return model, path_probabilities(model, TREE)


def simulated_accepted(model: TableModel, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Walk the tree: at every node the next token has one of the listed ranks or none of them."""
    counts = np.zeros(draws, dtype=np.int64)
    paths: list[tuple[int, ...]] = [()] * draws
    walking = np.ones(draws, dtype=bool)
    for _ in range(TREE.depth):
        for i in np.flatnonzero(walking):
            if len(paths[i]) >= model.depth:
                walking[i] = False
                continue
            row = model.conditional(np.array(paths[i], dtype=np.int64).reshape(1, -1))[0]
            rank = int(np.searchsorted(np.cumsum(row), rng.random(), side="right"))
            nxt = (*paths[i], rank)
            if rank < model.ranks and nxt in TREE.nodes:
                counts[i] += 1
                paths[i] = nxt
            else:
                walking[i] = False
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_accepted_lengths_are_those_of_simulated_drafts(seed: int) -> None:
    model, f = random_f(seed)
    draws = 20_000
    counts = np.bincount(simulated_accepted(model, draws, np.random.default_rng(seed)), minlength=TREE.depth + 1)
    lengths = exact_lengths(TREE, f)
    error = 4.5 * np.sqrt(lengths * (1.0 - lengths) / draws)
    assert np.all(np.abs(counts / draws - lengths) <= error + 1e-12)
    assert lengths @ (1.0 + np.arange(len(lengths))) == pytest.approx(expected_tokens(f))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tokens", [64, 256])
def test_the_percentile_is_that_of_simulated_requests(seed: int, tokens: int) -> None:
    _, f = random_f(seed)
    lengths = exact_lengths(TREE, f)
    rng = np.random.default_rng(seed)
    requests = 40_000
    so_far, steps = np.zeros(requests), np.zeros(requests, dtype=np.int64)
    while (so_far < tokens).any():
        going = so_far < tokens
        so_far[going] += 1 + rng.choice(len(lengths), p=lengths, size=int(going.sum()))
        steps[going] += 1
    found = steps_needed(lengths[None], tokens)[0]
    # n is the percentile where 99 % need at most n steps and fewer than 99 % need at most n - 1.
    error = 4.5 * np.sqrt(0.99 * 0.01 / requests)
    assert np.mean(steps <= found) >= 0.99 - error
    assert np.mean(steps <= found - 1) < 0.99 + error
    assert time_per_token(TREE, f, 0.01, tokens).p99_s == pytest.approx(found * 0.01 / tokens)


def test_steps_of_a_one_token_draft_are_binomial() -> None:
    # A chain of one draft token accepted with probability 3/4: n steps give n + Binomial(n, 3/4) tokens.
    p, tokens = Fraction(3, 4), 40

    def enough(n: int) -> Fraction:
        return sum((comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(max(tokens - n, 0), n + 1)), Fraction(0))

    expected = next(n for n in range(1, tokens + 1) if enough(n) >= Fraction(99, 100))
    assert steps_needed(np.array([[0.25, 0.75]]), tokens).tolist() == [expected]


def test_several_trees_are_counted_as_each_alone() -> None:
    rows = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]])
    together = steps_needed(rows, 30)
    assert together.tolist() == [int(steps_needed(row[None], 30)[0]) for row in rows]
    assert together[:2].tolist() == [30, 10]


@settings(max_examples=60)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7).filter(lambda w: sum(w) > 0.01), st.integers(1, 80))
def test_the_bounds_hold_for_any_accepted_lengths(weights: list[float], tokens: int) -> None:
    lengths = np.array(weights) / sum(weights)
    mean, depth = float(lengths @ (1.0 + np.arange(len(lengths)))), np.array(len(lengths) - 1)
    steps = int(steps_needed(lengths[None], tokens)[0])
    assert steps <= most_steps(np.array(mean), depth, tokens)
    limit = TimeLimit(max_p99_s=0.01, output_tokens=tokens)
    room = limit.headroom(np.array(mean), np.array(0.005), np.array(steps))
    assert room <= limit.most_headroom(np.array(mean), np.array(0.005)) * (1 + 1e-9)


def test_plain_decoding_waits_one_step_per_token() -> None:
    time = time_per_token(DraftTree(()), np.ones(1), 0.008, 256)
    assert time[:2] == (pytest.approx(0.008), pytest.approx(0.008))


def test_a_hundred_documents_have_a_99th_percentile() -> None:
    def replayed(used: int, unused: int = 0) -> Replay:
        steps = np.append(np.arange(1, used + 1), np.zeros(unused, dtype=np.int64))
        tokens = np.where(steps > 0, 100, 0)
        return Replay(phases=1, tokens=tokens, steps=steps, position_tokens=tokens, positions=steps)

    # 0.01, 0.02, ... 1.00 steps per token: the quantile lies 0.01 of the way from the 99th to the 100th.
    assert documents_p99(replayed(100)) == pytest.approx(0.9901)
    assert documents_p99(replayed(100, unused=3)) == pytest.approx(0.9901)
    assert documents_p99(replayed(99)) is None
    assert documents_p99(replayed(99, unused=3)) is None  # too short to be replayed


def test_limits_are_met_or_not() -> None:
    limit = TimeLimit(max_mean_s=0.005, max_p99_s=0.006)
    assert limit.within(TimePerToken(0.005, 0.006))
    assert not limit.within(TimePerToken(0.0051, 0.006))
    assert not limit.within(TimePerToken(0.005, 0.0061))
    assert TimeLimit().within(TimePerToken(1e9, 1e9))
    assert not TimeLimit().limits


@pytest.mark.parametrize(
    "wrong", [{"max_mean_s": 0.0}, {"max_p99_s": -1.0}, {"max_mean_s": float("nan")}, {"output_tokens": 0}]
)
def test_limits_that_nothing_can_meet(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        TimeLimit(**wrong)  # type: ignore[arg-type]
