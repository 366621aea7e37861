"""Sentences on prices that no measurement stands behind, or whose rows speak against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.family import Family, Use
from treeopt.cost.kernels.fit import KernelFit
from treeopt.cost.kernels.roofline import Roofline
from treeopt.cost.kernels.stand_ins import STAND_IN_ERROR

# Of a launch of 16-bit GEMMs: beyond it something else is in the rows.
_SLOW_LAUNCH: Final = 5.0
_ASKED: Final[Mapping[Family, tuple[str, ...]]] = {
    Family.GEMM: ("tokens",),
    Family.EXPERTS: ("tokens", "hidden", "intermediate", "experts", "per_token"),
    Family.ATTENTION: ("keys", "requests"),
    Family.LATENT: ("keys", "requests", "heads"),
    Family.ALL_REDUCE: ("message_bytes", "tp"),
}


def unmeasured(family: Family, dtype: Dtype, wide_experts: bool) -> str:
    """What stands in for a family without rows of a format; `wide_experts` have rows in 16 bit."""
    off = STAND_IN_ERROR.get((family, dtype))
    how = (
        f", off by {off.median:.0%} at the median and {off.p90:.0%} at the 90th percentile where both are"
        if off
        else ""
    )
    experts = "the form of 16-bit experts" if wide_experts else "the form of GEMMs"
    stand_in = {
        Family.GEMM: f"no {dtype} GEMM was measured: the bf16 form at {dtype.bytes_per_value:.2g} bytes per weight"
        + how,
        Family.EXPERTS: f"no {dtype} experts were measured: priced by {experts} at their bytes{how}",
        Family.ATTENTION: "no attention was measured: priced by the form of GEMMs",
        Family.LATENT: "no latent attention was measured: priced by the form of grouped-query attention"
        + (f"{how}" if off else ""),
        Family.ALL_REDUCE: "no all-reduce was measured: priced by the link's datasheet rate",
        Family.STREAM: "norms, activations and copies were not measured: priced with the launch and rate of GEMMs",
    }
    return stand_in[family]


def slow_kernel(hardware: str, family: Family, dtype: Dtype, form: Roofline, gemm: Roofline) -> str | None:
    """A sentence where rows have launches of the host in them, or stream far slower than 16-bit GEMMs do."""
    if family is Family.GEMM and form.launch_s > _SLOW_LAUNCH * gemm.launch_s:
        return (
            f"{dtype} GEMMs of {hardware} take {form.launch_s * 1e6:.0f} us whatever their size, 16-bit ones "
            f"{gemm.launch_s * 1e6:.0f}: their rows seem to hold launches from the host, which captured graphs save"
        )
    if form.bandwidth_bytes_per_s < gemm.bandwidth_bytes_per_s / 2:
        return (
            f"{dtype} {family} of {hardware} stream at {form.bandwidth_bytes_per_s / 1e12:.2f} TB/s, its GEMMs at "
            f"{gemm.bandwidth_bytes_per_s / 1e12:.2f}: a slow kernel, which your checkpoint may not run"
        )
    return None


def outside(fit: KernelFit, family: Family, use: Use) -> list[str]:
    """Where a use is beyond the measured sizes."""
    found = []
    for size in _ASKED.get(family, ()):
        limit, value = fit.limit(size), getattr(use, size)
        if not limit or not value or limit.low <= value <= limit.high:
            continue
        what, kernel = size.replace("_", " "), family.replace("_", "-")
        if value > limit.high:
            found.append(f"{kernel} was measured up to {limit.high:,.0f} {what}, asked for {value:,}")
        elif size in _ASKED[Family.EXPERTS][1:]:
            found.append(f"{kernel} was measured from {limit.low:,.0f} {what} on, asked for {value:,}")
    return found
