"""Adaptive verification: its rule against every way to choose, its runs against a batch decoded by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.acceptance.adaptive import ConfidentChains, _prefixes, calibrated
from treeopt.acceptance.budget_law import length_at
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.trace import Trace
from treeopt.errors import InputError


def made(seed: int = 0, T: int = 600, depth: int = 4, told: bool = True) -> Trace:
    """A drafter that is right as often as it says, or whose confidence tells nothing."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.05, 0.95, size=(T, depth))
    right = rng.random((T, depth)) < p
    shown = p if told else rng.permuted(p.ravel()).reshape(p.shape)
    rank = np.where(right, 0, 1)
    return Trace(rank=rank, doc_id=np.arange(T) // 60, pos=np.arange(T) % 60, topk_prob=shown[:, :, None])


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_no_prefixes_of_as_many_tokens_survive_likelier(batch: int, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    survival = np.cumprod(rng.choice([0.25, 0.5, 1.0], size=(batch, length)), axis=1)
    for tokens in range(batch * length + 1):
        ours = _prefixes(survival, tokens)
        assert ours.sum() == tokens
        gained = sum(survival[b, :n].sum() for b, n in enumerate(ours))
        ways = itertools.product(range(length + 1), repeat=batch)
        best = max(sum(survival[b, :n].sum() for b, n in enumerate(way)) for way in ways if sum(way) == tokens)
        assert gained == pytest.approx(best)


def test_where_tokens_are_free_all_are_verified() -> None:
    chains = ConfidentChains.of(made(), 4)
    time_s = np.full(8 * 4 + 1, 2.0)
    all_, fixed = chains.adaptive(8, time_s, steps=50), chains.fixed(8, 4, time_s, steps=50)
    assert (all_.tokens, all_.verified, all_.seconds) == (fixed.tokens, fixed.verified, fixed.seconds)
    assert all_.verified_per_request == 5.0
    assert fixed.seconds == 100.0


def test_where_tokens_cost_too_much_none_is_verified() -> None:
    chains = ConfidentChains.of(made(), 4)
    run = chains.adaptive(4, 1.0 + 10.0 * np.arange(17), steps=30)
    assert (run.tokens, run.verified, run.tokens_per_step) == (120, 120, 1.0)
    assert run.tokens_per_s == 4.0


def test_every_number_of_tokens_is_tried() -> None:
    """A stair at 5 tokens that falls again at 8: stopping at the first drop would verify 4 of 16."""
    chains = ConfidentChains.of(made(), 4)
    time_s = np.where(np.arange(17) < 5, 1.0, np.where(np.arange(17) < 8, 3.0, 1.05))
    assert chains.adaptive(4, time_s, steps=40).verified_per_request == 5.0


def test_a_batch_of_one_by_hand() -> None:
    """Steps cost 1 + T / 2: T is the one with the largest (1 + survivals) / time, by the round before."""
    trace = made(seed=5, T=120, depth=3)
    chains = ConfidentChains.of(trace, 3)
    time_s = 1.0 + 0.5 * np.arange(4)
    run = chains.adaptive(1, time_s, steps=1, seed=3)
    found = set()
    for t in np.flatnonzero(chains.usable):
        value = [(1 + chains.survival[t, :T].sum()) / time_s[T] for T in range(4)]
        T = int(np.argmax(value))
        found.add((min(chains.accepted[t], T) + 1, T + 1))
    assert (run.tokens, run.verified) in found


def test_confidence_that_tells_gains_and_confidence_that_does_not_does_not() -> None:
    time_s = 1.0 + 0.03 * np.arange(16 * 4 + 1)
    gains = []
    for told in (True, False):
        chains = ConfidentChains.of(made(seed=1, T=6000, told=told), 4)
        adaptive = chains.adaptive(16, time_s, steps=400).tokens_per_s
        fixed = max(chains.fixed(16, k, time_s, steps=400).tokens_per_s for k in range(5))
        gains.append(adaptive / fixed - 1)
        assert chains.auc > (0.8 if told else 0.5)
    assert gains[0] > 0.08
    assert gains[1] < 0.02


def test_calibration_finds_what_was_planted() -> None:
    rng = np.random.default_rng(2)
    top = rng.uniform(0.1, 0.9, size=(40_000, 2))
    odds = 0.5 * np.log(top / (1 - top)) - np.array([0.2, 0.7])
    right = rng.random(top.shape) < 1 / (1 + np.exp(-odds))
    found = calibrated(top, right, np.ones(len(top), dtype=np.bool_))
    assert np.abs(found - 1 / (1 + np.exp(-odds))).max() < 0.03


def test_without_confidence_there_is_no_rule() -> None:
    trace = made()
    with pytest.raises(EvidenceError, match="topk_prob"):
        ConfidentChains.of(Trace(rank=trace.rank, doc_id=trace.doc_id, pos=trace.pos), 2)


def test_the_law_by_hand() -> None:
    known = {64: 7.16, 256: 9.81}
    found = length_at(128, known)
    assert found.value == pytest.approx(7.16 * (9.81 / 7.16) ** (1 / 1.356), rel=1e-9)
    assert found.low is not None
    assert found.low < 9.19 < (found.high or 0)
    assert length_at(64, known).value == 7.16
    grown = length_at(256, {64: 7.16, 128: 9.19}).value
    assert grown == pytest.approx(9.19 * (9.19 / 7.16) ** 0.356, rel=1e-9)


@pytest.mark.parametrize(
    ("budget", "known"),
    [(128, {64: 7.0}), (1024, {64: 7.0, 128: 8.0}), (8, {64: 7.0, 128: 8.0}), (9, {8: 3.0, 16: 2.0})],
)
def test_the_law_refuses_what_it_was_not_judged_on(budget: int, known: dict[int, float]) -> None:
    with pytest.raises(InputError):
        length_at(budget, known)
