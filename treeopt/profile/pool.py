"""Random tensors for kernels to run on, cut out of one stretch of memory that is filled once."""

from __future__ import annotations

import math
from typing import Any, Final

from treeopt.cost.formats import Dtype
from treeopt.extras import require

# Prime, so that tensors of round sizes never hold the same values.
_PATTERN: Final = 4_000_037
_ALIGNED: Final = 256


class TensorPool:
    """Random values of one dtype on one device; zeros would run faster than any real step.

    Tensors taken since the last `reserve` do not overlap.
    """

    def __init__(self, *, dtype: Dtype, device: str, seed: int = 0) -> None:
        torch = require("torch", extra="gpu")
        self.torch = torch
        self.device = device
        self.dtype: Any = torch_dtype(dtype)
        self.generator: Any = torch.Generator(device=device).manual_seed(seed)
        self._values: Any = torch.empty(0, dtype=self.dtype, device=device)
        self._next = 0

    def reserve(self, *shapes: tuple[int, ...], sets: int) -> None:
        """Make room for `sets` tensors of each shape, all free to be written."""
        need = sets * sum(self._size(shape) for shape in shapes)
        self._next = 0
        if need > len(self._values):
            pattern = self.torch.randn(min(need, _PATTERN), generator=self.generator, device=self.device)
            self._values = pattern[:0]  # the old stretch makes room for the new one
            self._values = pattern.to(self.dtype).repeat(-(-need // len(pattern)))[:need]

    def take(self, *shape: int) -> Any:
        """The next tensor.

        Raises:
            ValueError: more is taken than was reserved.
        """
        start, self._next = self._next, self._next + self._size(shape)
        if self._next > len(self._values):
            raise ValueError("reserve more")
        return self._values[start : start + math.prod(shape)].view(shape)

    def _size(self, shape: tuple[int, ...]) -> int:
        return -(-math.prod(shape) // _ALIGNED) * _ALIGNED


def torch_dtype(dtype: Dtype) -> Any:
    """The torch dtype of a number format that torch computes in."""
    torch = require("torch", extra="gpu")
    return {Dtype.BF16: torch.bfloat16, Dtype.FP16: torch.float16, Dtype.FP32: torch.float32}[dtype]
