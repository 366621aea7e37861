from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from treeopt.acceptance import conversions as c

PROBABILITIES = arrays(np.float64, st.integers(1, 8), elements=st.floats(0.01, 1.0))
HISTOGRAMS = st.lists(st.integers(0, 10**9), min_size=2, max_size=9).filter(lambda h: sum(h) > 0)


def test_by_hand() -> None:
    # 1000 drafts of three tokens: 350 had none accepted, 210 one, 160 two, 280 all three.
    accepted = c.accepted_from_histogram(np.array([350.0, 210.0, 160.0, 280.0]))
    assert accepted.tolist() == [650.0, 440.0, 280.0]
    survival = c.survival_from_accepted(accepted, 1000)
    assert survival.tolist() == [0.65, 0.44, 0.28]
    assert c.conditional_from_survival(survival).tolist() == pytest.approx([0.65, 0.676923, 0.636364], abs=1e-6)
    assert c.mean_from_survival(survival) == pytest.approx(2.37)
    assert c.ranks_from_cumulative(np.array([0.5604, 0.6717, 0.7271])).tolist() == pytest.approx(
        [0.5604, 0.1113, 0.0554]
    )


def test_percent() -> None:
    assert c.fraction_from_percent(43.71) == pytest.approx(0.4371)


def test_nothing_is_known_behind_a_position_that_was_never_reached() -> None:
    assert c.conditional_from_survival(np.array([0.5, 0.0, 0.0])).tolist() == [0.5, 0.0, 0.0]


@given(PROBABILITIES)
def test_conditional_and_survival_are_inverse(conditional: np.ndarray) -> None:
    assert np.allclose(c.conditional_from_survival(c.survival_from_conditional(conditional)), conditional)


@given(HISTOGRAMS)
def test_counts_are_the_drafts_that_came_so_far(histogram: list[int]) -> None:
    accepted = c.accepted_from_histogram(np.array(histogram, dtype=np.float64))
    assert accepted.tolist() == [sum(histogram[d:]) for d in range(1, len(histogram))]
    assert accepted.sum() == sum(j * n for j, n in enumerate(histogram))


@given(HISTOGRAMS.filter(lambda h: sum(h) < 10**6), st.integers(6, 12))
def test_counts_come_back_from_printed_rates(histogram: list[int], digits: int) -> None:
    drafts = sum(histogram)
    accepted = c.accepted_from_histogram(np.array(histogram, dtype=np.float64))
    printed = np.round(c.survival_from_accepted(accepted, drafts), digits)
    assert c.accepted_from_survival(printed, drafts).tolist() == accepted.tolist()


@given(arrays(np.float64, (3, 4), elements=st.floats(0.0, 0.25)))
def test_ranks_and_cumulative_are_inverse(ranks: np.ndarray) -> None:
    assert np.allclose(c.ranks_from_cumulative(c.cumulative_from_ranks(ranks)), ranks)


@given(st.floats(1.0, 100.0), st.integers(1, 1000))
def test_bonus_and_root_are_inverse(length: float, draft_tokens: int) -> None:
    assert c.with_bonus(c.without_bonus(length)) == pytest.approx(length)
    assert c.draft_tokens_from_nodes(c.nodes_from_draft_tokens(draft_tokens)) == draft_tokens
