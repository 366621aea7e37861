"""DFlash blocks: one pass guesses a block of tokens behind the root (arXiv:2602.06036; JetSpec, arXiv:2606.18394).

The states of several of the target's layers are fused by fc and normed; every layer of the drafter makes keys and
values of them, and they are all that a block sees of the text before its root. The block itself is the root's embedding
and a mask's for every token to guess, at the positions from the root on; its rows see each other, in causal layers only
those before them (layers with a sliding window are causal unless the config says otherwise). Row d of the block guesses
the d-th token behind the root, with `sample_from_anchor` row d - 1 does. Embeddings are the target's, and the output
head too unless the folder has one.

Where the target's layers are named: `dflash_config.target_layer_ids` counts layers from 0, `aux_hidden_state_layer_ids`
(speculators' format) counts states with the embeddings as 0, which is one more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from treeopt.arrays import IntArray
from treeopt.collect.heads.files import HINT, read_config
from treeopt.collect.heads.layers import fill, library_config, linear, rotary, skeleton
from treeopt.collect.heads.weights import drafted_tokens, embedding_of, head_weights, layer_fields, same_width
from treeopt.decode.guesses import LogitGuesses
from treeopt.decode.hf import HuggingFaceModel
from treeopt.errors import FileFormatError, InputError
from treeopt.extras import require

_ROOTS: Final = 64  # whose blocks run together: every row's mask is as long as all of them
_MASKS: Final = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")  # vLLM's order


class BlockSettings(NamedTuple):
    """What a config.json says of a block.

    Args:
        size: its rows, the root's included.
        mask: the token in the place of those to guess.
        states: which states of the target are fused, counted with the embeddings as 0.
        from_anchor: the root's row guesses too.
        windows: per layer, how many of the context's last positions it sees; None: all of them.
        causal: per layer, whether a row sees only those before it in its block.
    """

    size: int
    mask: int
    states: tuple[int, ...]
    from_anchor: bool
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]

    @property
    def drafts(self) -> int:
        """How many tokens a block guesses: 15 of a block of 16, all 16 where the root's row guesses too."""
        return self.size if self.from_anchor else self.size - 1


