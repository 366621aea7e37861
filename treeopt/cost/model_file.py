"""Model files: treeopt.model/1, or the config.json of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from treeopt.cost.kernels.attention import Attention
from treeopt.cost.kernels.experts import DEFAULT_CORRELATION, DEFAULT_SKEW, MAX_SKEW, Experts
from treeopt.cost.model import ModelShape, SlidingWindow
from treeopt.cost.model_config import MAX_SIZE, grouped_attention, latent_attention, model_from_config
from treeopt.files.documents import Document, Field, read_document
from treeopt.files.typed import check_format

MODEL_FORMAT: Final = "treeopt.model/1"
_LATENT_SIZES: Final = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def load_model(path: Path) -> ModelShape:
    """Read a treeopt.model/1 file or a Hugging Face config.json.

    Raises:
        InputError: it cannot be read.
        FileFormatError: as `model_from`.
    """
    return model_from(model_document(path))


def model_document(path: Path) -> Document:
    """The file of a model, for who needs its hash too.

    Raises:
        InputError: it cannot be read.
    """
    return read_document(path, what="model file or config.json")


def model_from(document: Document) -> ModelShape:
    """The model of a treeopt.model/1 file (it has a `format`) or of a Hugging Face config.json.

    Raises:
        FileFormatError: a size that is missing, not a number, out of range or contradicts another, with its line.
    """
    root = document.root
    return _read_profile(root) if "format" in root.mapping() else model_from_config(root)


def _read_profile(root: Field) -> ModelShape:
    check_format(root, MODEL_FORMAT, what="model file")
    sizes = ("hidden", "layers", "vocab", "intermediate")
    root.only("format", "name", "source", *sizes, "tied_embeddings", "attention", "experts", "window", "dtype")
    hidden, layers, vocab, intermediate = (root.get(key).integer(low=1, high=MAX_SIZE) for key in sizes)
    return ModelShape(
        name=root.get("name").text(),
        source=root.get("source").text(),
        hidden=hidden,
        layers=layers,
        vocab=vocab,
        intermediate=intermediate,
        tied_embeddings=root.get("tied_embeddings").boolean(),
        dtype=root.get("dtype", "bf16").text(),
        attention=_read_attention(root.get("attention")),
        experts=_read_experts(root.get("experts"), layers) if "experts" in root.mapping() else None,
        window=_read_window(root.get("window"), layers) if "window" in root.mapping() else None,
    )


def _read_attention(field: Field) -> Attention:
    """The `attention` of a treeopt.model/1 file; `kv_lora_rank` makes it latent."""
    heads = field.get("heads").integer(low=1, high=MAX_SIZE)
    if "kv_lora_rank" in field.mapping():
        field.only("heads", *_LATENT_SIZES)
        return latent_attention(field, heads)
    field.only("heads", "kv_heads", "head_dim")
    return grouped_attention(field.get("kv_heads"), heads, field.get("head_dim").integer(low=1, high=MAX_SIZE))


def _read_experts(field: Field, layers: int) -> Experts:
    """The `experts` of a treeopt.model/1 file."""
    field.only("count", "per_token", "intermediate", "shared_intermediate", "dense_layers", "skew", "correlation")
    count = field.get("count").integer(low=1, high=MAX_SIZE)
    return Experts(
        count=count,
        per_token=field.get("per_token").integer(low=1, high=count),
        intermediate=field.get("intermediate").integer(low=1, high=MAX_SIZE),
        shared_intermediate=field.get("shared_intermediate", 0).integer(low=0, high=MAX_SIZE),
        dense_layers=field.get("dense_layers", 0).integer(low=0, high=layers - 1),
        skew=field.get("skew", DEFAULT_SKEW).number(low=0.0, high=MAX_SKEW),
        correlation=field.get("correlation", DEFAULT_CORRELATION).number(low=0.0, high=1.0),
    )


def _read_window(field: Field, layers: int) -> SlidingWindow:
    """The `window` of a treeopt.model/1 file."""
    field.only("tokens", "layers")
    return SlidingWindow(
        field.get("tokens").integer(low=1, high=MAX_SIZE), field.get("layers").integer(low=1, high=layers)
    )
