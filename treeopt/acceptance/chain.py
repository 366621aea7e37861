"""Evidence of a chain that ran: ranks along its draft, up to and including the first token that was wrong.

What the recorder inside a serving engine sees. The target's token at the first miss says what a sibling there would
have been worth, so a chain with siblings is counted, not modelled. Behind a wrong guess nothing was seen: there the
chain's rows are taken, times a share that is a guess with a range (`Turn`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.model import non_increasing
from treeopt.acceptance.paths import MAX_RANKS
from treeopt.acceptance.table import DepthRanks
from treeopt.arrays import FloatArray, IntArray
from treeopt.tree import MAX_DEPTH

# A guess behind a wrong turn against the same guess along the chain: median and range over twelve traces of EAGLE-style
# and Medusa-style heads, early exits and prompt lookup (docs/recorded.md).
LIKELY_SHARE: Final = 0.85
SHARES: Final = (0.5, LIKELY_SHARE, 1.2)
MOST_GROUPS: Final = 64


@dataclass(frozen=True, kw_only=True)
class ChainRanks(DepthRanks):
    """Rates `[D, K]` along the chain and the drafts `[D]` that reached each depth, in groups of documents.

    Documents are what an interval redraws; more than `MOST_GROUPS` of them are put together at random, which changes
    its width by less than the groups' own chance. Worked: of 4 drafts 3 had a right first token, whose second one was
    rank 0 twice and rank 2 once: f of `(0, 2)` is 3/4 * 1/3 = 1/4, the share of drafts that a node there would catch.

    Args:
        group_reached: `[G, D]` drafts of each group that reached each depth.
        group_counts: `[G, D, K]` those of them whose next token had each rank.
    """

    group_reached: FloatArray
    group_counts: FloatArray

    @classmethod
    def of_groups(cls, reached: FloatArray, counts: FloatArray) -> ChainRanks:
        """From what each group counted.

        Raises:
            EvidenceError: a depth that no draft reached, or more successes than trials.
        """
        if reached.ndim != 2 or counts.ndim != 3 or counts.shape[:2] != reached.shape:
            raise EvidenceError(
                f"groups of {list(reached.shape)} trials and {list(counts.shape)} counts",
                keys=("groups",),
                hint="each group has reached [depth] and counts [depth][rank]",
            )
        if (counts < 0).any() or (counts.sum(axis=2) > reached * (1 + 1e-9)).any():
            raise EvidenceError(
                "a group counts more tokens than drafts",
                keys=("groups",),
                hint="only one rank can be right",
            )
        total = DepthRanks.from_counts(reached=reached.sum(axis=0), counts=counts.sum(axis=0))
        return cls(rates=total.rates, reached=total.reached, group_reached=reached, group_counts=counts)

    @property
    def groups(self) -> int:
        """G."""
        return len(self.group_reached)

    def model(self, share: float = LIKELY_SHARE) -> ChainModel:
        """The rates, made non-increasing in the rank; behind a wrong turn `share` of them."""
        return ChainModel(non_increasing(self.rates), share)

    def joined(self, other: ChainRanks) -> ChainRanks:
        """The counts of both; beyond `MOST_GROUPS` groups are put together."""
        shape = tuple(max(a, b) for a, b in zip(self.group_counts.shape[1:], other.group_counts.shape[1:], strict=True))
        counts = np.concatenate([_padded(one.group_counts, shape) for one in (self, other)])
        reached = np.concatenate([_padded(one.group_reached, shape[:1]) for one in (self, other)])
        slot = np.arange(len(counts)) % MOST_GROUPS
        groups = min(len(counts), MOST_GROUPS)
        all_reached, all_counts = np.zeros((groups, *shape[:1])), np.zeros((groups, *shape))
        np.add.at(all_reached, slot, reached)
        np.add.at(all_counts, slot, counts)
        return ChainRanks.of_groups(all_reached, all_counts)


class ChainCounter:
    """Counts recorded drafts in memory that does not grow with their number; of documents it keeps the names."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._reached = np.zeros((MOST_GROUPS, MAX_DEPTH))
        self._counts = np.zeros((MOST_GROUPS, MAX_DEPTH, MAX_RANKS))

    @property
    def documents(self) -> int:
        """How many there were."""
        return len(self._numbers)

    def add(self, document: Hashable, ranks: Sequence[int]) -> None:
        """One draft's ranks, up to and including its first miss; -1 where the token was not listed."""
        group = self._numbers.setdefault(document, len(self._numbers)) % MOST_GROUPS
        self._reached[group, : len(ranks)] += 1.0
        for depth, rank in enumerate(ranks):
            if rank >= 0:
                self._counts[group, depth, rank] += 1.0

    def result(self) -> ChainRanks:
        """All that was counted.

        Raises:
            EvidenceError: no draft was.
        """
        groups = min(self.documents, MOST_GROUPS)
        depth = int(np.count_nonzero(self._reached.sum(axis=0)))
        if not depth:
            raise EvidenceError("no draft was recorded", keys=(), hint="record a server that drafts")
        width = int(np.flatnonzero(self._counts.any(axis=(0, 1))).max(initial=0)) + 1
        return ChainRanks.of_groups(self._reached[:groups, :depth], self._counts[:groups, :depth, :width])


@dataclass(frozen=True, eq=False)
class ChainModel:
    """Rows by depth alone along the chain and at its misses; behind a wrong turn a share of them (see `PathModel`)."""

    rates: FloatArray
    share: float

    product_form = False

    @property
    def depth(self) -> int:
        """D of the evidence."""
        return len(self.rates)

    @property
    def ranks(self) -> int:
        """K of the evidence."""
        return int(self.rates.shape[1])

    def conditional(self, paths: IntArray) -> FloatArray:
        """See `PathModel`; a row never sums to more than 1."""
        depth = paths.shape[1]
        row = self.rates[depth]
        behind = row * min(self.share, 1.0 / max(float(row.sum()), 1e-300))
        return np.asarray(np.where(np.any(paths, axis=1, keepdims=True), behind, row))


def _padded(values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    out = np.zeros((len(values), *shape))
    out[tuple(slice(n) for n in values.shape)] = values
    return out
