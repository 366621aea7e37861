"""The sizes in a Hugging Face config.json, under the names of the families' modelling code in transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from treeopt.cost.kernels.attention import Attention, GroupedAttention, LatentAttention
from treeopt.cost.kernels.experts import Experts
from treeopt.cost.kernels.linear_attention import LinearAttention
from treeopt.cost.model import ModelShape, SlidingWindow
from treeopt.cost.stored_formats import stored_formats
from treeopt.files.documents import Field

# No model has a larger one.
MAX_SIZE: Final = 1 << 26
_PRICED_LAYERS: Final = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
_SIZES: Final = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim"),
)
# What transformers' configuration classes take where a config.json, mostly the text part of a larger one, leaves a
# size out; in the order of `_SIZES`.
_CLASS_SIZES: Final[dict[str, tuple[int | None, ...]]] = {
    "gemma": (256_000, 3072, 24_576, 28, 16, 16, 256),
    "gemma2": (256_000, 2304, 9216, 26, 8, 4, 256),
    "gemma3_text": (262_208, 2304, 9216, 26, 8, 4, 256),
    "llama": (32_000, 4096, 11_008, 32, 32, None, None),
    "llama4_text": (202_048, 5120, 8192, 48, 40, 8, 128),
    "mistral": (32_000, 4096, 14_336, 32, 32, 8, None),
    "mixtral": (32_000, 4096, 14_336, 32, 32, 8, None),
    "qwen2": (151_936, 4096, 22_016, 32, 32, 32, None),
    "qwen3": (151_936, 4096, 22_016, 32, 32, 32, 128),
    "qwen3_moe": (151_936, 2048, 6144, 24, 32, 4, None),
    "qwen3_next": (151_936, 2048, 5632, 48, 16, 2, 256),
    "qwen3_5_text": (248_320, 4096, 12_288, 32, 16, 4, 256),
    "qwen3_5_moe_text": (248_320, 2048, None, 40, 16, 2, 256),
    "gpt_oss": (201_088, 2880, 2880, 36, 64, 8, 64),
}
_CLASS_MORE: Final[dict[str, dict[str, int]]] = {
    "gemma2": {"sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": {"sliding_window": 4096, "sliding_window_pattern": 6},
    **{name: {"full_attention_interval": 4} for name in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")},
}


def model_from_config(config: Field) -> ModelShape:
    """The model of a config.json, of its `text_config` if it has one.

    Raises:
        FileFormatError: a size that is missing, not a number, out of range or contradicts another, with its line.
    """
    text = config.get("text_config") if "text_config" in config.mapping() else config
    _refuse_other_mixers(text)
    layers = _size(text, "num_hidden_layers")
    stored, linear = stored_formats(config), _linear(text, layers)
    return ModelShape(
        name=name_of(Path(config.document.name)),
        source=config.document.name,
        hidden=_size(text, "hidden_size"),
        layers=layers,
        vocab=_size(text, "vocab_size"),
        intermediate=_size(text, "intermediate_size", "shared_expert_intermediate_size", "moe_intermediate_size"),
        tied_embeddings=_is_tied(config, text),
        attention=_attention(text),
        experts=_experts(text, layers),
        window=_window(text, layers),
        linear=linear,
        draft_vocab=_size_or_none(text, "draft_vocab_size"),
        dtype=stored.dtype,
        kv_dtype=stored.kv_dtype,
        note="; ".join(filter(None, (stored.note, *_rough(text, linear)))),
    )


def _size(config: Field, *keys: str) -> int:
    """The size under the first of `keys` that is there.

    Raises:
        FileFormatError: all absent (the first is named), or a value that is not a whole number >= 1.
    """
    found = _size_or_none(config, *keys)
    return config.get(keys[0]).integer(low=1, high=MAX_SIZE) if found is None else found


def _size_or_none(config: Field, *keys: str, low: int = 1) -> int | None:
    """The size under the first of `keys` that is there and not null, else None."""
    fields = (config.get(key, _class_default(config, key)) for key in keys)
    return next((field.integer(low=low, high=MAX_SIZE) for field in fields if field.value is not None), None)


def _class_default(config: Field, key: str) -> int | None:
    kind = str(config.get("model_type", "").value)
    found = _CLASS_MORE.get(kind, {}).get(key)
    if found is None and "text_config" in config.document.root.mapping():  # one of its own that lacks a size is broken
        found = dict(zip(_SIZES, _CLASS_SIZES.get(kind, ()), strict=False)).get(key)
    return found


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
    kv_heads = config.get("num_key_value_heads", _class_default(config, "num_key_value_heads"))
    if kv_heads.value is None:
        kv_heads = config.get("num_attention_heads")
    return grouped_attention(kv_heads, heads, head_dim or hidden // heads)


def grouped_attention(kv_heads: Field, heads: int, head_dim: int) -> GroupedAttention:
    """The attention of `heads` queries over as many KV heads as the field says; raises as `model_from_config`."""
    count = kv_heads.integer(low=1, high=MAX_SIZE)
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


def _window(config: Field, layers: int) -> SlidingWindow | None:
    """The sliding window, or the attention chunk, of a config.json; None where all layers attend to everything.

    A chunk counts as a window of its length, the most that its tokens attend to.
    """
    tokens = _size_or_none(config, "sliding_window", "attention_chunk_size")
    slides = config.get("use_sliding_window", None).value is not False
    count = _windowed_layers(config, layers) if tokens and slides else 0
    return SlidingWindow(tokens, count) if tokens and count else None


def _windowed_layers(config: Field, layers: int) -> int:
    """How many layers have the window, by the rules of the families' modelling code in transformers."""
    kinds = config.get("layer_types", None)
    if kinds.value is not None:
        return _layers_of(kinds, layers, "sliding_attention", "chunked_attention")
    pattern = _size_or_none(config, "sliding_window_pattern", "_sliding_window_pattern")
    if pattern is not None:  # every pattern-th layer attends to everything
        return layers - layers // pattern
    # Qwen2 and Qwen3: the first `max_window_layers` attend to everything. Mistral names no layers: all have the window.
    return layers - min(_size_or_none(config, "max_window_layers", low=0) or 0, layers)


