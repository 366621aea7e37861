"""What the decoder asks of a model, whether it is the target or a drafter."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from treeopt.arrays import FloatArray, IntArray
from treeopt.decode.cache import SlotCache
from treeopt.decode.step import ForwardBatch


class CausalModel(Protocol):
    """A causal language model that runs steps."""

    @property
    def name(self) -> str:
        """What a report calls it."""

    @property
    def vocabulary_size(self) -> int:
        """V, the width of its logits."""

    @property
    def device(self) -> Any:
        """Where it runs, as torch names it."""

    @property
    def dtype(self) -> Any:
        """What it computes in, as torch names it."""

    def forward(self, step: ForwardBatch, cache: SlotCache, *, at: IntArray | None = None) -> Any:
        """Run a step and write its keys and values to the cache.

        Args:
            at: `[A]` the one token of each request whose logits are wanted.

        Returns:
            a torch tensor of logits: `[A, M, V]`, or `[A, V]` with `at`.
        """

    def reference(self, tokens: IntArray, *, first: int = 0) -> Any:
        """`[L]` tokens of one text to the `[L - first, V]` logits after `tokens[first:]`, with no cache, no tree and
        the model's own causal attention."""


def as_float64(tensor: Any) -> FloatArray:
    """A torch tensor of any dtype and device as an array of the same shape."""
    return np.asarray(tensor.double().cpu().numpy(), dtype=np.float64)


def distributions(logits: Any, temperature: float) -> FloatArray:
    """Torch logits to float64 probabilities of the same shape, at a temperature above 0."""
    return as_float64((logits.double() / temperature).softmax(-1))


def likeliest(logits: Any) -> IntArray:
    """Torch logits `[..., V]` to the token with the largest one."""
    return np.asarray(logits.argmax(-1).cpu().numpy(), dtype=np.int64)
