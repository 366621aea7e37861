from __future__ import annotations

import numpy as np
import pytest

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.table import DepthRanks


def test_rates_from_counts_by_hand() -> None:
    table = DepthRanks.from_counts(
        reached=np.array([1000.0, 850.0]), counts=np.array([[700.0, 150.0, 60.0], [595.0, 128.0, 50.0]])
    )
    model = table.model()
    assert model.conditional(np.zeros((2, 1), dtype=np.int64))[1].tolist() == pytest.approx([0.7, 128 / 850, 50 / 850])
    assert (model.depth, model.ranks, table.trials) == (2, 3, 1000.0)
    assert table.counts is not None
    assert table.counts.tolist() == [[700.0, 150.0, 60.0], [595.0, 128.0, 50.0]]


def test_ranks_that_rise_are_pooled() -> None:
    rates = DepthRanks(rates=np.array([[0.5, 0.1, 0.2]])).model().rates
    assert rates.tolist() == [[0.5, pytest.approx(0.15), pytest.approx(0.15)]]


@pytest.mark.parametrize(
    ("rates", "keys"),
    [
        ([[0.5, 1.2]], ("probabilities", 0, 1)),
        ([[0.5, -0.1]], ("probabilities", 0, 1)),
        ([[0.5, 0.1], [float("nan"), 0.1]], ("probabilities", 1, 0)),
        ([[0.6, 0.5]], ("probabilities", 0)),
        ([], ("probabilities",)),
    ],
)
def test_rates_that_no_drafter_has(rates: list[list[float]], keys: tuple[str | int, ...]) -> None:
    with pytest.raises(EvidenceError) as caught:
        DepthRanks(rates=np.array(rates))
    assert caught.value.keys == keys


@pytest.mark.parametrize(
    ("reached", "counts", "keys"),
    [
        ([10.0], [[11.0]], ("counts", 0, 0)),
        ([10.0], [[6.0, 5.0]], ("counts", 0)),
        ([10.0, 12.0], [[5.0], [5.0]], ("reached", 1)),
        ([10.0, 0.0], [[5.0], [0.0]], ("reached", 1)),
        ([10.0], [[5.0], [5.0]], ("reached",)),
    ],
)
def test_counts_that_contradict_each_other(
    reached: list[float], counts: list[list[float]], keys: tuple[str | int, ...]
) -> None:
    with pytest.raises(EvidenceError) as caught:
        DepthRanks.from_counts(reached=np.array(reached), counts=np.array(counts))
    assert caught.value.keys == keys
