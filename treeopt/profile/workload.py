"""A point made ready to run on random inputs, and the check that it computes what it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from treeopt.errors import TreeoptError
from treeopt.extras import require
from treeopt.profile.points import KernelPoint
from treeopt.profile.pool import TensorPool

# A result may be off by this many roundings of its own dtype, and a sum of n terms, kept in float32, by this many
# times the square root of n; both against the largest exact value.
_ROUNDINGS: Final = 4.0
_SUM_ROUNDINGS: Final = 4.0
# Every value of a GEMM is a sum of its own: so many rows and columns are checked, spread over all.
_CHECKED: Final = 128


class WrongResultError(TreeoptError):
    """A kernel computed something else than the float64 reference: its time says nothing."""


class CheckedCall(NamedTuple):
    """What a kernel gave, and the same in float64."""

    result: Any
    exact: Any


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A point made ready.

    Attributes:
        calls: the same work on different inputs.
        check: runs the first of them.
        terms: how many products are summed up in each value of the result.
        check_small: the same kernel on so little that one missing term exceeds the roundings of sixteen bits.
    """

    calls: tuple[Callable[[], Any], ...]
    check: Callable[[], CheckedCall]
    terms: int
    check_small: Callable[[], CheckedCall] | None = None

    def error(self, point: KernelPoint) -> float:
        """The worst error of the first call, as a share of the largest exact value.

        Raises:
            WrongResultError: it exceeds what roundings explain, or does on a small part of the inputs.
        """
        if self.check_small is not None:
            self._within_budget(point, self.check_small())
        return self._within_budget(point, self.check())

    def _within_budget(self, point: KernelPoint, checked: CheckedCall) -> float:
        result, exact = checked
        scale = max(float(exact.abs().max()), 1e-30)
        found = float((result.double() - exact).abs().max()) / scale
        budget = self.budget(result.dtype)
        if not found <= budget:  # NaN too
            raise WrongResultError(
                f"{point}: the result is off by {found:.2g} of its largest value, {budget:.2g} would be rounding",
                hint="report it with the versions of torch and triton; the point was not timed",
            )
        return found

    def budget(self, dtype: Any) -> float:
        """What roundings explain: a share of the largest exact value; nothing where values are only moved."""
        torch = require("torch", extra="gpu")
        sums = _SUM_ROUNDINGS * self.terms**0.5 * torch.finfo(torch.float32).eps
        return float(_ROUNDINGS * torch.finfo(dtype).eps + sums) if self.terms else 0.0


def spread(pool: TensorPool, size: int) -> Any:
    """Up to 128 places spread over so many."""
    return pool.torch.linspace(0, size - 1, min(size, _CHECKED), device=pool.device).round().long()
