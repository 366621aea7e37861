"""E of trees by confidence over their budget, from two budgets that somebody published.

ln E(2N) - ln E(N) falls by one factor from doubling to doubling, so ln E(N) = a - c N^-s with s the same for all: with
two known budgets a and c follow. `DECAY` and the error are those of DDTree's and JetSpec's tables on six data sets each
(`benchmarks/drafters.py`, docs/drafters.md): with the other eleven tables' factor, E at 128 from 64 and 256, and at 256
from 64 and 128.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from treeopt.answer import Estimate
from treeopt.errors import InputError

DECAY: Final = 0.356
"""What one doubling gains in ln E, as a share of what the doubling before gained."""
ERROR: Final = 0.03
"""Largest error of the law on the published tables, as a share."""
_REACH: Final = 2.0  # beyond one doubling nothing was judged


def length_at(budget: float, known: Mapping[int, float], *, decay: float = DECAY) -> Estimate:
    """E at a budget from two or more known ones; the two around it, or nearest to it, count.

    Worked: of E 7.16 at 64 and 9.81 at 256, ln E rises by 0.315 in two doublings, 0.315 / 1.356 of it in the first:
    E(128) = 7.16 exp(0.232) = 9.03.

    Raises:
        InputError: fewer than two budgets, an E below 1 or that falls, or a budget more than a doubling beyond.
    """
    points = sorted(known.items())
    if len(points) < 2:
        raise InputError("one known budget tells nothing of others", hint="give two: 64=7.16,256=9.81")
    if points[0][0] < 1 or points[0][1] < 1.0 or any(b[1] < a[1] for a, b in pairwise(points)):
        raise InputError("acceptance lengths of rising budgets must rise from 1 on", hint="give BUDGET=E,BUDGET=E")
    if not points[0][0] / _REACH <= budget <= points[-1][0] * _REACH:
        raise InputError(
            f"a budget of {budget:g} is far from those known, {points[0][0]} to {points[-1][0]}",
            hint="nothing was judged beyond one doubling",
        )
    upper = next((i for i, (n, _) in enumerate(points) if n >= budget and i), len(points) - 1)
    (low, E_low), (high, E_high) = points[upper - 1], points[upper]
    s = -math.log2(decay)
    share = (low**-s - budget**-s) / (low**-s - high**-s)
    value = math.exp(math.log(E_low) + share * math.log(E_high / E_low))
    if budget in known:
        return Estimate(value=known[int(budget)])
    return Estimate(value=value, low=max(value * (1 - ERROR), 1.0), high=value * (1 + ERROR))
