"""The matrices of a network: what is counted as its parameters is what a step streams."""

from __future__ import annotations

from typing import NamedTuple


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
