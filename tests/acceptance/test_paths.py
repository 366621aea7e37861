from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.path_trie import PathCounter
from treeopt.acceptance.paths import PathCount, PathCounts

ROWS = np.array([[0, 0], [0, 1], [0, -1], [0, -2], [1, 0], [-1, 0], [-2, -2]])


def count(rank: np.ndarray, chunk: int | None = None, weight: np.ndarray | None = None) -> PathCounts:
    counter = PathCounter(rank.shape[1])
    for start in range(0, len(rank), chunk or len(rank)):
        end = start + (chunk or len(rank))
        counter.add(rank[start:end], None if weight is None else weight[start:end])
    return counter.result()


def test_counts_by_hand() -> None:
    # Six positions have a first depth; four of them follow (0), of which one was cut before its second depth.
    counts = count(ROWS)
    assert counts.starts == 6
    assert list(counts) == [
        PathCount((0,), 4, 3),
        PathCount((1,), 1, 1),
        PathCount((0, 0), 1, 1),
        PathCount((0, 1), 1, 1),
        PathCount((1, 0), 1, 1),
    ]
    assert (counts.depth, counts.ranks) == (2, 2)


@given(
    arrays(np.int8, st.tuples(st.integers(1, 60), st.integers(1, 10)), elements=st.integers(-2, 3)), st.integers(1, 7)
)
def test_counting_equals_a_dictionary_in_any_chunks(rank: np.ndarray, chunk: int) -> None:
    expected: Counter[tuple[int, ...]] = Counter()
    trials: Counter[tuple[int, ...]] = Counter()
    for row in rank.tolist():
        for d, r in enumerate(row):
            if r == -2:
                break
            trials[tuple(row[:d])] += 1
            if r == -1:
                break
            expected[tuple(row[: d + 1])] += 1
    if not expected:
        with pytest.raises(EvidenceError):
            count(rank, chunk)
        return
    counts = count(rank, chunk)
    assert counts.starts == trials[()]
    assert {item.path: item.count for item in counts} == expected
    for item in counts:
        if len(item.path) < rank.shape[1]:
            assert item.trials == trials[item.path]


def test_weights_count_positions_in_part() -> None:
    weight = np.array([0.5, 0.25, 1.0, 2.0, 0.0, 1.0, 9.0])
    counts = count(ROWS, 3, weight)
    assert counts.starts == pytest.approx(4.75)
    assert {i.path: i.count for i in counts}[(0,)] == pytest.approx(3.75)
    assert {i.path: i.trials for i in counts}[(0,)] == pytest.approx(1.75)


def test_look_ups() -> None:
    counts = count(ROWS)
    nodes = counts.find(np.array([[1], [0], [7]]))
    assert nodes.tolist() == [1, 0, -1]
    assert counts.child_counts(1, nodes).tolist() == [[1, 0], [1, 1], [0, 0]]
    assert counts.node_trials(1, nodes).tolist() == [1, 3, 0]
    assert counts.find(np.array([[0, 1], [1, 1]])).tolist() == [1, -1]


def test_deep_and_wide_traces_need_more_than_one_word() -> None:
    rank = np.array([[3] * 17, [3] * 16 + [120], [300] * 17])
    counts = count(rank)
    assert counts.depth == 17
    assert list(counts)[-1] == PathCount((3,) * 16 + (120,), 1, 1)
    assert counts.starts == 3  # rank 300 is beyond what is kept: a miss


def test_listed_paths_are_the_same_trie() -> None:
    counts = count(ROWS)
    listed = list(counts)
    again = PathCounts.from_items(counts.starts, reversed(listed))
    assert list(again) == listed
    assert again.starts == counts.starts


@pytest.mark.parametrize(
    ("items", "index"),
    [
        ([((0, 0), 1)], 0),
        ([((0,), 3), ((0,), 4)], 0),
        ([((0,), 3), ((0, 0), 4)], 1),
        ([((0,), 6), ((1,), 6)], 1),
    ],
)
def test_lists_that_contradict_themselves(items: list[tuple[tuple[int, ...], float]], index: int) -> None:
    with pytest.raises(EvidenceError) as caught:
        PathCounts.from_items(10, [PathCount(path, n, n) for path, n in items])
    assert caught.value.keys == ("paths", index)


@pytest.mark.parametrize("rank", [np.zeros((0, 3), dtype=np.int8), np.full((4, 2), -2), np.full((4, 2), -1)])
def test_traces_without_evidence(rank: np.ndarray) -> None:
    with pytest.raises(EvidenceError):
        count(rank, 10)
