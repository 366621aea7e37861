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
            logits, a torch tensor (numpy's, where the model runs without torch): `[A, M, V]`, or `[A, V]` with `at`.
        """

    def reference(self, tokens: IntArray, *, first: int = 0) -> Any:
        """`[L]` tokens of one text to the `[L - first, V]` logits after `tokens[first:]`, with no cache, no tree and
        the model's own causal attention."""


def as_float64(tensor: Any) -> FloatArray:
    """A torch tensor of any dtype and device, or an array, as an array of the same shape."""
    if isinstance(tensor, np.ndarray):
        return tensor.astype(np.float64)
    return np.asarray(tensor.double().cpu().numpy(), dtype=np.float64)


def softmax(scores: Any) -> Any:
    """Torch or numpy scores `[..., n]` to weights that sum to 1 along the last axis."""
    if not isinstance(scores, np.ndarray):
        return scores.softmax(-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def distributions(logits: Any, temperature: float) -> FloatArray:
    """Torch or numpy logits to float64 probabilities of the same shape, at a temperature above 0."""
    if isinstance(logits, np.ndarray):
        return np.asarray(softmax(as_float64(logits) / temperature), dtype=np.float64)
    return as_float64(softmax(logits.double() / temperature))


def likeliest(logits: Any) -> IntArray:
    """Torch or numpy logits `[..., V]` to the token with the largest one."""
    best = logits.argmax(-1)
    return np.asarray(best if isinstance(best, (np.ndarray, np.integer)) else best.cpu().numpy(), dtype=np.int64)
