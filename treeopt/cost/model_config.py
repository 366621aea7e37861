"""The sizes in a Hugging Face config.json, under the names of the families' modelling code in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from treeopt.cost.kernels.attention import Attention, GroupedAttention, LatentAttention
from treeopt.cost.kernels.experts import Experts
from treeopt.cost.model import ModelShape, Window
from treeopt.files.documents import Field

_PRICED_LAYERS: Final = ("full_attention", "sliding_attention", "chunked_attention")


def model_from_config(config: Field) -> ModelShape:
    """The model of a config.json, of its `text_config` if it has one.

    Raises:
        FileFormatError: a size that is missing, not a number, out of range or contradicts another, with its line.
    """
    text = config.get("text_config") if "text_config" in config.mapping() else config
    _refuse_other_mixers(text)
    layers = _size(text, "num_hidden_layers")
    return ModelShape(
        name=_name_of(Path(config.document.name)),
        source=config.document.name,
        hidden=_size(text, "hidden_size"),
        layers=layers,
        vocab=_size(text, "vocab_size"),
        intermediate=_size(text, "intermediate_size"),
        tied_embeddings=_is_tied(config, text),
        attention=_attention(text),
        experts=_experts(text, layers),
        window=_window(text, layers),
        draft_vocab=_size_or_none(text, "draft_vocab_size"),
        note=_unpriced(text),
    )


def _size(config: Field, *keys: str) -> int:
    """The size under the first of `keys` that is there.

    Raises:
        FileFormatError: all absent (the first is named), or a value that is not a whole number >= 1.
    """
    found = _size_or_none(config, *keys)
    return config.get(keys[0]).integer(low=1) if found is None else found


def _size_or_none(config: Field, *keys: str, low: int = 1) -> int | None:
    """The size under the first of `keys` that is there and not null, else None."""
    fields = (config.get(key, None) for key in keys)
    return next((field.integer(low=low) for field in fields if field.value is not None), None)


def _attention(config: Field) -> Attention:
    """The attention of a config.json; absent KV heads are as many as query heads, absent head_dim is hidden / heads."""
    heads = _size(config, "num_attention_heads")
    if _size_or_none(config, "kv_lora_rank") is not None:
        return latent_attention(config, heads)
    hidden = _size(config, "hidden_size")
    head_dim = _size_or_none(config, "head_dim")
    if head_dim is None and hidden % heads:
        raise config.get("num_attention_heads").error(
            f"hidden_size {hidden} is not a multiple of {heads} heads", hint="correct one of them, or add head_dim"
        )
    kv_heads = config.get("num_key_value_heads", None)
    if kv_heads.value is None:
        kv_heads = config.get("num_attention_heads")
    return grouped_attention(kv_heads, heads, head_dim or hidden // heads)


def grouped_attention(kv_heads: Field, heads: int, head_dim: int) -> GroupedAttention:
    """The attention of `heads` queries over as many KV heads as the field says; raises as `model_from_config`."""
    count = kv_heads.integer(low=1)
    if heads % count:
        raise kv_heads.error(
            f"{heads} heads are not a multiple of {count} KV heads", hint="every KV head serves equally many heads"
        )
    return GroupedAttention(heads=heads, kv_heads=count, head_dim=head_dim)


def latent_attention(field: Field, heads: int) -> LatentAttention:
    """The latent attention of a config.json, whose names treeopt.model/1 takes over; raises as `model_from_config`."""
    return LatentAttention(
        heads=heads,
        q_lora_rank=_size_or_none(field, "q_lora_rank"),
        kv_lora_rank=_size(field, "kv_lora_rank"),
        qk_nope_head_dim=_size(field, "qk_nope_head_dim"),
        qk_rope_head_dim=_size(field, "qk_rope_head_dim"),
        v_head_dim=_size(field, "v_head_dim"),
    )


def _experts(config: Field, layers: int) -> Experts | None:
    """The experts of a config.json in the words of Mixtral, Qwen or DeepSeek; None for a dense network."""
    count = _size_or_none(config, "n_routed_experts", "num_experts", "num_local_experts", low=0)
    sparse = len(_sparse_layers(config, layers))
    if not count or not sparse:
        return None
    intermediate = _size(config, "moe_intermediate_size", "intermediate_size")
    shared = _size_or_none(config, "shared_expert_intermediate_size", low=0)
    if shared is None:
        shared = intermediate * (_size_or_none(config, "n_shared_experts", low=0) or 0)
    return Experts(
        count=count,
        per_token=config.get("num_experts_per_tok").integer(low=1, high=count),
        intermediate=intermediate,
        shared_intermediate=shared,
        dense_layers=layers - sparse,
    )


def _sparse_layers(config: Field, layers: int) -> list[int]:
    """Indices of the layers with experts, by the rules of DeepSeek's and Qwen's modelling code in transformers."""
    first = _size_or_none(config, "first_k_dense_replace", low=0) or 0
    period = _size_or_none(config, "moe_layer_freq") or 1
    step = _size_or_none(config, "decoder_sparse_step") or 1
    only_dense = config.get("mlp_only_layers", None)
    dense = set() if only_dense.value is None else {field.integer(low=0) for field in only_dense.items()}
    kept = (layer for layer in range(first, layers) if layer not in dense)
    return [layer for layer in kept if layer % period == 0 and (layer + 1) % step == 0]


def _window(config: Field, layers: int) -> Window | None:
    """The sliding window, or the attention chunk, of a config.json; None where all layers attend to everything.

    A chunk counts as a window of its length, the most that its tokens attend to.
    """
    tokens = _size_or_none(config, "sliding_window", "attention_chunk_size")
    slides = config.get("use_sliding_window", None).value is not False
    count = _windowed_layers(config, layers) if tokens and slides else 0
    return Window(tokens, count) if tokens and count else None


def _windowed_layers(config: Field, layers: int) -> int:
    """How many layers have the window, by the rules of the families' modelling code in transformers."""
    kinds = config.get("layer_types", None)
    if kinds.value is not None:
        return sum(kind.text() in ("sliding_attention", "chunked_attention") for kind in kinds.items())
    pattern = _size_or_none(config, "sliding_window_pattern", "_sliding_window_pattern")
    if pattern is None and str(config.get("model_type", "").value) == "gemma2":
        pattern = 2
    if pattern is not None:  # every pattern-th layer attends to everything
        return layers - layers // pattern
    # Qwen2 and Qwen3: the first `max_window_layers` attend to everything. Mistral names no layers: all have the window.
    return layers - min(_size_or_none(config, "max_window_layers", low=0) or 0, layers)


