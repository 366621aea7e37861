"""Whether a profile's own held-out points speak against its prices: one that was timed on a busy machine says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.times import KernelTimes

ROUGH_PRICES: Final = "rough prices"
# The worst shipped fit is off by 25 % at the median.
_ROUGH: Final = 0.3


def rough_prices(times: KernelTimes, kinds: Iterable[tuple[Family, Dtype]]) -> str | None:
    """A sentence where a fit that prices one of these kernels is far off on points that it was not fitted to.

    Medians of 78 % and 12 % for GEMMs and attention are told as the GEMMs' 78 %.
    """
    off, family = max((times.off_by(family, dtype), family) for family, dtype in kinds)
    if off <= _ROUGH:
        return None
    return (
        f"{ROUGH_PRICES}: the fit of {times.name} is off by {off:.0%} at the median on {family} points that it was not "
        "fitted to; time it again with the machine idle, or measure your server's steps with `treeopt measure`"
    )
