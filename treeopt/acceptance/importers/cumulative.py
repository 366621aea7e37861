"""Tables of "right among the first k guesses": per-rank probabilities where k rises by one, sums where it jumps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeopt.acceptance.conversions import ranks_from_cumulative
from treeopt.acceptance.importers.reading import KnownSum
from treeopt.arrays import FloatArray
from treeopt.files.evidence_lines import Place


class TopK(NamedTuple):
    """How often the right token was among the first `size` guesses, and where that stands."""

    size: int
    probability: float
    place: Place


class Split(NamedTuple):
    """Per-rank probabilities `[D, K]` as far as every depth has them, and what is known of the ranks beyond."""

    rates: FloatArray
    known_sums: tuple[KnownSum, ...]


def split(depths: Sequence[Sequence[TopK]]) -> Split:
    """Take the differences of each depth's table, sorted by size.

    Raises:
        FileFormatError: a probability above 1, or one that falls as more guesses count.
    """
    for row in depths:
        _check(row)
    # A depth without its top-1 ends the table: what lies below it has no known way there.
    alone = [_known_alone(row) for row in depths]
    usable = alone.index(0) if 0 in alone else len(alone)
    K = min(alone[:usable], default=0)
    rates = np.array([ranks_from_cumulative(np.array([t.probability for t in row[:K]])) for row in depths[:usable]])
    sums = [s for d, row in enumerate(depths) for s in _sums(d + 1, row, K if d < usable else 0)]
    return Split(rates.reshape(usable, K), tuple(sums))


def _check(row: Sequence[TopK]) -> None:
    for before, top in zip([None, *row], row, strict=False):
        if top.probability > 1:
            raise top.place.error(f"top-{top.size} {top.probability:.10g} is above 1", hint="is this percent?")
        if before is not None and (top.probability < before.probability or top.size == before.size):
            raise top.place.error(
                f"top-{top.size} {top.probability:.10g} after top-{before.size} {before.probability:.10g}",
                hint="cumulative values rise with the number of guesses; per-rank values are a rank profile already",
            )


def _known_alone(row: Sequence[TopK]) -> int:
    known = 0
    while known < len(row) and row[known].size == known + 1:
        known += 1
    return known


def _sums(depth: int, row: Sequence[TopK], planned: int) -> list[KnownSum]:
    size, probability = (row[planned - 1].size, row[planned - 1].probability) if planned else (0, 0.0)
    sums = []
    for top in row[planned:]:
        sums.append(
            KnownSum(depth=depth, first_rank=size, last_rank=top.size - 1, probability=top.probability - probability)
        )
        size, probability = top.size, top.probability
    return sums
