"""A toy transformer with random weights: rotary positions, grouped queries, RMS norms, a gated MLP; float64 possible.

Small enough to be read at once, and in float64 exact enough that two ways to compute the same thing agree to 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from treeopt.arrays import IntArray
from treeopt.decode.attention import Attention, masked_attention
from treeopt.decode.cache import SlotCache
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
    """See the module; `attention` may be any function of that signature."""

    def __init__(
        self,
        shape: ToyShape | None = None,
        *,
        seed: int = 0,
        dtype: str = "float64",
        device: str = "cpu",
        attention: Attention = masked_attention,
    ) -> None:
        self._torch = require("torch", extra="gpu")
        self.shape = shape = shape or ToyShape()
        self.attention = attention
        self._dtype, self._device = getattr(self._torch, dtype), self._torch.device(device)
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
        mask = self._torch.as_tensor(step.mask, device=self._device)

        def attend(q: Any, k: Any, v: Any, layer: int) -> Any:
            keys, values = bound.update(k, v, layer)
            return self.attention(q, keys, values, mask, step)

        return self._run(step.tokens, step.positions, attend, at)

    def reference(self, tokens: IntArray, *, first: int = 0) -> Any:
        """See `CausalModel`."""

        def attend(q: Any, k: Any, v: Any, layer: int) -> Any:
            group = self.shape.heads // self.shape.kv_heads
            k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
            return self._torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return self._run(tokens[None], np.arange(len(tokens))[None], attend, None)[0, first:]

    def _run(self, tokens: IntArray, positions: IntArray, attend: Callable[..., Any], at: IntArray | None) -> Any:
        with self._torch.no_grad():
            w = self._weights
            x = w["embedding"][self._index(tokens)]
            turn = self._rotation(positions)
            for layer in range(self.shape.layers):
                h = _rms_norm(x)
                q, k, v = (self._heads(h @ w[f"{name}{layer}"]) for name in ("q", "k", "v"))
                mixed = attend(_rotate(q, turn), _rotate(k, turn), v, layer)
                x = x + mixed.transpose(1, 2).flatten(2) @ w[f"o{layer}"]
                h = _rms_norm(x)
                gate = self._torch.nn.functional.silu(h @ w[f"gate{layer}"])
                x = x + (gate * (h @ w[f"up{layer}"])) @ w[f"down{layer}"]
            if at is not None:
                x = x[self._index(np.arange(len(at))), self._index(at)]
            return _rms_norm(x) @ w["head"]

    def _heads(self, x: Any) -> Any:
        """`[A, M, heads * head_dim]` to `[A, heads, M, head_dim]`."""
        return x.unflatten(2, (-1, self.shape.head_dim)).transpose(1, 2)

    def _rotation(self, positions: IntArray) -> tuple[Any, Any]:
        """`[A, 1, M, head_dim / 2]` cosines and sines of each position's angles."""
        half = self.shape.head_dim // 2
        angle = positions[:, None, :, None] * _ROTARY_BASE ** (-np.arange(half) / half)
        return self._tensor(np.cos(angle)), self._tensor(np.sin(angle))

    def _index(self, values: IntArray) -> Any:
        return self._torch.as_tensor(values, device=self._device)

    def _tensor(self, values: Any) -> Any:
        return self._torch.as_tensor(values, dtype=self._dtype, device=self._device)


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
    return x * (x.square().mean(-1, keepdim=True) + _NORM_EPSILON).rsqrt()


def _rotate(x: Any, turn: tuple[Any, Any]) -> Any:
    (cos, sin), (first, second) = turn, x.chunk(2, dim=-1)
    return require("torch", extra="gpu").cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
