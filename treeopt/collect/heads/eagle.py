"""EAGLE and EAGLE-3 heads, as their authors, SpecForge and speculators save them.

EAGLE (arXiv:2401.15077): x = fc(embedding, state), decoder layers of which the first has no input norm, then the
target's own output head; the state is what the target's head reads, later the head's own output.

EAGLE-3 (arXiv:2503.01840): the states of three of the target's layers are fused by fc; the first layer's attention
reads the normed embedding beside the normed state and is added to the state; then a norm and an output head over fewer
tokens, which `d2t` maps to the target's (target's number = number + d2t). The next pass reads the layer's output before
that norm, where `norm_output` is set (EAGLE 3.1) behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from treeopt.arrays import IntArray
from treeopt.collect.heads.chain import HeadPass
from treeopt.collect.heads.files import HINT, read_config
from treeopt.collect.heads.layers import (
    GrowingCache,
    fill,
    library_config,
    linear,
    rotary,
    run_attention,
    run_layers,
    skeleton,
)
from treeopt.collect.heads.weights import (
    drafted_tokens,
    embedding_of,
    fused_states,
    head_weights,
    layer_fields,
    same_width,
)
from treeopt.decode.hf import HuggingFaceModel
from treeopt.errors import FileFormatError, InputError
from treeopt.extras import require

_OF_THE_TARGET: Final = ("verifier_norm.weight", "verifier_lm_head.weight", "t2d", "d2t", "lm_head.weight")


class EagleHead:
    """An EAGLE head: `states`, `run` and `head` as `ChainHead` has them."""

    tokens: IntArray | None = None
    mask: int | None = None

    def __init__(self, folder: Path, target: HuggingFaceModel) -> None:
        """
        Raises:
            InputError: the folder has no head that can be read, or one of another size than the target's.
        """
        torch = require("torch", extra="hf")
        fields = layer_fields(read_config(folder))
        weights = head_weights(folder)
        config = library_config(fields)
        base = skeleton(config, layers=int(fields["num_hidden_layers"]))
        base.layers[0].input_layernorm = torch.nn.Identity()
        H = int(config.hidden_size)
        same_width(folder, H, target)
        self._target = target
        self._rotary = rotary(base, config, target.device)
        own = torch.nn.Module()
        own.layers, own.fc = base.layers, linear(2 * H, H, bias="fc.bias" in weights)
        # Some save the embeddings that they share with the target.
        self._embedding = embedding_of(weights, target)
        kept = {name: value for name, value in weights.items() if name not in _OF_THE_TARGET and name != "norm.weight"}
        self._own = fill(own, kept, where=str(folder), device=target.device, dtype=target.dtype)

    def states(self, tokens: IntArray) -> Any:
        """See `ChainHead`: what the target's head reads."""
        return self._target.last_hidden(tokens)

    def run(self, tokens: IntArray, states: Any, positions: IntArray, mask: Any, cache: GrowingCache) -> HeadPass:
        """See `ChainHead`."""
        torch = require("torch", extra="hf")
        x = self._own.fc(torch.cat([self._embedding(tokens), states], dim=-1))
        x = run_layers(self._own.layers, x, self._rotary, positions, mask, cache)
        return HeadPass(x, x)

    def head(self, hidden: Any) -> Any:
        """See `ChainHead`: the target's own."""
        return self._target.head(hidden)


