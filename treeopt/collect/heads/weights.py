"""A head's weights and settings under one naming, whoever saved them, and what it shares with its target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from treeopt.arrays import IntArray
from treeopt.collect.heads.files import HINT, read_weights
from treeopt.decode.hf import HuggingFaceModel
from treeopt.errors import FileFormatError
from treeopt.extras import require


def layer_fields(config: dict[str, Any]) -> dict[str, Any]:
    """The fields that describe the layers: the config's own, or in speculators' format those it holds inside."""
    inner = config.get("transformer_layer_config")
    fields = dict(inner) if isinstance(inner, dict) else dict(config)
    return {"num_hidden_layers": 1, **fields}


def head_weights(folder: Path) -> dict[str, Any]:
    """A head's tensors under one naming: without `model.`, and the authors' `midlayer` as the first layer."""
    found = {}
    for name, value in read_weights(folder).items():
        short = name.removeprefix("model.")
        short = "layers.0." + short.removeprefix("midlayer.") if short.startswith("midlayer.") else short
        found[short] = value
    if "fc.weight" not in found:
        raise FileFormatError(f"{folder}: its weights have no 'fc.weight'", hint=HINT)
    return {name: value for name, value in found.items() if not name.endswith("rotary_emb.inv_freq")}


def same_width(folder: Path, width: int, target: HuggingFaceModel) -> None:
    """Refuse a head of another hidden size than the target's, whose states it reads.

    Raises:
        FileFormatError: it is one.
    """
    if width != int(target.config.hidden_size):
        raise FileFormatError(
            f"{folder}: hidden_size is {width}, the target's {target.config.hidden_size}",
            hint="give the head that was trained for this target",
        )


def embedding_of(weights: dict[str, Any], target: HuggingFaceModel) -> Any:
    """From token numbers to embeddings: the head's own where it has some, which it takes out of `weights`."""
    torch, own = require("torch", extra="hf"), weights.pop("embed_tokens.weight", None)
    if own is None:
        return target.embed
    table = own.to(device=target.device, dtype=target.dtype)
    return lambda tokens: table[torch.as_tensor(tokens, device=target.device)]


def drafted_tokens(weights: dict[str, Any], target: HuggingFaceModel, folder: Path) -> IntArray | None:
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


def fused_states(config: dict[str, Any], target: HuggingFaceModel) -> list[int]:
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