class BlockDrafter:
    """A DFlash drafter beside its target: `along` as `TextDrafter` has it."""

    def __init__(self, folder: Path, target: HuggingFaceModel, *, temperature: float, depth: int) -> None:
        """
        Raises:
            InputError: the folder has no drafter that can be read, one of another size than the target's, or one that
                guesses fewer tokens than `depth`.
        """
        torch, config_fields = require("torch", extra="hf"), read_config(folder)
        fields = layer_fields(config_fields)
        config = library_config(fields, model_type=fields.get("model_type") or "qwen3")
        self.block = block_settings(folder, config_fields, fields, layers=config.num_hidden_layers)
        if depth > self.block.drafts:
            raise InputError(
                f"{folder}: a block of {self.block.size} guesses {self.block.drafts} tokens, but depth {depth}",
                hint=f"give --depth {self.block.drafts}",
            )
        H = int(config.hidden_size)
        same_width(folder, H, target)
        weights = head_weights(folder)
        base = skeleton(config, layers=config.num_hidden_layers)
        own = torch.nn.Module()
        own.layers, own.norm = base.layers, base.norm
        own.fc = linear(len(self.block.states) * H, H, bias=False)
        own.hidden_norm = type(base.norm)(H, eps=config.rms_norm_eps).to("meta")
        self._tokens = drafted_tokens(weights, target, folder)
        if "lm_head.weight" in weights:
            own.lm_head = linear(H, len(weights["lm_head.weight"]), bias=False)
        self._embedding = embedding_of(weights, target)
        unread = ("verifier_norm.weight", "verifier_lm_head.weight", "t2d", "d2t")
        kept = {name: value for name, value in weights.items() if name not in unread}
        self._own = fill(own, kept, where=str(folder), device=target.device, dtype=target.dtype)
        self._target, self._temperature = target, temperature
        self._rotary = rotary(base, config, target.device)

    def along(self, tokens: IntArray, *, first: int, depth: int) -> Iterator[LogitGuesses]:
        """See `TextDrafter`: one element per depth."""
        torch = require("torch", extra="hf")
        starts, roots = len(tokens) - first, np.arange(first - 1, len(tokens) - 1)
        with torch.no_grad():
            states = torch.cat(self._target.hidden_states(tokens[:-2], self.block.states), dim=-1)
            context = self._own.hidden_norm(self._own.fc(states))
            parts = [self._blocks(tokens, roots[i : i + _ROOTS], context) for i in range(0, starts, _ROOTS)]
            hidden = torch.cat(parts)  # [starts, block, hidden]
        for d in range(1, depth + 1):
            row = d - 1 if self.block.from_anchor else d
            with torch.no_grad():
                logits = self._head(hidden[: max(starts - d + 1, 0), row])
            yield LogitGuesses(
                logits,
                vocabulary_size=self._target.vocabulary_size,
                temperature=self._temperature,
                tokens=self._tokens,
            )

    def _head(self, hidden: Any) -> Any:
        return self._own.lm_head(hidden) if hasattr(self._own, "lm_head") else self._target.head(hidden)

    def _blocks(self, tokens: IntArray, roots: IntArray, context: Any) -> Any:
        """`[n, block, hidden]` normed outputs of the blocks at n roots."""
        size = self.block.size
        ids = np.full((len(roots), size), self.block.mask)
        ids[:, 0] = tokens[roots]
        positions = np.concatenate([np.arange(len(context)), (roots[:, None] + np.arange(size)).ravel()])
        x = self._embedding(ids.ravel())
        where = require("torch", extra="hf").as_tensor(positions, device=x.device)[None]
        cos, sin = (turn[0] for turn in self._rotary(x[None], where))
        for layer, window, causal in zip(self._own.layers, self.block.windows, self.block.causal, strict=True):
            mask = self._mask(roots, len(context), window=window, causal=causal)
            x = x + self._attention(layer.self_attn, layer.input_layernorm(x), context, (cos, sin), mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self._own.norm(x).unflatten(0, (len(roots), size))

    def _mask(self, roots: IntArray, context: int, *, window: int | None, causal: bool) -> Any:
        """`[n * block, context + n * block]` bool: the context before the root, and the block's own rows."""
        n, size = len(roots), self.block.size
        place = np.arange(context)
        before = place < roots[:, None]
        if window is not None:
            before &= place >= roots[:, None] - window
        block = np.tri(size) if causal else np.ones((size, size))
        own = np.kron(np.eye(n), block).astype(np.bool_)
        mask = np.concatenate([before.repeat(size, axis=0), own], axis=1)
        return require("torch", extra="hf").as_tensor(mask, device=self._target.device)

    def _attention(self, attention: Any, x: Any, context: Any, turn: tuple[Any, Any], mask: Any) -> Any:
        """Rows `x [M, hidden]` over the context and themselves; keys of both go through one projection."""
        torch = require("torch", extra="hf")
        both, width = torch.cat([context, x]), attention.head_dim

        def heads(projected: Any, norm: Any = None) -> Any:
            split = projected.unflatten(-1, (-1, width))
            return (split if norm is None else norm(split)).transpose(0, 1)

        q = heads(attention.q_proj(x), getattr(attention, "q_norm", None))
        k = heads(attention.k_proj(both), getattr(attention, "k_norm", None))
        v = heads(attention.v_proj(both))
        (cos, sin), M = turn, len(x)
        q, k = _rotated(q, cos[-M:], sin[-M:]), _rotated(k, cos, sin)
        group = len(q) // len(k)
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, scale=attention.scaling
        )
        return attention.o_proj(mixed[0].transpose(0, 1).flatten(1))


def block_settings(folder: Path, config: dict[str, Any], fields: dict[str, Any], *, layers: int) -> BlockSettings:
    """What a folder's config.json says of the block; `fields` are those of its layers.

    Raises:
        FileFormatError: the block's size, its mask or the target's layers are missing.
    """
    inner = config.get("dflash_config")
    places = (inner if isinstance(inner, dict) else {}, config)

    def value(*keys: str) -> Any:
        return next((place[key] for key in keys for place in places if place.get(key) is not None), None)

    size, mask = value("block_size"), value(*_MASKS)
    counted, states = value("target_layer_ids"), config.get("aux_hidden_state_layer_ids")
    if states is None and counted is not None:
        states = [int(layer) + 1 for layer in counted]
    if size is None or mask is None or states is None:
        missing = "block_size" if size is None else "mask_token_id" if mask is None else "target_layer_ids"
        raise FileFormatError(f"{folder / 'config.json'}: '{missing}' is missing", hint=HINT)
    kinds = fields.get("layer_types") or ["full_attention"] * layers
    window, causal = fields.get("sliding_window"), value("is_causal", "causal", "causal_head")
    slides = [kind == "sliding_attention" for kind in kinds[:layers]]
    window_is_causal = not config.get("sliding_window_non_causal", False)
    return BlockSettings(
        size=int(size),
        mask=int(mask),
        states=tuple(int(i) for i in states),
        from_anchor=bool(value("sample_from_anchor")),
        windows=tuple(int(window) if slide and window else None for slide in slides),
        causal=tuple((slide and window_is_causal) if causal is None else bool(causal) for slide in slides),
    )


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    """`[heads, n, width]` turned by `[n, width]` angles, halves paired."""
    torch = require("torch", extra="hf")
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
