"""The form of a kernel's time: a launch, an overhead per unit, and memory or arithmetic in a soft maximum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.files.typed import Between, Count

# Activations, KV and messages are 16 bit beside every weight format.
WIDE_BYTES: Final = 2
# Rows of an output tile that GEMM kernels choose from, and its columns.
_TILE_ROWS: Final = (64, 128, 256)
_TILE_COLUMNS: Final = 128
_SPLITS: Final = (1, 2, 4)


class Work(NamedTuple):
    """What kernels move and compute: `[...]` bytes, operations, and units that each cost a fixed overhead."""

    traffic_bytes: FloatArray
    flops: FloatArray
    units: FloatArray


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """`launch + unit * units + softmax(bytes / bandwidth, flops / peak)`, the maximum soft with exponent `sharpness`.

    Infinite `sharpness` is the hard maximum, infinite `peak_flops` a kernel that memory alone bounds.
    Source: Williams et al. 2009, "Roofline"; the soft maximum is the p-norm.
    """

    bandwidth_bytes_per_s: Annotated[float, Between(1e6, 1e15)]
    peak_flops: Annotated[float, Between(1e6, 1e19)] = math.inf
    launch_s: Annotated[float, Between(0.0, 1.0)] = 0.0
    unit_s: Annotated[float, Between(0.0, 1.0)] = 0.0
    sharpness: Annotated[float, Between(0.1)] = math.inf

    def busy_s(self, work: Work) -> FloatArray:
        """`[...]` seconds of memory and arithmetic."""
        return soft_maximum(
            work.traffic_bytes / self.bandwidth_bytes_per_s, work.flops / self.peak_flops, self.sharpness
        )

    def time_s(self, work: Work) -> FloatArray:
        """`[...]` seconds with launch and overheads."""
        return self.launch_s + self.unit_s * work.units + self.busy_s(work)

    def document(self) -> dict[str, float]:
        """The finite parameters, as a profile keeps them."""
        return {key: float(f"{value:.5g}") for key, value in vars(self).items() if math.isfinite(value)}


def soft_maximum(a: FloatArray, b: FloatArray, sharpness: float) -> FloatArray:
    """`(a^q + b^q)^(1/q)` of `[...]` values >= 0 without overflow; the maximum itself for infinite q."""
    high = np.maximum(a, b)
    if math.isinf(sharpness):
        return high
    share = np.divide(np.minimum(a, b), high, out=np.zeros_like(high), where=high > 0)
    soft: FloatArray = high * (1.0 + share**sharpness) ** (1.0 / sharpness)
    return soft


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Arithmetic in whole tiles and whole waves over `processors`, the best of three tile heights and split-K.

    `efficiency` is what halving a tile's height leaves of the peak.
    Source: NVIDIA Matrix Multiplication Background, DU-09799-001, sections 3.1 and 3.2.
    """

    processors: Count
    efficiency: Annotated[float, Between(0.1, 1.0)]

    def flops(self, tokens: FloatArray, outputs: FloatArray, inputs: FloatArray) -> FloatArray:
        """`[...]` operations that the time of a GEMM is charged for, padding and idle processors included."""
        best = np.full(np.broadcast_shapes(np.shape(tokens), np.shape(outputs)), np.inf)
        columns = np.ceil(outputs / _TILE_COLUMNS)
        for rows in _TILE_ROWS:
            tiles = np.ceil(tokens / rows) * columns
            waves = np.min([np.ceil(tiles * split / self.processors) / split for split in _SPLITS], axis=0)
            padded = 2.0 * waves * self.processors * rows * _TILE_COLUMNS * inputs
            best = np.minimum(best, padded / self.efficiency ** math.log2(_TILE_ROWS[-1] / rows))
        return best
