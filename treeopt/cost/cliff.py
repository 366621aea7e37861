"""Where a step of some tokens is at a jump or spike of measured times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from treeopt.arrays import FloatArray

# How much longer counts as a cliff, beyond what the tokens between account for.
_LONGER: Final = 0.05
# A spike is above the time of a step at most a third larger.
_NEXT: Final = 4 / 3


def cliff(time_s: Callable[[FloatArray], FloatArray], tokens: int) -> str | None:
    """A sentence where a step of `tokens` is just before or past a jump of `time_s`, or at a spike; else None."""
    around = np.arange(max(tokens - 1, 1.0), max(int(_NEXT * tokens), tokens + 1) + 1)
    times = time_s(around)
    at = min(tokens - 1, 1)
    now, larger = times[at], times[at + 1 :]
    if at and now > _growth(tokens - 1) * times[0]:
        return _said(tokens, now / times[0], tokens - 1)
    if larger[0] > _growth(tokens) * now:
        return _said(tokens + 1, larger[0] / now, tokens)
    if now > (1 + _LONGER) * larger.min():
        return _said(tokens, now / larger.min(), tokens + 1 + int(larger.argmin()))
    return None


def _growth(tokens: int) -> float:
    return (1 + _LONGER) * (tokens + 1) / tokens


def _said(tokens: int, ratio: float, other: int) -> str:
    return f"the weights' kernels take {ratio - 1:.0%} longer for {tokens} tokens per step than for {other} (measured)"
