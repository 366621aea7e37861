"""How far tokens per step of a run may lie from a plan's, by chance of the prompts of both.

The plan has its documents, the run other ones of the same law. Both are redrawn from the plan's trace, as many as each
has, and the differences of their E say what may be (the bootstrap of a difference). E of the plan's documents is a
replay's, E of the run's that of a walk from a text's first token to its last one, as a server takes it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.replay import accepted_lengths, replay
from treeopt.acceptance.trace import Trace
from treeopt.tree import DraftTree

REPLICATES = 20_000


class Spread(NamedTuple):
    """A run's E less the plan's: ends of the 95 % interval, and of the 99.9 % one."""

    low: float
    high: float
    lowest: float
    highest: float


def spread(trace: Trace, tree: DraftTree, *, documents: int, tokens: int, seed: int = 0) -> Spread:
    """The 95 % and the 99.9 % interval of E over so many new documents, less that over those of the trace."""
    rng = np.random.default_rng(seed)
    known = replay(trace, tree)
    planned = np.stack([known.tokens - known.steps, known.steps], axis=1).astype(np.float64)
    served = walked(trace, tree, tokens).astype(np.float64)
    there = _redrawn(rng, planned, len(planned))
    here = _redrawn(rng, served, documents)
    difference = (here - _ratio(served.sum(0))) - (there - _ratio(planned.sum(0)))
    lowest, low, high, highest = np.quantile(difference, [0.0005, 0.025, 0.975, 0.9995]).tolist()
    return Spread(low, high, lowest, highest)


def walked(trace: Trace, tree: DraftTree, tokens: int) -> npt.NDArray[np.int64]:
    """`[documents, 2]` tokens accepted and steps of a server that writes so many tokens, the first one by prefill.

    Row p of a document guesses what follows its first p + 1 tokens.
    """
    accepted = accepted_lengths(trace.rank, tree)
    found = np.zeros((trace.documents, 2), dtype=np.int64)
    for document, first in enumerate(trace.bounds[:-1]):
        at = 0
        while at < tokens - 1:
            took = int(accepted[first + at])
            found[document] += (took, 1)
            at += took + 1
    return found


def _redrawn(rng: np.random.Generator, sums: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """`[REPLICATES]` accepted tokens per step over so many redrawn documents."""
    n = len(sums)
    return _ratio(rng.multinomial(count, np.full(n, 1.0 / n), size=REPLICATES) @ sums)


def _ratio(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(sums[..., 0] / sums[..., 1])
