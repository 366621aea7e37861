"""The rank trace of a run: at every position that was decoded, where the drafter had placed the token that came.

The same rows as `treeopt.collect` records: in row p the continuation's tokens 0..p are committed and token p is the
root; depth d asks for token p + d, given the true tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.trace import PAST_END, Trace
from treeopt.arrays import IntArray
from treeopt.decode.batch import NOTHING, TreeBatch
from treeopt.decode.drafting import Drafter, Level
from treeopt.decode.rules import Rule, Siblings
from treeopt.errors import InputError
from treeopt.tree import DraftTree

_TOGETHER: Final = 64  # positions that a drafter is asked about at a time


class Text(NamedTuple):
    """One request of a run: its prompt, and what was decoded behind it."""

    prompt: Sequence[int]
    written: Sequence[int]


def record_trace(texts: Sequence[Text], drafter: Drafter, *, rule: Rule, depth: int, ranks: int = 32) -> Trace:
    """The trace of finished requests, with request i as document i.

    The drafter is asked again along the text, with chains of true tokens, so what it answers in a run and what is
    recorded are two computations. Guesses from rank `ranks` on count as not listed.

    Raises:
        InputError: a rule whose accepted sibling does not follow from the emitted token (recursive rejection draws
            it), or an approximate one.
        EvidenceError: nothing was decoded.
    """
    if not rule.exact or rule.siblings is not Siblings.BEST:
        raise InputError(
            f"no trace of a run under {rule.label}: the accepted node does not follow from the token",
            hint="record a run under greedy or target-sample, or collect one with `treeopt ranks collect`",
        )
    parts = [_rows(text, drafter, depth=depth, ranks=ranks) for text in texts]
    return Trace(
        rank=np.concatenate(parts or [np.zeros((0, depth), dtype=np.int64)]),
        doc_id=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        pos=np.concatenate([np.arange(len(part)) for part in parts] or [np.zeros(0, dtype=np.int64)]),
    )


def _rows(text: Text, drafter: Drafter, *, depth: int, ranks: int) -> IntArray:
    T = len(text.written)
    rank = np.full((T, depth), PAST_END)
    for first in range(0, T - 1, _TOGETHER):
        places = np.arange(first, min(first + _TOGETHER, T - 1))
        rank[places] = _along(text, places, drafter, depth=depth, ranks=ranks)
    return rank


def _along(text: Text, places: IntArray, drafter: Drafter, *, depth: int, ranks: int) -> IntArray:
    """`[n, depth]` ranks for draft starts at `places [n]`; every chain ends where the text does."""
    written, T = np.asarray(text.written), len(text.written)
    trees = TreeBatch.of([DraftTree.chain(min(depth, T - 1 - int(p))) for p in places])
    texts = [[*text.prompt, *text.written[: p + 1]] for p in places.tolist()]
    tokens = np.full((len(places), trees.nodes), NOTHING)
    rank = np.full((len(places), depth), PAST_END)
    for d in range(trees.nodes):
        there = places + d < T
        tokens[there, d] = written[places[there] + d]
    for d in range(trees.depth):
        request = np.flatnonzero(places + d + 1 < T)
        level = Level(
            rows=np.arange(len(places)),
            texts=texts,
            trees=trees,
            tokens=np.where(np.arange(trees.nodes) <= d, tokens, NOTHING),
            depth=d,
            request=request,
            node=np.full(len(request), d),
        )
        right = drafter.guesses(level).top(ranks) == tokens[request, d + 1][:, None]
        rank[request, d] = np.where(right.any(axis=1), right.argmax(axis=1), NOTHING)
    return rank
