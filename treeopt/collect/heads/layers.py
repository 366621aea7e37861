"""The parts of a head: decoder layers of the library's own kinds, filled with the head's weights."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from typing import Any

from treeopt.arrays import IntArray
from treeopt.errors import FileFormatError, InputError
from treeopt.extras import require


class GrowingCache:
    """Keys and values of the rows so far, with the one method that the library's attention calls on a cache."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, Any]] = {}

    def update(self, keys: Any, values: Any, layer: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Append a pass's keys and values; returns all."""
        if layer in self._held:
            torch = require("torch", extra="hf")
            old_keys, old_values = self._held[layer]
            keys, values = torch.cat([old_keys, keys], dim=-2), torch.cat([old_values, values], dim=-2)
        self._held[layer] = keys, values
        return keys, values


def library_config(fields: dict[str, Any], *, model_type: str | None = None) -> Any:
    """The library's configuration of a head, from the fields of its config.json.

    Raises:
        InputError: a kind of model that the library does not know, or fields that it refuses.
    """
    transformers = require("transformers", extra="hf")
    kind = model_type or fields.get("model_type") or "llama"
    ignored = ("model_type", "auto_map", "architectures", "torch_dtype", "dtype", "transformers_version")
    try:
        return transformers.AutoConfig.for_model(kind, **{k: v for k, v in fields.items() if k not in ignored})
    except Exception as error:  # the library checks each kind's fields in its own way
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"a head of the kind {kind}: {reason}", hint="give a head whose layers transformers has"
        ) from error


def skeleton(config: Any, *, layers: int, vocabulary_size: int = 1, **changes: Any) -> Any:
    """A base model of a configuration with `layers` layers of full attention and no weights (torch's meta device)."""
    torch, transformers = require("torch", extra="hf"), require("transformers", extra="hf")
    own = copy.deepcopy(config)
    fixed = {"num_hidden_layers": layers, "vocab_size": vocabulary_size, "pad_token_id": None, **changes}
    if getattr(own, "layer_types", None):
        fixed["layer_types"] = ["full_attention"] * layers
    for name, value in fixed.items():
        setattr(own, name, value)
    own._attn_implementation = "sdpa"
    with torch.device("meta"):
        return transformers.AutoModel.from_config(own)


def rotary(base: Any, config: Any, device: Any) -> Any:
    """The positions' rotation of a base model, with its own tables in place of those without values."""
    found = type(base.rotary_emb)(config=config)
    return found.to(device)


def linear(inputs: int, outputs: int, *, bias: bool) -> Any:
    """A linear layer without weights."""
    torch = require("torch", extra="hf")
    return torch.nn.Linear(inputs, outputs, bias=bias, device="meta")


def fill(module: Any, weights: dict[str, Any], *, where: str, device: Any, dtype: Any) -> Any:
    """Give a module its weights, all of them and no others, and return it.

    Raises:
        FileFormatError: one is missing, too many, of the wrong shape, or quantised.
    """
    torch = require("torch", extra="hf")
    wanted = module.state_dict()
    weights = _experts_together(weights, wanted)
    for name in sorted(weights.keys() | wanted.keys()):
        expected = tuple(wanted[name].shape) if name in wanted else "nothing"
        found = tuple(weights[name].shape) if name in weights else "missing"
        if found != expected:
            raise FileFormatError(f"{where}: '{name}' is {found}, expected {expected}", hint=_hint(weights))
    for name, value in weights.items():
        if not torch.is_floating_point(value):
            raise FileFormatError(f"{where}: '{name}' holds {value.dtype}", hint="give a head that is not quantised")
    # A router's correction is kept in float32, whatever the model is in.
    ready = {
        name: value.to(device=device, dtype=torch.float32 if name.endswith("e_score_correction_bias") else dtype)
        for name, value in weights.items()
    }
    module.load_state_dict(ready, strict=True, assign=True)
    return module.eval()


def _hint(weights: Iterable[str]) -> str:
    if any("scale" in name or "qweight" in name for name in weights):
        return "give a head that is not quantised"
    return "give the head's weights under their published names, and the config.json that belongs to them"


def _experts_together(weights: dict[str, Any], wanted: Iterable[str]) -> dict[str, Any]:
    """Experts one by one, as checkpoints have them, to one tensor for all, where the library wants that."""
    torch = require("torch", extra="hf")
    names = [name for name in wanted if name.endswith("experts.gate_up_proj")]
    found = dict(weights)
    for prefix in (name.removesuffix("gate_up_proj") for name in names):
        own = {name: found.pop(name) for name in list(found) if name.startswith(prefix)}
        experts = range(len(own) // 3)
        gate, up, down = ([f"{prefix}{e}.{kind}_proj.weight" for e in experts] for kind in ("gate", "up", "down"))
        if own.keys() != {*gate, *up, *down}:
            found |= own
            continue
        pairs = zip(gate, up, strict=True)
        found[f"{prefix}gate_up_proj"] = torch.stack([torch.cat([own[name] for name in pair]) for pair in pairs])
        found[f"{prefix}down_proj"] = torch.stack([own[name] for name in down])
    return found


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
            **{_cache_name(layer): cache},
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
        **{_cache_name(attention): cache},
    )
    return found[0][0]


def _cache_name(module: Any) -> str:
    """What a module calls its cache, which transformers 5 renamed."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


def _positions(positions: IntArray, like: Any) -> Any:
    return require("torch", extra="hf").as_tensor(positions, device=like.device)[None]
