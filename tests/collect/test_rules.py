from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.collect.rules import NONE_ACCEPTED, accepted_prefixes, accepted_sibling

Vector = npt.NDArray[np.float64]


def joint_law(p: Vector, q: Vector, siblings: int) -> Vector:
    """`[siblings + 1, V]` P(index, token) of the rule run forwards, over every sequence of draws; last row: none."""
    law = np.zeros((siblings + 1, len(p)))

    def follow(p: Vector, q: Vector, index: int, weight: float) -> None:
        if index == siblings or q.sum() == 0:
            law[siblings] += weight * p
            return
        q = q / q.sum()
        accept = np.array([min(1.0, p[s] / q[s]) if q[s] > 0 else 0.0 for s in range(len(p))])
        law[index] += weight * q * accept
        residual = np.maximum(p - q, 0)
        for s in np.flatnonzero(q * (1 - accept) > 1e-15):
            without = q.copy()
            without[s] = 0
            follow(residual / residual.sum(), without, index + 1, weight * q[s] * (1 - accept[s]))

    follow(p, q, 0, 1.0)
    return law


CASES = [
    ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3]),
    ([0.05, 0.15, 0.3, 0.5], [0.6, 0.2, 0.15, 0.05]),
    ([0.4, 0.3, 0.2, 0.1], [0.0, 0.7, 0.3, 0.0]),  # a drafter that lists two tokens
    ([0.0, 0.0, 1.0], [0.5, 0.25, 0.25]),
]


@pytest.mark.parametrize(("p", "q"), CASES)
@pytest.mark.parametrize("siblings", [1, 2, 3])
def test_index_and_token_have_the_joint_law_of_the_rule(p: list[float], q: list[float], siblings: int) -> None:
    p_, q_, draws = np.array(p), np.array(q), 20_000
    law = joint_law(p_, q_, siblings)
    np.testing.assert_allclose(law.sum(axis=0), p_, atol=1e-12)  # the rule emits from p: the oracle is the rule
    rng = np.random.default_rng(0)
    found = np.zeros_like(law)
    for token in rng.choice(len(p_), size=draws, p=p_).tolist():
        found[accepted_sibling(p_, q_, token, siblings=siblings, rng=rng), token] += 1
    sigma = np.sqrt(law * (1 - law) / draws)
    assert np.all(np.abs(found / draws - law) <= 5 * sigma + 1e-9)


def test_a_drafter_that_equals_the_target_is_accepted_at_once() -> None:
    p, rng = np.array([0.1, 0.2, 0.7]), np.random.default_rng(0)
    assert all(accepted_sibling(p, p.copy(), token, siblings=3, rng=rng) == 0 for token in range(3))


def test_nothing_is_accepted_from_a_drafter_that_lists_nothing() -> None:
    p = np.array([0.5, 0.5])
    assert accepted_sibling(p, np.zeros(2), 0, siblings=2, rng=np.random.default_rng(0)) == NONE_ACCEPTED


@given(st.integers(0, 2**32), st.integers(2, 6))
def test_more_siblings_change_nothing_before_them(seed: int, siblings: int) -> None:
    source = np.random.default_rng(seed)
    p, q = source.dirichlet(np.full(6, 0.5)), source.dirichlet(np.full(6, 0.5))
    token = int(source.choice(6, p=p))
    few = accepted_sibling(p, q, token, siblings=siblings - 1, rng=np.random.default_rng(seed))
    more = accepted_sibling(p, q, token, siblings=siblings, rng=np.random.default_rng(seed))
    assert more == few or (few == NONE_ACCEPTED and more == siblings - 1)


Laws = dict[tuple[int, ...], Vector]


def laws(seed: int, *, vocabulary: int, depth: int) -> Laws:
    """A law for the token behind every text, some tokens impossible."""
    rng = np.random.default_rng(seed)
    texts = [t for d in range(depth + 1) for t in itertools.product(range(vocabulary), repeat=d)]
    found = {}
    for text in texts:
        weights = rng.random(vocabulary) * (rng.random(vocabulary) > 0.2)
        weights[0] += 1e-3
        found[text] = weights / weights.sum()
    return found


def emitted(p: Laws, q: Laws, depth: int) -> dict[tuple[int, tuple[int, ...]], float]:
    """P(accepted, emitted tokens) of block verification run forwards: arXiv:2403.10444, algorithm 2, every draw.

    Which draft token is the last to be accepted is decided from the front, so its law follows from the back.
    """
    found: dict[tuple[int, tuple[int, ...]], float] = {}
    for drafts in itertools.product(range(3), repeat=depth):
        drawn = math.prod(q[drafts[:i]][drafts[i]] for i in range(depth))
        share, shares = 1.0, [1.0]
        for i in range(depth):
            share = min(share * p[drafts[:i]][drafts[i]] / q[drafts[:i]][drafts[i]], 1.0) if drawn else 0.0
            shares.append(share)
        later = 0.0  # that a longer prefix is accepted
        for i in range(depth, -1, -1) if drawn else ():
            left = np.maximum(shares[i] * p[drafts[:i]] - q[drafts[:i]], 0.0) if i < depth else shares[i] * p[drafts]
            total = left.sum() + 1.0 - shares[i]
            chance = left.sum() / total if i and total else 1.0
            for token in range(3 if left.any() else 0):
                key = (i, (*drafts[:i], token))
                found[key] = found.get(key, 0.0) + drawn * (1.0 - later) * chance * left[token] / left.sum()
            later += (1.0 - later) * chance
    return found


@pytest.mark.parametrize("seed", range(8))
def test_block_verification_accepts_given_the_text_as_it_does_run_forwards(seed: int) -> None:
    depth, draws = 3, 4000
    p, q = laws(seed, vocabulary=3, depth=depth), laws(seed + 100, vocabulary=3, depth=depth)
    joint, rng = emitted(p, q, depth), np.random.default_rng(seed)
    for text in itertools.product(range(3), repeat=depth):
        likely = [p[text[:i]][text[i]] for i in range(depth)]
        if math.prod(likely) == 0.0:
            continue
        shares = np.array([[q[text[:i]][text[i]] / likely[i] for i in range(depth)]] * draws)
        found = np.array([np.mean(accepted_prefixes(shares, rng=rng) >= i) for i in range(1, depth + 1)])
        # At least i accepted, and the first i tokens are these: by what is emitted behind them.
        right = np.array(
            [
                sum(v for (n, tokens), v in joint.items() if n >= i and tokens[:i] == text[:i]) / math.prod(likely[:i])
                for i in range(1, depth + 1)
            ]
        )
        right = np.clip(right, 0.0, 1.0)  # of rounding
        assert np.all(np.abs(found - right) <= 5 * np.sqrt(right * (1 - right) / draws) + 1e-9)


@pytest.mark.parametrize(
    ("shares", "expected"), [([0.5, 4.0], [0.5, 0.5]), ([4.0, 0.5], [1.0, 1.0]), ([0.0, 9.0], [0, 0])]
)
def test_a_chain_is_judged_as_a_whole(shares: list[float], expected: list[float]) -> None:
    found = accepted_prefixes(np.array([shares] * 10_000), rng=np.random.default_rng(0))
    for i, right in enumerate(expected, start=1):
        assert abs(np.mean(found >= i) - right) < 0.025
