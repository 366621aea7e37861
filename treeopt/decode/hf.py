"""Hugging Face causal language models as decoder models, with a cache that keeps every request's own length."""

from __future__ import annotations

import inspect
import math
from typing import Any, Final

import numpy as np

from treeopt.arrays import IntArray
from treeopt.collect.models import CausalModel
from treeopt.decode.attention import Attention
from treeopt.decode.cache import SlotCache
from treeopt.decode.step import Step
from treeopt.errors import InputError
from treeopt.extras import require

_ATTENTION_NAME: Final = "treeopt_step"


class HuggingFaceModel:
    """A loaded model; masks and positions are given to it, so its own idea of a cache's length does not matter.

    Args:
        attention: what runs a step's attention; None: what the model was loaded with, under the step's mask.

    Raises:
        InputError: some of its layers do not attend to everything before them (sliding windows, recurrent states):
            a tree's tokens cannot be taken back out of those; or its attention cannot be exchanged.
    """

    def __init__(self, model: CausalModel, *, attention: Attention | None = None) -> None:
        self._torch = require("torch", extra="hf")
        self._causal = model
        self._attention = attention
        self._model = model._model  # the loaded module; treeopt.collect keeps it to itself
        _check_layers(self._model.config, model.name)
        parameters = inspect.signature(self._model.forward).parameters
        if "position_ids" not in parameters:
            raise InputError(
                f"{model.name} takes no position ids", hint="decode with a model whose positions can be given to it"
            )
        self._additive = self._model.config._attn_implementation == "eager"  # it adds the mask to the scores
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5
        if attention is not None:
            _take_over(self._model, model.name)

    @classmethod
    def load(
        cls, spec: str, *, device: str = "auto", dtype: str = "auto", attention: Attention | None = None
    ) -> HuggingFaceModel:
        """Load a directory, .gguf file or hub id, as `treeopt.collect` does.

        Raises:
            InputError: no such model, it cannot be loaded, no such device, or layers without full attention.
        """
        return cls(CausalModel.load(spec, device=device, dtype=dtype), attention=attention)

    @property
    def name(self) -> str:
        """See `Model`."""
        return self._causal.name

    @property
    def vocabulary_size(self) -> int:
        """See `Model`."""
        return self._causal.vocabulary_size

    @property
    def device(self) -> Any:
        """See `Model`."""
        return self._causal.device

    @property
    def dtype(self) -> Any:
        """See `Model`."""
        return self._causal.dtype

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end its texts."""
        ends = self._model.generation_config.eos_token_id
        return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])

    def early_exit(self, layers: int) -> HuggingFaceModel:
        """Its first layers, then its final norm and output head, as a drafter.

        Raises:
            InputError: not fewer layers than it has, or an architecture whose layers are not found.
        """
        return HuggingFaceModel(self._causal.truncated(layers))

    def forward(self, step: Step, cache: SlotCache, *, at: IntArray | None = None) -> Any:
        """See `Model`."""
        wanted, place = (None, None) if at is None else np.unique(at, return_inverse=True)
        options: dict[str, Any] = {self._cache_name: cache.bind(step)}
        if self._attention is not None:
            options |= {"treeopt_step": step, "treeopt_attention": self._attention}
        with self._torch.no_grad():
            output = self._model(
                input_ids=self._tensor(step.tokens),
                position_ids=self._tensor(step.positions),
                attention_mask=self._mask(step),
                logits_to_keep=0 if wanted is None else self._tensor(wanted),
                use_cache=True,
                **options,
            )
        if place is None:
            return output.logits
        return output.logits[self._tensor(np.arange(len(place))), self._tensor(place)]

    def reference(self, tokens: IntArray) -> Any:
        """See `Model`."""
        with self._torch.no_grad():
            return self._model(input_ids=self._tensor(tokens)[None], use_cache=False).logits[0]

    def _mask(self, step: Step) -> Any:
        visible = self._tensor(step.mask)[:, None]
        if not self._additive or self._attention is not None:
            return visible
        hidden = self._torch.finfo(self.dtype).min
        return self._torch.zeros_like(visible, dtype=self.dtype).masked_fill(~visible, hidden)

    def _tensor(self, values: Any) -> Any:
        return self._torch.as_tensor(values, device=self.device)


def _check_layers(config: Any, name: str) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if not getattr(config, "layer_types", None) and getattr(config, "sliding_window", None):
        kinds = {"sliding_attention"}  # of all layers, as Mistral's first models have it
    if kinds:
        raise InputError(
            f"{name} has layers of the kind {', '.join(sorted(kinds))}",
            hint="decode with a model whose layers all have full attention",
        )


def _take_over(model: Any, name: str) -> None:
    """Let the model call `_attend` in all layers: the registry and the setter are the library's way to do that."""
    transformers = require("transformers", extra="hf")
    transformers.AttentionInterface.register(_ATTENTION_NAME, _attend)
    model.set_attn_implementation(_ATTENTION_NAME)
    if model.config._attn_implementation != _ATTENTION_NAME:
        raise InputError(f"the attention of {name} cannot be exchanged", hint="verify with --attention torch")


def _attend(module: Any, q: Any, k: Any, v: Any, attention_mask: Any, **kwargs: Any) -> tuple[Any, None]:
    """A step's attention where a step is running, else the library's."""
    step, attention = kwargs.pop("treeopt_step", None), kwargs.pop("treeopt_attention", None)
    if step is None:
        sdpa = require("transformers", extra="hf").AttentionInterface()["sdpa"]
        found: tuple[Any, None] = sdpa(module, q, k, v, attention_mask, **kwargs)
        return found
    scaling = kwargs.get("scaling")
    if scaling is not None and not math.isclose(scaling, q.shape[-1] ** -0.5):
        raise InputError("its scores are scaled in its own way", hint="verify with --attention torch")
    return attention(q, k, v, attention_mask[:, 0], step).transpose(1, 2).contiguous(), None
