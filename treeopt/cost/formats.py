"""The number formats that weights are served in, each with the format of the activations beside it."""

from __future__ import annotations

from enum import StrEnum

from treeopt.errors import InputError


class Dtype(StrEnum):
    """A number format; `Dtype("bf16")` parses one.

    - `fp8`: 8-bit floats with one scale per tensor or channel; activations are scaled in every step.
    - `fp8_static`: the same with the activations' scales fixed in the checkpoint.
    - `fp8_block`: a scale for each 128 x 128 block of a weight (DeepSeek-V3, arXiv 2412.19437, section 3.3.2).
    - `int8`: 8-bit integers for weights and activations (SmoothQuant, arXiv 2211.10438).
    - `int4`: weights only, 16-bit scales for groups of 128 (AWQ, arXiv 2306.00978; GPTQ, arXiv 2210.17323).
    - `mxfp4`, `mxfp4_mxfp8`: 4-bit floats with an 8-bit scale for each 32, beside 16-bit or `mxfp8` activations
      (OCP Microscaling Formats 1.0).
    - `nvfp4`: 4-bit floats with an 8-bit scale for each 16, for weights and activations.

    Raises:
        InputError: a name that is none of these.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP8 = "fp8"
    FP8_STATIC = "fp8_static"
    FP8_BLOCK = "fp8_block"
    INT8 = "int8"
    INT4 = "int4"
    MXFP4 = "mxfp4"
    MXFP4_MXFP8 = "mxfp4_mxfp8"
    NVFP4 = "nvfp4"

    @property
    def bytes_per_value(self) -> float:
        """Bytes that one weight takes, its share of the scales included: `int4` 0.5 + 2 / 128 = 0.516."""
        return _BYTES[self]

    @property
    def wide(self) -> Dtype:
        """The format beside it that engines keep KV, logits and messages in: 16-bit, or all in 32."""
        return self if self in (Dtype.BF16, Dtype.FP16, Dtype.FP32) else Dtype.BF16

    @property
    def arithmetic(self) -> Dtype:
        """The format that products are taken in, which is that of the activations."""
        return _ARITHMETIC.get(self, self)

    @classmethod
    def _missing_(cls, value: object) -> Dtype:
        raise InputError(f"unknown dtype '{value}'", hint=f"known: {', '.join(cls)}")


_BYTES = {
    Dtype.BF16: 2.0,
    Dtype.FP16: 2.0,
    Dtype.FP32: 4.0,
    Dtype.FP8: 1.0,
    Dtype.FP8_STATIC: 1.0,
    Dtype.FP8_BLOCK: 1.0 + 4 / 128**2,
    Dtype.INT8: 1.0,
    Dtype.INT4: 0.5 + 2 / 128,
    Dtype.MXFP4: 0.5 + 1 / 32,
    Dtype.MXFP4_MXFP8: 0.5 + 1 / 32,
    Dtype.NVFP4: 0.5 + 1 / 16,
}
_ARITHMETIC = {
    Dtype.FP8_STATIC: Dtype.FP8,
    Dtype.FP8_BLOCK: Dtype.FP8,
    Dtype.INT4: Dtype.BF16,
    Dtype.MXFP4: Dtype.BF16,
    Dtype.MXFP4_MXFP8: Dtype.FP8,
}
