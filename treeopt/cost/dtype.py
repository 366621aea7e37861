"""The number formats that weights are served in."""

from __future__ import annotations

from enum import StrEnum

from treeopt.errors import InputError


class Dtype(StrEnum):
    """A number format; `Dtype("bf16")` parses one.

    `int4` is weight-only: groups of 128 four-bit weights share a 16-bit scale (AWQ, arXiv 2306.00978; GPTQ), and
    kernels widen them on the way to 16-bit arithmetic.

    Raises:
        InputError: a name that is none of these.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP8 = "fp8"
    INT4 = "int4"

    @property
    def bytes_per_value(self) -> float:
        """Bytes that one weight takes, its share of the scales included."""
        if self is Dtype.INT4:
            return 0.5 + 2 / 128
        return {Dtype.FP32: 4, Dtype.FP8: 1}.get(self, 2)

    @property
    def wide(self) -> Dtype:
        """The format beside it that engines keep activations, KV, logits and messages in: 16-bit, or all in 32."""
        return self if self in (Dtype.BF16, Dtype.FP16, Dtype.FP32) else Dtype.BF16

    @property
    def arithmetic(self) -> Dtype:
        """The format that products are taken in."""
        return Dtype.BF16 if self is Dtype.INT4 else self

    @classmethod
    def _missing_(cls, value: object) -> Dtype:
        raise InputError(f"unknown dtype '{value}'", hint=f"known: {', '.join(cls)}")
