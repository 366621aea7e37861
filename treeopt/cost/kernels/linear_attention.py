"""Linear attention: layers that keep one state per request in place of keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from treeopt.arrays import FloatArray
from treeopt.cost.kernels.gemm import Gemm
from treeopt.errors import InputError

# Engines keep the recurrent state in 32 bit.
_STATE_BYTES: Final = 4.0
_ACTIVATION_BYTES: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class LinearAttention:
    """Gated delta rule: `layers` of a network, each with a short convolution and a state for every value head.

    Source: Yang et al., "Gated Delta Networks", arXiv 2412.06464; the projections are those of Qwen3-Next in
    transformers: q, k, v and the gate in one, the two scalars of each value head, then the output.
    """

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int

    def projections(self, hidden: int) -> tuple[Gemm, ...]:
        """The GEMMs of one layer."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return (Gemm(2 * keys + 2 * values, hidden), Gemm(2 * self.value_heads, hidden), Gemm(hidden, values))

    @property
    def channels(self) -> int:
        """That the short convolution runs over: q, k and v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_bytes(self) -> float:
        """The recurrent state of one request in one layer.

        Qwen3-Next: 32 value heads of 128 x 128 in 32 bit, 2.1 MB.
        """
        return _STATE_BYTES * self.value_heads * self.key_dim * self.value_dim

    def moved_bytes(self, requests: FloatArray, tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
        """`[...]` bytes of one layer's two kernels, the convolution and the recurrence, for `tokens` per request.

        Each request's state is read once, and written after every token, so that a rejected one can be taken back.
        """
        window = _ACTIVATION_BYTES * self.channels * (self.conv_kernel - 1 + 2.0 * tokens)
        values = _ACTIVATION_BYTES * tokens * (self.channels + 2.0 * self.value_heads * self.value_dim)
        return requests * window, requests * (self.state_bytes * (1.0 + tokens) + values)

    def shard(self, tp: int) -> LinearAttention:
        """One GPU's part of `tp`: the heads share out.

        Raises:
            InputError: `tp` that the heads do not divide by.
        """
        if self.key_heads % tp or self.value_heads % tp:
            raise InputError(
                f"{self.key_heads} key and {self.value_heads} value heads of linear attention do not share out over "
                f"tp={tp}",
                hint="give a tp that divides both",
            )
        return replace(self, key_heads=self.key_heads // tp, value_heads=self.value_heads // tp)
