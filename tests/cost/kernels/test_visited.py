"""Distinct experts: against the formula, by enumeration of all choices, and the laws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.cost.kernels.experts import popularity, visited_experts


def test_balanced_choices_by_hand() -> None:
    # 8 experts, 2 per token: 2, then 8 (1 - 0.75^2) = 3.5.
    assert visited_experts(np.array([1.0, 2.0]), 8, 2).tolist() == pytest.approx([2.0, 3.5])


def test_one_choice_per_token_by_enumeration() -> None:
    chosen = popularity(3, 1, 1.0)
    assert chosen.tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    expected = sum(
        len(set(picks)) * np.prod([chosen[p] for p in picks]) for picks in itertools.product(range(3), repeat=3)
    )
    assert float(visited_experts(np.array(3.0), 3, 1, 1.0)) == pytest.approx(float(expected))


@given(st.integers(1, 300), st.data(), st.floats(0.0, 4.0))
def test_popularity_sums_to_the_choices_and_falls(count: int, data: st.DataObject, skew: float) -> None:
    per_token = data.draw(st.integers(1, count))
    chosen = popularity(count, per_token, skew)
    assert chosen.sum() == pytest.approx(per_token)
    assert (np.diff(chosen) <= 1e-12).all()
    assert (chosen <= 1.0).all()


@given(st.integers(2, 64), st.integers(1, 100), st.floats(0.1, 4.0))
def test_skew_never_visits_more(count: int, tokens: int, skew: float) -> None:
    at = np.array(float(tokens))
    assert float(visited_experts(at, count, 2, skew)) <= float(visited_experts(at, count, 2)) + 1e-9