def _layers_of(kinds: Field, layers: int, *names: str) -> int:
    """How many layers are of these kinds; a list shorter than the layers is a pattern that goes on."""
    listed = [kind.text() in names for kind in kinds.items()]
    return sum(listed[layer % len(listed)] for layer in range(layers)) if listed else 0


def _linear(config: Field, layers: int) -> LinearAttention | None:
    """The linear-attention layers of a config.json in the words of Qwen3-Next; None where it has none."""
    if _size_or_none(config, "linear_num_value_heads") is None:
        return None
    kinds = config.get("layer_types", None)
    if kinds.value is None:
        count = layers - layers // _size(config, "full_attention_interval")
    else:
        count = _layers_of(kinds, layers, "linear_attention")
    if not count:
        return None
    return LinearAttention(
        layers=count,
        key_heads=_size(config, "linear_num_key_heads"),
        value_heads=_size(config, "linear_num_value_heads"),
        key_dim=_size(config, "linear_key_head_dim"),
        value_dim=_size(config, "linear_value_head_dim"),
        conv_kernel=_size(config, "linear_conv_kernel_dim"),
    )


def name_of(path: Path) -> str:
    """What a model is called by its file; a config.json by the folder of its checkpoint."""
    return (path.resolve().parent.name or path.stem) if path.stem == "config" else path.stem


def _rough(config: Field, linear: LinearAttention | None) -> Iterator[str]:
    """What of the config has a rough price only, in words."""
    if config.mapping().get("attention_chunk_size"):
        yield "its attention chunks are priced as sliding windows of that length"
    if linear:
        yield (
            f"its {linear.layers} linear-attention layers are priced by their projections and by streaming states and "
            "convolution windows, a state written for every token of a draft"
        )


def _is_tied(config: Field, text: Field) -> bool:
    for field in (text, config):
        tied = field.get("tie_word_embeddings", None)
        if tied.value is not None:
            return tied.boolean()
    # Gemma's configs leave it out because its default there is true; all other supported families default to false.
    return str(text.get("model_type", "").value).startswith("gemma")


def _refuse_other_mixers(text: Field) -> None:
    # State-space layers would be read as attention and priced wrong without a word.
    kinds = text.get("layer_types", None)
    other = [] if kinds.value is None else [kind for kind in kinds.items() if kind.text() not in _PRICED_LAYERS]
    other += [text.get(key) for key in text.mapping() if key.startswith(("mamba_", "ssm_"))]
    if "linear_attention" in [kind.text() for kind in (kinds.items() if kinds.value is not None else ())]:
        other += [] if "linear_num_value_heads" in text.mapping() else [kinds]
    if other:
        raise other[0].error(
            "the model has layers that are neither attention nor gated delta rules",
            hint="give measured step times with --cost FILE: they need no price of the model",
        )
