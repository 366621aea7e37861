"""EAGLE and EAGLE-3 heads, as their authors, SpecForge and speculators save them.

EAGLE (arXiv:2401.15077): x = fc(embedding, state), decoder layers of which the first has no input norm, then the
target's own output head; the state is what the target's head reads, later the head's own output.

EAGLE-3 (arXiv:2503.01840): the states of three of the target's layers are fused by fc; the first layer's attention
reads the normed embedding beside the normed state and is added to the state; then a norm and an output head over fewer
tokens, which `d2t` maps to the target's (target's number = number + d2t). The next pass reads the layer's output before
that norm, where `norm_output` is set (EAGLE 3.1) behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from treeopt.arrays import IntArray
from treeopt.collect.heads.files import HINT, read_config, read_weights
from treeopt.collect.heads.layers import GrowingCache, fill, library_config, linear, rotary, skeleton
from treeopt.decode.hf import HuggingFaceModel
from treeopt.errors import FileFormatError
from treeopt.extras import require

_OF_THE_TARGET: Final = ("verifier_norm.weight", "verifier_lm_head.weight", "t2d", "d2t", "lm_head.weight")
_FUSED: Final = 3


class EagleHead:
    """An EAGLE head: `states`, `run` and `head` as `ChainHead` has them."""

    tokens: IntArray | None = None

    def __init__(self, folder: Path, target: HuggingFaceModel) -> None:
        """
        Raises:
            InputError: the folder has no head that can be read, or one of another size than the target's.
        """
        torch = require("torch", extra="hf")
        fields = _layer_fields(read_config(folder))
        weights = _weights(folder)
        config = library_config(fields)
        base = skeleton(config, layers=int(fields["num_hidden_layers"]))
        base.layers[0].input_layernorm = torch.nn.Identity()
        H, fused = config.hidden_size, weights.get("fc.weight")
        _same_width(folder, H, target)
        self._target = target
        self._rotary = rotary(base, config, target.device)
        own = torch.nn.Module()
        own.layers, own.fc = base.layers, linear(2 * H, H, bias="fc.bias" in weights)
        # Some save the embeddings that they share with the target.
        self._embedding = _embedding(weights, target)
        kept = {name: value for name, value in weights.items() if name not in _OF_THE_TARGET and name != "norm.weight"}
        self._own = fill(own, kept, where=str(folder), device=target.device, dtype=target.dtype)
        assert fused is not None

    def states(self, tokens: IntArray) -> Any:
        """See `ChainHead`: what the target's head reads."""
        return self._target.last_hidden(tokens)

    def run(
        self, tokens: IntArray, states: Any, positions: IntArray, mask: Any, cache: GrowingCache
    ) -> tuple[Any, Any]:
        """See `ChainHead`."""
        torch = require("torch", extra="hf")
        x = self._own.fc(torch.cat([self._embedding(tokens), states], dim=-1))
        x = run_layers(self._own.layers, x, self._rotary, positions, mask, cache)
        return x, x

    def head(self, hidden: Any) -> Any:
        """See `ChainHead`: the target's own."""
        return self._target.head(hidden)


class Eagle3Head:
    """An EAGLE-3 head: `states`, `run` and `head` as `ChainHead` has them."""

    def __init__(self, folder: Path, target: HuggingFaceModel) -> None:
        """
        Raises:
            InputError: the folder has no head that can be read, or one of another size than the target's.
        """
        torch, config_fields, weights = require("torch", extra="hf"), read_config(folder), _weights(folder)
        fields = _layer_fields(config_fields)
        config = library_config(fields)
        H, wide = int(config.hidden_size), int(target.config.hidden_size)
        layers = int(fields["num_hidden_layers"])
        base = skeleton(config, layers=layers)
        first = base.layers[0]
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(first.self_attn, name)
            setattr(first.self_attn, name, linear(2 * H, old.out_features, bias=old.bias is not None))
        first.hidden_norm = type(first.input_layernorm)(H, eps=config.rms_norm_eps).to("meta")
        own = torch.nn.Module()
        own.layers, own.norm = base.layers, base.norm
        self._ids = _fused_layers(config_fields, target)
        own.fc = linear(len(self._ids) * wide, H, bias="fc.bias" in weights)
        if "input_norm.weight" in weights:  # one norm over all fused states
            own.input_norm = type(base.norm)(len(self._ids) * wide, eps=config.rms_norm_eps).to("meta")
        if "fc_norm.0.weight" in weights:  # a norm for each of them
            norms = [type(base.norm)(wide, eps=config.rms_norm_eps).to("meta") for _ in self._ids]
            own.fc_norm = torch.nn.ModuleList(norms)
        self.tokens = _drafted_tokens(weights, target, folder)
        own.lm_head = linear(H, len(self.tokens) if self.tokens is not None else target.vocabulary_size, bias=False)
        if "lm_head.weight" not in weights:
            weights["lm_head.weight"] = target.head_weight
        self._embedding = _embedding(weights, target)
        self._target, self._rotary = target, rotary(base, config, target.device)
        self._residual_normed = bool(config_fields.get("norm_before_residual", False))
        self._normed_output = bool(config_fields.get("norm_output", False))
        kept = {name: v for name, v in weights.items() if name not in _OF_THE_TARGET or name == "lm_head.weight"}
        self._own = fill(own, kept, where=str(folder), device=target.device, dtype=target.dtype)

    def states(self, tokens: IntArray) -> Any:
        """See `ChainHead`: the fused states of the target's layers."""
        torch, found = require("torch", extra="hf"), self._target.hidden_states(tokens)
        chosen = [found[i] for i in self._ids]
        if hasattr(self._own, "fc_norm"):
            chosen = [norm(state) for norm, state in zip(self._own.fc_norm, chosen, strict=True)]
        states = torch.cat(chosen, dim=-1)
        return self._own.fc(self._own.input_norm(states) if hasattr(self._own, "input_norm") else states)

    def run(
        self, tokens: IntArray, states: Any, positions: IntArray, mask: Any, cache: GrowingCache
    ) -> tuple[Any, Any]:
        """See `ChainHead`."""
        torch, first = require("torch", extra="hf"), self._own.layers[0]
        normed = first.hidden_norm(states)
        residual = normed if self._residual_normed else states
        x = torch.cat([first.input_layernorm(self._embedding(tokens)), normed], dim=-1)
        x = residual + run_attention(first.self_attn, x, self._rotary, positions, mask, cache)
        x = x + first.mlp(first.post_attention_layernorm(x))
        x = run_layers(self._own.layers[1:], x, self._rotary, positions, mask, cache)
        normed = self._own.norm(x)
        return (normed if self._normed_output else x), normed

    def head(self, hidden: Any) -> Any:
        """See `ChainHead`."""
        return self._own.lm_head(hidden)


