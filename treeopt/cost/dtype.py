"""The number formats that weights are served in."""

from __future__ import annotations

from enum import StrEnum

from treeopt.errors import InputError


class Dtype(StrEnum):
    """A number format; `Dtype("bf16")` parses one.

    Raises:
        InputError: a name that is none of these.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"

    @property
    def bytes_per_value(self) -> int:
        """Bytes that one weight takes."""
        return 1 if self is Dtype.FP8 else 2

    @property
    def wide(self) -> Dtype:
        """The 16-bit format beside it: engines keep activations, KV, logits and messages in it for fp8 weights too."""
        return Dtype.BF16 if self is Dtype.FP8 else self

    @classmethod
    def _missing_(cls, value: object) -> Dtype:
        raise InputError(f"unknown dtype '{value}'", hint=f"known: {', '.join(cls)}")
