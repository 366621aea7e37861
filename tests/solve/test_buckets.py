from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.errors import SearchError
from treeopt.solve.buckets import Sharing, share


def losses(value: np.ndarray) -> np.ndarray:
    return 1.0 - value / value.max(axis=1, keepdims=True)


def worst_loss(value: np.ndarray, edges: tuple[int, ...]) -> float:
    """Largest loss of a partition, every run with its best option."""
    loss = losses(value)
    return max(loss[a:b].max(axis=0).min() for a, b in pairwise(edges))


def brute_force(value: np.ndarray, buckets: int) -> float:
    n = len(value)
    return min(worst_loss(value, (0, *cut, n)) for cut in combinations(range(1, n), buckets - 1))


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 5), st.sampled_from([0.0, 0.05, 0.3]))
def test_partition_equals_brute_force(seed: int, batches: int, options: int, max_loss: float) -> None:
    rng = np.random.default_rng(seed)
    value = rng.uniform(0.5, 1.0, (batches, options))
    buckets = share(losses(value), size=np.arange(options), tie=0.0, sharing=Sharing(max_loss=max_loss))
    assert [b.first for b in buckets] == [0, *(b.last + 1 for b in buckets[:-1])]
    assert buckets[-1].last == batches - 1
    fewest = next(k for k in range(1, batches + 1) if brute_force(value, k) <= max_loss)
    assert len(buckets) == fewest
    assert max(b.loss for b in buckets) == pytest.approx(brute_force(value, fewest))


def test_a_cap_on_trees_takes_the_smallest_loss_it_can() -> None:
    value = np.eye(4) * 0.5 + 0.5  # every batch size loses half with another's tree
    buckets = share(losses(value), size=np.arange(4), tie=0.0, sharing=Sharing(max_loss=0.01, max_trees=2))
    assert len(buckets) == 2
    assert max(b.loss for b in buckets) == pytest.approx(0.5)


def test_forbidden_options_are_never_shared() -> None:
    value = np.array([[1.0, 3.0], [1.0, -np.inf]])
    buckets = share(losses(value), size=np.arange(2), tie=0.0, sharing=Sharing(max_loss=0.5))
    assert [(b.first, b.last, b.option) for b in buckets] == [(0, 0, 1), (1, 1, 0)]


def test_ties_take_the_smaller_option() -> None:
    value = np.array([[1.0, 1.004]])
    assert share(losses(value), size=np.array([1, 2]), tie=0.005, sharing=Sharing())[0].option == 0
    assert share(losses(value), size=np.array([1, 2]), tie=0.0, sharing=Sharing())[0].option == 1


@pytest.mark.parametrize("wrong", [{"max_loss": 1.0}, {"max_loss": -0.1}, {"max_loss": float("nan")}, {"max_trees": 0}])
def test_impossible_sharing(wrong: dict[str, float]) -> None:
    with pytest.raises(SearchError):
        Sharing(**wrong)  # type: ignore[arg-type]
