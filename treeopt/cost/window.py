"""Layers whose tokens attend to the last few keys only."""

from __future__ import annotations

from typing import NamedTuple

from treeopt.cost.config import size_or_none
from treeopt.files.documents import Field


class Window(NamedTuple):
    """`layers` of a network attend to the last `tokens` keys; the other layers to all."""

    tokens: int
    layers: int


def read_window(field: Field, layers: int) -> Window:
    """The `window` of a treeopt.model/1 file."""
    field.only("tokens", "layers")
    return Window(field.get("tokens").integer(low=1), field.get("layers").integer(low=1, high=layers))


def window_from_config(config: Field, layers: int) -> Window | None:
    """The sliding window, or the attention chunk, of a config.json; None where all layers attend to everything.

    A chunk counts as a window of its length, the most that its tokens attend to.
    """
    tokens = size_or_none(config, "sliding_window", "attention_chunk_size")
    slides = config.get("use_sliding_window", None).value is not False
    count = _windowed_layers(config, layers) if tokens and slides else 0
    return Window(tokens, count) if tokens and count else None


def _windowed_layers(config: Field, layers: int) -> int:
    """How many layers have the window, by the rules of the families' modelling code in transformers."""
    kinds = config.get("layer_types", None)
    if kinds.value is not None:
        return sum(kind.text() in ("sliding_attention", "chunked_attention") for kind in kinds.items())
    pattern = size_or_none(config, "sliding_window_pattern", "_sliding_window_pattern")
    if pattern is None and str(config.get("model_type", "").value) == "gemma2":
        pattern = 2
    if pattern is not None:  # every pattern-th layer attends to everything
        return layers - layers // pattern
    # Qwen2 and Qwen3: the first `max_window_layers` attend to everything. Mistral names no layers: all have the window.
    return layers - min(size_or_none(config, "max_window_layers", low=0) or 0, layers)
