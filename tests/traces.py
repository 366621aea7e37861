"""Small traces, and the decoder written out as the loop that it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.trace import Trace
from treeopt.tree import DraftTree

SHIPPED = Path(__file__).resolve().parents[1] / "profiles" / "ranks" / "smollm2-135m-eagle.npz"


def shipped_trace() -> Trace:
    return read_trace(SHIPPED)


def trace_of(documents: Sequence[np.ndarray]) -> Trace:
    """Documents of `[L, D]` ranks; row t of L has L - 1 - t tokens after it, what lies beyond is cut."""
    cut = []
    for ranks in documents:
        length, depth = ranks.shape
        after = length - 1 - np.arange(length)
        cut.append(np.where(np.arange(depth) < after[:, None], ranks, -2))
    lengths = [len(ranks) for ranks in documents]
    return Trace(
        rank=np.concatenate(cut).astype(np.int8),
        doc_id=np.repeat(np.arange(len(documents)), lengths),
        pos=np.concatenate([np.arange(n) for n in lengths]),
    )


def shuffled(trace: Trace, order: Sequence[int]) -> Trace:
    """The same documents, recorded in another order."""
    rows = np.concatenate([np.arange(trace.bounds[d], trace.bounds[d + 1]) for d in order])
    return replace(trace, rank=trace.rank[rows], doc_id=trace.doc_id[rows], pos=trace.pos[rows])


def accepted(ranks: Sequence[int], tree: DraftTree) -> int:
    paths = set(tree.paths)
    return max((d for d in range(1, len(ranks) + 1) if tuple(ranks[:d]) in paths), default=0)


def decode(ranks: Sequence[Sequence[int]], tree: DraftTree) -> tuple[int, int]:
    """(tokens, steps) of one document's recorded rows, summed over the start phases."""
    depth = len(ranks[0])
    tokens = steps = 0
    for phase in range(depth):
        at = phase
        while at < len(ranks) and -2 not in ranks[at]:
            emitted = accepted(ranks[at], tree) + 1
            tokens, steps, at = tokens + emitted, steps + 1, at + emitted
    return tokens, steps


@st.composite
def traces(draw: st.DrawFn, depth: int = 3, ranks: int = 3) -> Trace:
    """A few short documents, at least one of which is long enough to be replayed."""
    lengths = draw(st.lists(st.integers(1, 14), min_size=0, max_size=4))
    lengths.append(draw(st.integers(depth + 1, 14)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return trace_of([rng.integers(-1, ranks, size=(n, depth)) for n in lengths])


@st.composite
def trees(draw: st.DrawFn, depth: int = 3, ranks: int = 3) -> DraftTree:
    drawn = draw(st.lists(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=depth), max_size=6))
    return DraftTree(tuple({tuple(path[: d + 1]) for path in drawn for d in range(len(path))}))
