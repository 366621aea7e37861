"""The matrices of a network: what is counted as its parameters is what a step streams."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.kernels.roofline import WIDE_BYTES, Tiling, Work


class Gemm(NamedTuple):
    """A weight `[groups, outputs, inputs]` that every token meets: `y[t, g] = W[g] x[t, g]`."""

    outputs: int
    inputs: int
    groups: int = 1

    @property
    def weights(self) -> int:
        """Values in the weight."""
        return self.groups * self.outputs * self.inputs

    @property
    def activations(self) -> int:
        """Values read and written per token."""
        return self.groups * (self.outputs + self.inputs)


class GatedFfn(NamedTuple):
    """The two GEMMs of a gated feed-forward block: `down(act(gate(x)) * up(x))`, gate and up in one."""

    gate_up: Gemm
    down: Gemm

    @property
    def weights(self) -> int:
        """Values in the three matrices."""
        return self.gate_up.weights + self.down.weights


def gated_ffn(hidden: int, intermediate: int) -> GatedFfn:
    """The feed-forward block of a network with `hidden` channels, `intermediate` wide."""
    return GatedFfn(gate_up=Gemm(2 * intermediate, hidden), down=Gemm(hidden, intermediate))


def gemm_work(
    tokens: FloatArray, outputs: FloatArray, inputs: FloatArray, bytes_per_value: float, tiling: Tiling | None = None
) -> Work:
    """`[...]` tokens through one weight `[outputs, inputs]`, streamed once whatever their number.

    300 tokens through 3000 x 1000 in bf16: 6,000,000 + 300 * 8000 = 8.4e6 bytes, 2 * 300 * 3e6 = 1.8e9 operations.
    """
    plain = 2.0 * tokens * outputs * inputs
    return Work(
        traffic_bytes=bytes_per_value * outputs * inputs
        + max(WIDE_BYTES, bytes_per_value) * tokens * (outputs + inputs),
        flops=plain if tiling is None else tiling.flops(tokens, outputs, inputs),
        units=np.zeros(np.shape(plain)),
    )


def gemm_point(outputs: FloatArray, inputs: FloatArray) -> FloatArray:
    """`[..., 2]` what tells weights apart."""
    return np.stack([np.log(outputs), np.log(inputs)], axis=-1)


def scales_work(tokens: FloatArray, inputs: FloatArray) -> Work:
    """`[...]` tokens of `inputs` 16-bit activations, read once to find their scales."""
    nothing = np.zeros(np.shape(1.0 * tokens * inputs))
    return Work(1.0 * WIDE_BYTES * tokens * inputs, nothing, nothing)


def scales_point(inputs: FloatArray) -> FloatArray:
    """`[..., 1]` what tells them apart."""
    return np.log(inputs)[..., None]
