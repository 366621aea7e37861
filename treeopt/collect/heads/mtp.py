"""Multi-token-prediction modules, which lie in the target's own checkpoint and which the library leaves out.

A module is one more decoder layer of the target's kind behind a projection of the normed embedding beside the normed
state (DeepSeek-V3, arXiv:2412.19437, section 2.2); embeddings and output head are the target's.

    DeepSeek-V3, GLM-4.5   model.layers.N.{enorm, hnorm, eh_proj, shared_head.norm, ...the layer}, N = num_hidden_layers
    Qwen3-Next, Qwen3.5    mtp.{pre_fc_norm_embedding, pre_fc_norm_hidden, fc, norm, layers.0...the layer}
    speculators            mtp_layers.0.{token_layernorm, hidden_layernorm, input_proj, final_layernorm, ...the layer}

Every further token goes through the same module; it reads the module's last output behind the final norm (vLLM 0.32's
DeepSeek and Qwen3-Next, SGLang 0.5.23), for GLM before it (vLLM 0.32; SGLang takes it behind the norm there too). The
embedding at position 0 is zero in the DeepSeek and GLM layouts, as vLLM has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from treeopt.arrays import IntArray
from treeopt.collect.heads.chain import HeadPass
from treeopt.collect.heads.files import HINT, read_weights, tensor_names
from treeopt.collect.heads.layers import GrowingCache, fill, linear, rotary, run_layers, skeleton
from treeopt.decode.hf import HuggingFaceModel
from treeopt.errors import FileFormatError, InputError
from treeopt.extras import require


class MtpLayout(NamedTuple):
    """How a family names the parts of a module; `layer` stands before the decoder layer's own names."""

    prefix: str
    embedding_norm: str
    state_norm: str
    projection: str
    final_norm: str
    layer: str
    first_embedding_is_zero: bool


_QWEN: Final = MtpLayout("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm", "layers.0.", False)
_SPECULATORS: Final = MtpLayout(
    "mtp_layers.0.", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm", "", False
)
# Copies of the target's own.
_SHARED: Final = ("shared_head.head.weight", "embed_tokens.weight", "lm_head.weight")


def _deepseek(layer: int) -> MtpLayout:
    return MtpLayout(f"model.layers.{layer}.", "enorm", "hnorm", "eh_proj", "shared_head.norm", "", True)


class MtpHead:
    """A module: `states`, `run` and `head` as `ChainHead` has them."""

    tokens: IntArray | None = None
    mask: int | None = None

    def __init__(self, folder: Path, target: HuggingFaceModel) -> None:
        """
        Raises:
            InputError: no module there, several of them, or one of another kind than the target.
        """
        torch, self._target = require("torch", extra="hf"), target
        self._layout = _layout(folder, target)
        weights = _named_as_ours(self._layout, read_weights(folder, lambda name: name.startswith(self._layout.prefix)))
        # A module is one of the later layers: with experts where the target has some.
        base = skeleton(target.config, layers=1, first_k_dense_replace=0)
        H, eps = int(target.config.hidden_size), target.config.rms_norm_eps
        own = torch.nn.Module()
        own.layer, own.projection = base.layers[0], linear(2 * H, H, bias=False)
        for name in ("embedding_norm", "state_norm", "final_norm"):
            setattr(own, name, type(base.norm)(H, eps=eps).to("meta"))
        self._own = fill(own, weights, where=str(folder), device=target.device, dtype=target.dtype)
        self._rotary = rotary(base, target.config, target.device)
        self._recycles_normed = not str(target.config.model_type).startswith("glm")

    def states(self, tokens: IntArray) -> Any:
        """See `ChainHead`: what the target's head reads."""
        return self._target.last_hidden(tokens)

    def run(self, tokens: IntArray, states: Any, positions: IntArray, mask: Any, cache: GrowingCache) -> HeadPass:
        """See `ChainHead`."""
        torch, own = require("torch", extra="hf"), self._own
        embedded = self._target.embed(tokens)
        if self._layout.first_embedding_is_zero:
            first = torch.as_tensor(positions == 0, device=embedded.device)[:, None]
            embedded = torch.where(first, 0.0, embedded)
        x = own.projection(torch.cat([own.embedding_norm(embedded), own.state_norm(states)], dim=-1))
        x = run_layers([own.layer], x, self._rotary, positions, mask, cache)
        normed = own.final_norm(x)
        return HeadPass(normed if self._recycles_normed else x, normed)

    def head(self, hidden: Any) -> Any:
        """See `ChainHead`: the target's own."""
        return self._target.head(hidden)


def _layout(folder: Path, target: HuggingFaceModel) -> MtpLayout:
    """The layout whose names a checkpoint has."""
    names, n = list(tensor_names(folder)), target.layers
    for layout in (_QWEN, _SPECULATORS, _deepseek(n)):
        if f"{layout.prefix}{layout.projection}.weight" not in names:
            continue
        more = {f"{_deepseek(n + 1).prefix}eh_proj.weight", "mtp.layers.1.input_layernorm.weight"}
        if more & set(names):
            raise InputError(
                f"{folder}: it has several MTP modules, of which each drafts one token; only a single one, which "
                "drafts all of them, can be collected",
                hint=HINT,
            )
        return layout
    raise FileFormatError(f"{folder}: no MTP module in its weights", hint=HINT)


def _named_as_ours(layout: MtpLayout, weights: dict[str, Any]) -> dict[str, Any]:
    ours = {
        f"{layout.embedding_norm}.weight": "embedding_norm.weight",
        f"{layout.state_norm}.weight": "state_norm.weight",
        f"{layout.projection}.weight": "projection.weight",
        f"{layout.final_norm}.weight": "final_norm.weight",
    }
    found = {}
    for name, value in weights.items():
        short = name.removeprefix(layout.prefix)
        if short not in _SHARED:
            found[ours.get(short, f"layer.{short.removeprefix(layout.layer)}")] = value
    return found