def _name_of(path: Path) -> str:
    # A config.json is named by the folder of its checkpoint.
    return (path.resolve().parent.name or path.stem) if path.stem == "config" else path.stem


def _unpriced(config: Field) -> str:
    """What the config says that no price here takes into account, in words."""
    said = []
    if isinstance(config.mapping().get("quantization_config"), dict):
        said.append("its quantization is not priced, weights count as --dtype")
    if config.mapping().get("attention_chunk_size"):
        said.append("its attention chunks are priced as sliding windows of that length")
    return "; ".join(said)


def _is_tied(config: Field, text: Field) -> bool:
    for field in (text, config):
        tied = field.get("tie_word_embeddings", None)
        if tied.value is not None:
            return tied.boolean()
    # Gemma's configs leave it out because its default there is true; all other supported families default to false.
    return str(text.get("model_type", "").value).startswith("gemma")


def _refuse_other_mixers(text: Field) -> None:
    # Linear-attention and state-space layers would be read as attention and priced wrong without a word.
    kinds = text.get("layer_types", None)
    other = [] if kinds.value is None else [kind for kind in kinds.items() if kind.text() not in _PRICED_LAYERS]
    other += [text.get(key) for key in text.mapping() if key.startswith(("linear_", "mamba_", "ssm_"))]
    if other:
        raise other[0].error(
            "the model has layers that are not attention",
            hint="only models whose layers all use attention have a price",
        )
