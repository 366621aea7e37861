"""Depth-by-rank evidence: how often rank r was right at depth d, with the path to it forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.model import PathModel, non_increasing
from treeopt.arrays import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class DepthRanks:
    """Rates `[D, K]` and, where they were counted, the trials `[D]` behind them.

    f is the product of the rates along a path: independence of the depths is this evidence's assumption.

    Raises:
        EvidenceError: a rate or count below 0, a depth whose rates sum to more than 1, trials that rise with depth.
    """

    rates: FloatArray
    reached: FloatArray | None = None

    def __post_init__(self) -> None:
        _check_rows(self.rates, np.ones(len(self.rates)), key="probabilities")

    @classmethod
    def from_counts(cls, *, reached: FloatArray, counts: FloatArray) -> DepthRanks:
        """From trials per depth `[D]` and successes per depth and rank `[D, K]`."""
        if len(reached) != len(counts):
            raise EvidenceError(
                f"{len(reached)} depths in 'reached', {len(counts)} in 'counts'",
                keys=("reached",),
                hint="give the trials of every depth",
            )
        for d in range(len(reached)):
            if reached[d] <= 0:
                raise EvidenceError(f"depth {d + 1} was never tried", keys=("reached", d), hint="drop that depth")
            if d and reached[d] > reached[d - 1]:
                raise EvidenceError(
                    f"trials rise from {reached[d - 1]:g} to {reached[d]:g} at depth {d + 1}",
                    keys=("reached", d),
                    hint="a draft reaches depth d only through depth d - 1: check the order of the depths",
                )
        _check_rows(counts, reached, key="counts")
        return cls(rates=counts / reached[:, None], reached=reached)

    @property
    def counts(self) -> FloatArray | None:
        """`[D, K]` successes, where they were counted."""
        return None if self.reached is None else np.rint(self.rates * self.reached[:, None])

    @property
    def trials(self) -> float | None:
        """Drafts behind the evidence, where they were counted."""
        return None if self.reached is None else float(self.reached[0])

    def model(self) -> PathModel:
        """The rates, made non-increasing in the rank, as a product-form path model."""
        return DepthRankModel(self.rates)


class DepthRankModel:
    """Product-form f: the row at depth d is the same for every path (see `PathModel`)."""

    product_form = True

    def __init__(self, rates: FloatArray) -> None:
        self._rates = rates

    @cached_property
    def rates(self) -> FloatArray:
        """`[D, K]` non-increasing in the rank."""
        return non_increasing(self._rates)

    @property
    def depth(self) -> int:
        """D of the table."""
        return len(self._rates)

    @property
    def ranks(self) -> int:
        """K of the table."""
        return int(self._rates.shape[1])

    def conditional(self, paths: IntArray) -> FloatArray:
        """The table's row for the next depth, once per path."""
        n, depth = paths.shape
        return np.broadcast_to(self.rates[depth], (n, self.ranks))


def _check_rows(rows: FloatArray, totals: FloatArray, *, key: str) -> None:
    if rows.ndim != 2 or rows.size == 0:
        raise EvidenceError("expected a table [depth][rank]", keys=(key,), hint="give one list of ranks per depth")
    for d, (row, total) in enumerate(zip(rows, totals, strict=True)):
        for r, value in enumerate(row):
            if not np.isfinite(value) or value < 0 or value > total:
                raise EvidenceError(
                    f"{value:g} at depth {d + 1}, rank {r}: expected 0 to {total:g}",
                    keys=(key, d, r),
                    hint="a rank cannot be right more often than it was tried, nor less than never",
                )
        if row.sum() > total * (1 + 1e-9):
            raise EvidenceError(
                f"the ranks of depth {d + 1} sum to {row.sum():g}, more than {total:g}",
                keys=(key, d),
                hint="only one rank can be right: give per-rank values, not cumulative top-k",
            )
