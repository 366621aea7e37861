"""A toy transformer with random weights: rotary positions, grouped queries, RMS norms, a gated MLP; float64 possible.

Small enough to be read at once, and in float64 exact enough that two ways to compute the same thing agree to 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from treeopt.arrays import IntArray
from treeopt.decode.attention import Attention, masked_attention
from treeopt.decode.cache import SlotCache
from treeopt.decode.models import softmax
from treeopt.decode.step import ForwardBatch
from treeopt.extras import require

_ROTARY_BASE: Final = 100.0  # short texts: positions must matter within a few tokens
_NORM_EPSILON: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class ToyShape:
    """Sizes of a toy; `sharpness` scales its logits."""

    vocabulary: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    mlp: int = 32
    sharpness: float = 2.0

    @property
    def width(self) -> int:
        """The width of a hidden state."""
        return self.heads * self.head_dim


class ToyTransformer:
    """See the module; `attention` may be any function of that signature.

    Args:
        library: what computes: torch, or numpy, which needs no more than the package itself and knows no other device.
    """

    def __init__(
        self,
        shape: ToyShape | None = None,
        *,
        seed: int = 0,
        dtype: str = "float64",
        device: str = "cpu",
        attention: Attention = masked_attention,
        library: Literal["torch", "numpy"] = "torch",
    ) -> None:
        self.shape = shape = shape or ToyShape()
        self.attention = attention
        self._plain = library == "numpy"
        self._library = np if self._plain else require("torch", extra="gpu")
        self._dtype = np.dtype(dtype) if self._plain else getattr(self._library, dtype)
        self._device = device if self._plain else self._library.device(device)
        self._weights = _random_weights(shape, seed, lambda values: self._tensor(values))

    @property
    def name(self) -> str:
        """See `CausalModel`."""
        return f"toy transformer ({self.shape.layers} layers, width {self.shape.width})"

    @property
    def device(self) -> Any:
        """See `CausalModel`."""
        return self._device

    @property
    def dtype(self) -> Any:
        """See `CausalModel`."""
        return self._dtype

    @property
    def vocabulary_size(self) -> int:
        """See `CausalModel`."""
        return self.shape.vocabulary

    def forward(self, step: ForwardBatch, cache: SlotCache, *, at: IntArray | None = None) -> Any:
        """See `CausalModel`."""
        bound = cache.bind(step)
        mask = self._index(step.mask)

        def attend(q: Any, k: Any, v: Any, layer: int) -> Any:
            keys, values = bound.update(k, v, layer)
            return self.attention(q, keys, values, mask, step)

        return self._run(step.tokens, step.positions, attend, at)

    def reference(self, tokens: IntArray, *, first: int = 0) -> Any:
        """See `CausalModel`."""

        def attend(q: Any, k: Any, v: Any, layer: int) -> Any:
            if self._plain:
                return _one_by_one(q, k, v)
            group = self.shape.heads // self.shape.kv_heads
            k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
            return self._library.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return self._run(tokens[None], np.arange(len(tokens))[None], attend, None)[0, first:]

    def _run(self, tokens: IntArray, positions: IntArray, attend: Callable[..., Any], at: IntArray | None) -> Any:
        w = self._weights
        x = w["embedding"][self._index(tokens)]
        turn = self._rotation(positions)
        for layer in range(self.shape.layers):
            h = _rms_norm(x)
            q, k, v = (self._heads(h @ w[f"{name}{layer}"]) for name in ("q", "k", "v"))
            mixed = attend(self._rotated(q, turn), self._rotated(k, turn), v, layer).swapaxes(1, 2)
            x = x + mixed.reshape(*mixed.shape[:2], -1) @ w[f"o{layer}"]
            h = _rms_norm(x)
            gate = h @ w[f"gate{layer}"]
            x = x + (gate / (1 + self._library.exp(-gate)) * (h @ w[f"up{layer}"])) @ w[f"down{layer}"]
        if at is not None:
            x = x[self._index(np.arange(len(at))), self._index(at)]
        return _rms_norm(x) @ w["head"]

    def _heads(self, x: Any) -> Any:
        """`[A, M, heads * head_dim]` to `[A, heads, M, head_dim]`."""
        return x.reshape(*x.shape[:2], -1, self.shape.head_dim).swapaxes(1, 2)

    def _rotation(self, positions: IntArray) -> tuple[Any, Any]:
        """`[A, 1, M, head_dim / 2]` cosines and sines of each position's angles."""
        half = self.shape.head_dim // 2
        angle = positions[:, None, :, None] * _ROTARY_BASE ** (-np.arange(half) / half)
        return self._tensor(np.cos(angle)), self._tensor(np.sin(angle))

    def _rotated(self, x: Any, turn: tuple[Any, Any]) -> Any:
        half = self.shape.head_dim // 2
        (cos, sin), first, second = turn, x[..., :half], x[..., half:]
        parts = [first * cos - second * sin, second * cos + first * sin]
        return np.concatenate(parts, axis=-1) if self._plain else self._library.cat(parts, dim=-1)

    def _index(self, values: Any) -> Any:
        return values if self._plain else self._library.as_tensor(values, device=self._device)

    def _tensor(self, values: Any) -> Any:
        if self._plain:
            return np.asarray(values, dtype=self._dtype)
        return self._library.as_tensor(values, dtype=self._dtype, device=self._device)


def _random_weights(shape: ToyShape, seed: int, tensor: Callable[[Any], Any]) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    kv = shape.kv_heads * shape.head_dim
    sizes = {"q": (shape.width, shape.width), "k": (shape.width, kv), "v": (shape.width, kv)}
    sizes |= {"o": (shape.width, shape.width), "gate": (shape.width, shape.mlp), "up": (shape.width, shape.mlp)}
    sizes |= {"down": (shape.mlp, shape.width)}
    weights = {"embedding": rng.standard_normal((shape.vocabulary, shape.width))}
    for layer in range(shape.layers):
        for name, (rows, columns) in sizes.items():
            weights[f"{name}{layer}"] = 1.5 * rng.standard_normal((rows, columns)) / math.sqrt(rows)
    head = rng.standard_normal((shape.width, shape.vocabulary)) / math.sqrt(shape.width)
    return {name: tensor(values) for name, values in (weights | {"head": shape.sharpness * head}).items()}


def _rms_norm(x: Any) -> Any:
    return x * ((x * x).mean(-1)[..., None] + _NORM_EPSILON) ** -0.5


def _one_by_one(q: Any, k: Any, v: Any) -> Any:
    """Causal attention `[1, H, L, D]` of one text, token by token and head by head: no mask that could be wrong."""
    _, heads, length, width = q.shape
    found, group = np.zeros_like(q), heads // k.shape[1]
    for head in range(heads):
        for i in range(length):
            scores = k[0, head // group, : i + 1] @ q[0, head, i] / math.sqrt(width)
            found[0, head, i] = softmax(scores) @ v[0, head // group, : i + 1]
    return found
