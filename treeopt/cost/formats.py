"""The number formats that weights are served in, each with the format of the activations beside it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

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


class WeightFormats(NamedTuple):
    """The formats that a network's layers are served in; embedding, LM head and routers stay wide, as in checkpoints.

    `layers` are projections, dense blocks and shared experts, `experts` the routed ones.
    """

    layers: Dtype = Dtype.BF16
    experts: Dtype = Dtype.BF16

    @classmethod
    def parse(cls, text: str, *, experts: bool = False) -> WeightFormats:
        """The formats that a name means for a network with or without experts.

        - `fp8` of a network with experts has theirs in blocks, as published checkpoints do; `fp8_tensor` has one scale
          per tensor for all.
        - `mxfp4` and `mxfp4_mxfp8` are of the experts alone, beside 16-bit layers, as gpt-oss is published.
        - `bf16/mxfp4` names those of the layers and of the experts.

        Raises:
            InputError: a name that is no format.
        """
        layers, slash, routed = text.partition("/")
        if slash:
            return cls(Dtype(layers), Dtype(routed))
        if text == "fp8_tensor":
            return cls(Dtype.FP8, Dtype.FP8)
        dtype = Dtype(text)
        if experts and dtype is Dtype.FP8:
            return cls(Dtype.FP8, Dtype.FP8_BLOCK)
        if experts and dtype in (Dtype.MXFP4, Dtype.MXFP4_MXFP8):
            return cls(Dtype.BF16, dtype)
        return cls(dtype, dtype)

    @property
    def wide(self) -> Dtype:
        """The format of activations, KV, logits and messages, and of what stays wide beside the layers."""
        return self.layers.wide

    def __str__(self) -> str:
        return str(self.layers) if self.layers is self.experts else f"{self.layers}/{self.experts}"