class Eagle3Head:
    """An EAGLE-3 head: `states`, `run` and `head` as `ChainHead` has them."""

    mask: int | None = None

    def __init__(self, folder: Path, target: HuggingFaceModel) -> None:
        """
        Raises:
            InputError: the folder has no head that can be read, or one of another size than the target's.
        """
        torch, config_fields, weights = require("torch", extra="hf"), read_config(folder), head_weights(folder)
        fields = layer_fields(config_fields)
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
        self._ids = fused_states(config_fields, target)
        own.fc = linear(len(self._ids) * wide, H, bias="fc.bias" in weights)
        if "input_norm.weight" in weights:  # one norm over all fused states
            own.input_norm = type(base.norm)(len(self._ids) * wide, eps=config.rms_norm_eps).to("meta")
        if "fc_norm.0.weight" in weights:  # a norm for each of them
            norms = [type(base.norm)(wide, eps=config.rms_norm_eps).to("meta") for _ in self._ids]
            own.fc_norm = torch.nn.ModuleList(norms)
        self.tokens = drafted_tokens(weights, target, folder)
        own.lm_head = linear(H, len(self.tokens) if self.tokens is not None else target.vocabulary_size, bias=False)
        if "lm_head.weight" not in weights:
            weights["lm_head.weight"] = target.head_weight
        self._embedding = embedding_of(weights, target)
        self._target, self._rotary = target, rotary(base, config, target.device)
        self._residual_normed = bool(config_fields.get("norm_before_residual", False))
        self._normed_output = bool(config_fields.get("norm_output", False))
        self._masked_state = weights.pop("mask_hidden", None)
        kept = {name: v for name, v in weights.items() if name not in _OF_THE_TARGET or name == "lm_head.weight"}
        self._own = fill(own, kept, where=str(folder), device=target.device, dtype=target.dtype)

    def states(self, tokens: IntArray) -> Any:
        """See `ChainHead`: the fused states of the target's layers."""
        return self._fused(self._target.hidden_states(tokens, self._ids))

    def _fused(self, chosen: Sequence[Any]) -> Any:
        torch, own = require("torch", extra="hf"), self._own
        if hasattr(own, "fc_norm"):
            chosen = [norm(state) for norm, state in zip(own.fc_norm, chosen, strict=True)]
        states = torch.cat(list(chosen), dim=-1)
        return own.fc(own.input_norm(states) if hasattr(own, "input_norm") else states)

    def run(self, tokens: IntArray, states: Any, positions: IntArray, mask: Any, cache: GrowingCache) -> HeadPass:
        """See `ChainHead`."""
        torch, first = require("torch", extra="hf"), self._own.layers[0]
        normed = first.hidden_norm(states)
        residual = normed if self._residual_normed else states
        x = torch.cat([first.input_layernorm(self._embedding(tokens)), normed], dim=-1)
        x = residual + run_attention(first.self_attn, x, self._rotary, positions, mask, cache)
        x = x + first.mlp(first.post_attention_layernorm(x))
        x = run_layers(self._own.layers[1:], x, self._rotary, positions, mask, cache)
        normed = self._own.norm(x)
        return HeadPass(normed if self._normed_output else x, normed)

    def head(self, hidden: Any) -> Any:
        """See `ChainHead`."""
        return self._own.lm_head(hidden)


class PEagleHead(Eagle3Head):
    """A P-EAGLE head (arXiv:2602.01469): EAGLE-3 whose further pairs are a mask's embedding and one learnt state.

    So they do not wait for each other: all tokens of a draft come from one pass, in which row d sees the target's pairs
    and the rows before it. Row by row through a cache, as here, gives the same.
    """

    def __init__(self, folder: Path, target: HuggingFaceModel, *, depth: int) -> None:
        """
        Raises:
            InputError: see `Eagle3Head`; or the head drafts fewer tokens than `depth`.
            FileFormatError: the mask's token or state is missing.
        """
        super().__init__(folder, target)
        torch, config = require("torch", extra="hf"), read_config(folder)
        found = (config.get(name) for name in ("mask_token_id", "pard_token", "ptd_token_id"))
        masks = [token for token in found if token is not None]
        if not masks or self._masked_state is None:
            lacking = "'mask_token_id' in its config.json" if not masks else "'mask_hidden' in its weights"
            raise FileFormatError(f"{folder}: no {lacking}", hint=HINT)
        methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
        most = methods[0].get("speculative_tokens")
        if most is not None and depth > most:
            raise InputError(f"{folder}: it drafts {most} tokens, but depth {depth}", hint=f"give --depth {most}")
        self.mask = int(masks[0])
        state = self._masked_state.to(device=target.device, dtype=target.dtype).reshape(1, -1)
        with torch.no_grad():
            self._masked = self._fused(state.chunk(len(self._ids), dim=-1))

    def run(self, tokens: IntArray, states: Any, positions: IntArray, mask: Any, cache: GrowingCache) -> HeadPass:
        """See `ChainHead`: the state of every further pair is the learnt one."""
        _, hidden = super().run(tokens, states, positions, mask, cache)
        return HeadPass(self._masked.expand(len(hidden), -1), hidden)