def run_layers(layers: Any, x: Any, rotation: Any, positions: IntArray, mask: Any, cache: GrowingCache) -> Any:
    """`[M, hidden]` rows through decoder layers."""
    where = _positions(positions, x)
    turn = rotation(x[None], where)
    for layer in layers:
        found = layer(
            x[None],
            attention_mask=mask[None, None],
            position_ids=where,
            position_embeddings=turn,
            use_cache=True,
            **{cache_name(layer): cache},
        )
        x = (found[0] if isinstance(found, tuple) else found)[0]
    return x


def run_attention(attention: Any, x: Any, rotation: Any, positions: IntArray, mask: Any, cache: GrowingCache) -> Any:
    """`[M, width]` rows through the attention of a layer alone."""
    where = _positions(positions, x)
    found = attention(
        hidden_states=x[None],
        attention_mask=mask[None, None],
        position_ids=where,
        position_embeddings=rotation(x[None], where),
        **{cache_name(attention): cache},
    )
    return found[0][0]


def cache_name(module: Any) -> str:
    """What a module calls its cache, which transformers 5 renamed."""
    import inspect

    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


def _positions(positions: IntArray, like: Any) -> Any:
    return require("torch", extra="hf").as_tensor(positions, device=like.device)[None]


def _layer_fields(config: dict[str, Any]) -> dict[str, Any]:
    """The fields that describe the layers: the config's own, or in speculators' format those it holds inside."""
    inner = config.get("transformer_layer_config")
    fields = dict(inner) if isinstance(inner, dict) else dict(config)
    return {"num_hidden_layers": 1, **fields}


def _weights(folder: Path) -> dict[str, Any]:
    """A head's tensors under one naming: without `model.`, and the authors' `midlayer` as the first layer."""
    found = {}
    for name, value in read_weights(folder).items():
        short = name.removeprefix("model.")
        short = "layers.0." + short.removeprefix("midlayer.") if short.startswith("midlayer.") else short
        found[short] = value
    if "fc.weight" not in found:
        raise FileFormatError(f"{folder}: its weights have no 'fc.weight'", hint=HINT)
    return {name: value for name, value in found.items() if not name.endswith("rotary_emb.inv_freq")}


def _same_width(folder: Path, width: int, target: HuggingFaceModel) -> None:
    if width != int(target.config.hidden_size):
        raise FileFormatError(
            f"{folder}: hidden_size is {width}, the target's {target.config.hidden_size}",
            hint="give the head that was trained for this target",
        )


def _embedding(weights: dict[str, Any], target: HuggingFaceModel) -> Any:
    """From token numbers to embeddings: the head's own where it has some, which it takes out of `weights`."""
    torch, own = require("torch", extra="hf"), weights.pop("embed_tokens.weight", None)
    if own is None:
        return target.embed
    table = own.to(device=target.device, dtype=target.dtype)
    return lambda tokens: table[torch.as_tensor(tokens, device=target.device)]


def _drafted_tokens(weights: dict[str, Any], target: HuggingFaceModel, folder: Path) -> IntArray | None:
    """`[V_d]` the target's numbers of the tokens that the head can guess."""
    if "d2t" not in weights:
        return None
    shift = np.asarray(weights["d2t"].cpu().numpy(), dtype=np.int64)
    tokens = np.arange(len(shift)) + shift
    if len(np.unique(tokens)) < len(tokens) or tokens.min() < 0 or tokens.max() >= target.vocabulary_size:
        raise FileFormatError(
            f"{folder}: 'd2t' does not map its {len(tokens)} tokens to different ones of the target's "
            f"{target.vocabulary_size}",
            hint="give the head that was trained for this target",
        )
    return tokens


def _fused_layers(config: dict[str, Any], target: HuggingFaceModel) -> list[int]:
    """Which states of the target are fused, counted with the embeddings as 0: what comes out of layer k is k.

    Both formats count so; the authors' code, which names none, takes what goes into layers 2, n/2 and n - 3 (counted
    from 0).
    """
    inner = config.get("eagle_config")
    places = (config, inner if isinstance(inner, dict) else {})
    for place in places:
        found = place.get("eagle_aux_hidden_state_layer_ids") or place.get("aux_hidden_state_layer_ids")
        if found:
            return [int(i) for i in found]
    n = target.layers
    return [2, n // 2, n - 3]
