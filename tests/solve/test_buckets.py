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
    buckets = share(losses(value), size=np.arange(options), tie=0.0, limit=np.full(batches, max_loss))
    assert [b.first for b in buckets] == [0, *(b.last + 1 for b in buckets[:-1])]
    assert buckets[-1].last == batches - 1
    fewest = next(k for k in range(1, batches + 1) if brute_force(value, k) <= max_loss)
    assert len(buckets) == fewest
    assert max(b.loss for b in buckets) == pytest.approx(brute_force(value, fewest))


def test_a_cap_on_trees_takes_the_smallest_loss_it_can() -> None:
    value = np.eye(4) * 0.5 + 0.5  # every batch size loses half with another's tree
    buckets = share(losses(value), size=np.arange(4), tie=0.0, limit=np.full(4, 0.01), max_trees=2)
    assert len(buckets) == 2
    assert max(b.loss for b in buckets) == pytest.approx(0.5)


def test_forbidden_options_are_never_shared() -> None:
    value = np.array([[1.0, 3.0], [1.0, -np.inf]])
    buckets = share(losses(value), size=np.arange(2), tie=0.0, limit=np.full(2, 0.5))
    assert [(b.first, b.last, b.option) for b in buckets] == [(0, 0, 1), (1, 1, 0)]


def test_ties_take_the_smaller_option() -> None:
    value = np.array([[1.0, 1.004]])
    assert share(losses(value), size=np.array([1, 2]), tie=0.005, limit=np.full(1, 0.01))[0].option == 0
    assert share(losses(value), size=np.array([1, 2]), tie=0.0, limit=np.full(1, 0.0))[0].option == 1


def test_a_range_that_must_lose_more_takes_nothing_from_the_others() -> None:
    """Without any limit met by the first range, the others still share: fewer changes within what each may lose."""
    value = np.array([[0.5, 0.4, 0.1], [1.0, 0.99, 0.1], [0.99, 1.0, 0.1], [0.1, 0.1, 1.0]])
    loss = losses(value) + np.array([[0.3], [0.0], [0.0], [0.0]])
    buckets = share(loss, size=np.arange(3), tie=0.0, limit=np.full(4, 0.02))
    assert [(b.first, b.last, b.option) for b in buckets] == [(0, 2, 0), (3, 3, 2)]


def test_each_range_has_a_limit_of_its_own() -> None:
    value = np.array([[1.0, 0.95], [0.95, 1.0]])
    for limit, count in (([0.06, 0.06], 1), ([0.06, 0.0], 1), ([0.0, 0.0], 2)):
        assert len(share(losses(value), size=np.arange(2), tie=0.0, limit=np.array(limit))) == count


def test_what_is_banned_is_not_run_unless_one_draft_must_serve_all() -> None:
    value = np.array([[1.0, 0.9], [0.9, 1.0]])
    banned = np.array([[False, False], [True, False]])
    assert len(share(losses(value), size=np.arange(2), tie=0.0, limit=np.full(2, 0.2))) == 1
    both = share(losses(value), size=np.array([1, 9]), tie=0.0, limit=np.full(2, 0.2), banned=banned)
    assert [b.option for b in both] == [1]
    apart = np.array([[False, True], [True, False]])
    (one,) = share(losses(value), size=np.arange(2), tie=0.0, limit=np.full(2, 0.2), banned=apart, max_trees=1)
    assert one.loss == pytest.approx(0.1)


@pytest.mark.parametrize("wrong", [{"max_loss": 1.0}, {"max_loss": -0.1}, {"max_loss": float("nan")}, {"max_trees": 0}])
def test_impossible_sharing(wrong: dict[str, float]) -> None:
    with pytest.raises(SearchError):
        Sharing(**wrong)  # type: ignore[arg-type]
