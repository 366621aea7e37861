"""How far what stands in for a format without rows is off, where rows exist too: `python benchmarks/stand_ins.py`.

For every format of GEMMs and experts in the shipped profiles: the price without that format's fit, beside the times
that its curves keep, at 1 to 1024 tokens. `KernelTimes` tells these numbers (`STAND_IN_ERROR`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost import Dtype, Experts, KernelTimes, load_hardware
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.fits import FitEntry, KernelFits
from treeopt.cost.kernels.gemm import Gemm
from treeopt.cost.kernels.stand_ins import WIDE_FORMATS
from treeopt.errors import InputError
from treeopt.files.shipped import locate, shipped_names

TOKENS = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])


def errors(times: KernelTimes, entry: FitEntry) -> Iterator[FloatArray]:
    """`[11]` relative errors of the stand-in for each shape that the entry was fitted to."""
    bare = KernelTimes(
        name=times.name,
        fits=KernelFits(entries=tuple(e for e in times.fits.entries if e is not entry)),
        link_bandwidth_bytes_per_s=times.link_bandwidth_bytes_per_s,
    )
    assert entry.fit.residuals is not None
    try:
        bare.ridge_tokens(entry.dtype)
    except InputError:  # nothing stands in
        return
    for point in np.round(np.exp(entry.fit.residuals.points)):
        if entry.family is Family.GEMM:
            weight = Gemm(int(point[0]), int(point[1]))
            yield bare.gemm_s(TOKENS, weight, entry.dtype) / times.gemm_s(TOKENS, weight, entry.dtype) - 1.0
        elif point[4] == 1:  # balanced
            layer = Experts(
                count=int(point[2]),
                per_token=int(point[3]),
                intermediate=int(point[1]),
                shared_intermediate=0,
                dense_layers=0,
                skew=0.0,
            )
            own, other = (t.experts_s(TOKENS, layer, int(point[0]), entry.dtype) for t in (times, bare))
            yield other / own - 1.0


def main() -> None:
    """Print the table in Markdown."""
    found: dict[tuple[Family, Dtype], list[FloatArray]] = {}
    for name in shipped_names("hardware"):
        hardware = load_hardware(locate("hardware", name).path)
        for entry in hardware.fits.entries if hardware.fits else ():
            narrow = entry.dtype not in WIDE_FORMATS
            if narrow and entry.family in (Family.GEMM, Family.EXPERTS):
                found.setdefault((entry.family, entry.dtype), []).extend(errors(hardware.kernel_times(), entry))
    print("| family | format | median % | p90 % |\n|---|---|---|---|")
    for (family, dtype), each in found.items():
        if not each:
            continue
        off = np.abs(np.concatenate(each))
        print(f"| {family} | {dtype} | {100 * np.median(off):.0f} | {100 * np.quantile(off, 0.9):.0f} |")


if __name__ == "__main__":
    main()
