"""Steps that fell out of graph capture: far slower than their kernels, all of them at the most tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.served.step import ServedStep

# No kernel model is off by more at one end of a table only; the published fall-out is 7 times (17.5 to 120.6 ms).
_FAR: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Eager:
    """Where a table leaves graph capture: the most tokens that still were in, and the fewest that were not."""

    captured_tokens: int
    eager_tokens: int
    rows: tuple[ServedStep, ...]

    def findings(self) -> list[str]:
        """One sentence per row."""
        return [
            row.say(
                f"{row.named()} ({row.tokens} tokens) takes {row.step_time_s * 1e3:.4g} ms: out of graph capture, "
                f"which still held at {self.captured_tokens} tokens; kept out of the constants"
            )
            for row in self.rows
        ]


def find_eager(rows: Sequence[ServedStep], kernels_s: FloatArray) -> Eager | None:
    """The rows at the most tokens that all take over twice as much, beside their kernels, as any row below them."""
    ratio = np.array([row.step_time_s for row in rows]) / kernels_s
    tokens = np.array([row.tokens for row in rows])
    for first in np.unique(tokens)[1:]:
        above = tokens >= first
        if ratio[above].min() > _FAR * ratio[~above].max():
            return Eager(
                captured_tokens=int(tokens[~above].max()),
                eager_tokens=int(first),
                rows=tuple(row for row, is_above in zip(rows, above, strict=True) if is_above),
            )
    return None
