"""Documents walked side by side, and by doublings: both are the steps of a decoder, one after another."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from treeopt.acceptance import replay
from treeopt.acceptance.trace import PAST_END, Trace
from treeopt.arrays import IntArray


def trace_of(sizes: list[int], depth: int, rng: np.random.Generator) -> Trace:
    """Documents of those sizes; the last rows of a document end before depth D."""
    rank = rng.integers(-1, 2, (sum(sizes), depth))
    ends = np.repeat(np.cumsum(sizes), sizes)
    late = np.arange(len(rank))[:, None] + np.arange(depth) >= ends[:, None]
    rank[late] = PAST_END
    pos = np.concatenate([np.arange(size) for size in sizes])
    return Trace(rank=rank, doc_id=np.repeat(np.arange(len(sizes)), sizes), pos=pos)


def walked(trace: Trace, accepted: IntArray) -> list[int]:
    """Visits by the definition: from each of the first D positions of each document, step by step."""
    visits = [0] * len(trace)
    for start, end in zip(trace.bounds[:-1].tolist(), trace.bounds[1:].tolist(), strict=True):
        for first in range(start, min(start + trace.depth, end)):
            at = first
            while at < end and trace.complete[at]:
                visits[at] += 1
                at += int(accepted[at]) + 1
    return visits


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_visits_are_those_of_a_decoder(sizes: list[int], depth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    trace = trace_of([*sizes, depth + 1], depth, rng)
    accepted = rng.integers(0, depth + 1, len(trace)).astype(rng.choice([np.int16, np.int64]))
    expected = walked(trace, accepted)
    assert replay.draft_starts(trace, accepted).tolist() == expected
    for way in (replay._side_by_side, replay._doubled):
        found = [way(walk, accepted[walk.rows] + 1) for walk in trace.walks]
        assert np.concatenate(found).tolist() == expected, way


def test_many_documents_are_walked_side_by_side() -> None:
    rng = np.random.default_rng(0)
    alike, one_long = (trace_of(sizes, 3, rng) for sizes in ([20] * 60, [9000, *[5] * 60]))
    assert [walk.is_wide for walk in alike.walks] == [True]
    assert [walk.is_wide for walk in one_long.walks] == [False]
    accepted = rng.integers(0, 4, len(alike))
    assert replay.draft_starts(alike, accepted).tolist() == walked(alike, accepted)
