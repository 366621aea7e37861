"""Hugging Face causal language models: whole texts for collecting, steps over a cache of their own for decoding."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from treeopt.arrays import IntArray
from treeopt.decode.attention import Attention
from treeopt.decode.cache import SlotCache
from treeopt.decode.checkpoint import Checkpoint
from treeopt.decode.step import ForwardBatch
from treeopt.errors import InputError
from treeopt.extras import require

_ATTENTION_NAME: Final = "treeopt_step"
_LAYERS: Final = ("layers", "h")  # what the families call their list of layers
_MOST_TOKENS: Final = 1 << 31  # no vocabulary comes near it


class HuggingFaceModel:
    """A model with its weights.

    Texts are run one at a time: batches pad, and padding moves the last bits of a logit. In a step masks and positions
    are given to it, so its own idea of a cache's length does not matter.

    Args:
        attention: what runs a step's attention; None: what the model was loaded with, under the step's mask.

    Raises:
        InputError: its attention cannot be exchanged.
    """

    def __init__(self, model: Any, *, name: str, attention: Attention | None = None) -> None:
        self._torch = require("torch", extra="hf")
        self._name = name
        self._model = model
        self._attention = attention
        if attention is not None:
            _take_over(model, name)

    @classmethod
    def load(
        cls, spec: str, *, device: str = "auto", dtype: str = "auto", attention: Attention | None = None
    ) -> HuggingFaceModel:
        """Load a directory, .gguf file or hub id; `auto` is CUDA where there is one, and the checkpoint's own dtype
        (float32 on a CPU, where half precision is slow).

        Raises:
            InputError: no such model, it cannot be loaded, or no such device.
        """
        torch, transformers = require("torch", extra="hf"), require("transformers", extra="hf")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        wanted = ("float32" if device == "cpu" else "auto") if dtype == "auto" else dtype
        model = Checkpoint.locate(spec).load(transformers.AutoModelForCausalLM.from_pretrained, dtype=wanted)
        try:
            model = model.to(device).eval()
        except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"device {device}: {reason}", hint="give --device cpu, or cuda where there is one"
            ) from error
        # Continuations come from the model's own distribution: a checkpoint may ask for top-p or a repetition penalty.
        ends = _end_tokens(model, spec)
        pad = ends[0] if ends else 0
        model.generation_config = transformers.GenerationConfig(eos_token_id=ends or None, pad_token_id=pad)
        return cls(model, name=spec, attention=attention)

    @property
    def name(self) -> str:
        """See `CausalModel`."""
        return self._name

    @property
    def config(self) -> Any:
        """The library's configuration of the model."""
        return self._model.config

    @property
    def vocabulary_size(self) -> int:
        """See `CausalModel`."""
        return int(self._model.config.vocab_size)

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return int(self._model.config.num_hidden_layers)

    @property
    def device(self) -> Any:
        """See `CausalModel`."""
        return self._model.device

    @property
    def dtype(self) -> Any:
        """See `CausalModel`."""
        return self._model.dtype

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end its texts."""
        return frozenset(_end_tokens(self._model, self.name))

    def continuation(self, tokens: IntArray, *, max_new_tokens: int, temperature: float, seed: int) -> IntArray:
        """`[L]` prompt to its `[T]` continuation, greedy or sampled; the token that ends it is its last one."""
        sampling = {"top_k": 0, "top_p": 1.0, "temperature": temperature} if temperature > 0 else {}
        cuda = [self.device] if self.device.type == "cuda" else []
        ids = self._tensor(tokens)[None]
        with self._torch.random.fork_rng(devices=cuda), self._torch.no_grad():
            self._torch.manual_seed(seed)
            output = self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=temperature > 0,
                **sampling,
            )
        return np.asarray(output[0, len(tokens) :].cpu().numpy(), dtype=np.int64)

    def reference(self, tokens: IntArray, *, first: int = 0) -> Any:
        """See `CausalModel`."""
        with self._torch.no_grad():
            ids = self._tensor(tokens)[None]
            return self._model(ids, use_cache=False, logits_to_keep=len(tokens) - first).logits[0]

    def last_hidden(self, tokens: IntArray) -> Any:
        """`[L, hidden]` torch tensor that the output head reads: the last layer's output behind the final norm."""
        with self._torch.no_grad():
            return self._model.base_model(self._tensor(tokens)[None], use_cache=False).last_hidden_state[0]

    def hidden_states(self, tokens: IntArray, wanted: Sequence[int]) -> list[Any]:
        """The states of these numbers, `[L, hidden]` torch tensors: 0 are the embeddings, k what comes out of layer k.

        The last layer's is taken before the final norm, which the library itself would have applied.

        Raises:
            InputError: a number that is no layer's.
        """
        layers, found = self._layer_list(), dict[int, Any]()
        if not all(0 <= number <= len(layers) for number in wanted):
            raise InputError(
                f"states {', '.join(map(str, wanted))} of a target with {len(layers)} layers",
                hint="give the drafter that was trained for this target",
            )

        def keep(number: int) -> Callable[..., None]:
            def kept(module: Any, arguments: Any, output: Any) -> None:
                found[number] = (output[0] if isinstance(output, tuple) else output)[0]

            return kept

        def entry(module: Any, arguments: Any, options: Any) -> None:
            found[0] = (arguments[0] if arguments else options["hidden_states"])[0]

        hooks = [layers[0].register_forward_pre_hook(entry, with_kwargs=True)] if 0 in wanted else []
        hooks += [layers[k - 1].register_forward_hook(keep(k)) for k in sorted(set(wanted) - {0})]
        try:
            self.last_hidden(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        return [found[number] for number in wanted]

    def embed(self, tokens: IntArray) -> Any:
        """`[L]` tokens to their `[L, hidden]` input embeddings."""
        with self._torch.no_grad():
            return self._model.get_input_embeddings()(self._tensor(tokens))

    def head(self, hidden: Any) -> Any:
        """`[n, hidden]` to `[n, V]` logits by the output head alone."""
        with self._torch.no_grad():
            return self._model.get_output_embeddings()(hidden)

    @property
    def head_weight(self) -> Any:
        """`[V, hidden]` of the output head."""
        return self._model.get_output_embeddings().weight

    def early_exit(self, layers: int) -> HuggingFaceModel:
        """Its first layers only, then its final norm and output head, as a drafter; weights are shared.

        Raises:
            InputError: not fewer layers than it has, or an architecture whose layers are not found.
        """
        check_exit(layers, self.layers)
        kept, base = self._layer_list()[:layers], self._model.base_model
        name = next(name for name in _LAYERS if hasattr(base, name))
        holder = next(key for key, module in self._model.named_children() if module is base)
        shallow = _with_modules(base, {name: kept})
        return HuggingFaceModel(_with_modules(self._model, {holder: shallow}), name=f"{self.name}:{layers}")

    def forward(self, step: ForwardBatch, cache: SlotCache, *, at: IntArray | None = None) -> Any:
        """See `Model`.

        Raises:
            InputError: some of its layers do not attend to everything before them (sliding windows, recurrent states):
                a tree's tokens cannot be taken back out of those; or it takes no positions.
        """
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

    @cached_property
    def _cache_name(self) -> str:
        """What it calls the cache of a step, once it is known that it can run one."""
        _check_layers(self._model.config, self.name)
        parameters = inspect.signature(self._model.forward).parameters
        if "position_ids" not in parameters:
            raise InputError(
                f"{self.name} takes no position ids", hint="decode with a model whose positions can be given to it"
            )
        return "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5

    def _layer_list(self) -> Any:
        base = self._model.base_model
        name = next((name for name in _LAYERS if hasattr(base, name)), None)
        if name is None or base is self._model:
            kind = type(self._model).__name__
            raise InputError(f"the layers of a {kind} are not found", hint="draft with another drafter")
        return getattr(base, name)

    def _mask(self, step: ForwardBatch) -> Any:
        visible = self._tensor(step.mask)[:, None]
        if self._attention is not None or self._model.config._attn_implementation != "eager":
            return visible
        hidden = self._torch.finfo(self.dtype).min  # eager attention adds the mask to the scores
        return self._torch.zeros_like(visible, dtype=self.dtype).masked_fill(~visible, hidden)

    def _tensor(self, values: Any) -> Any:
        return self._torch.as_tensor(values, device=self.device)


def check_exit(layers: int, of: int) -> None:
    """An early exit must leave layers out.

    Raises:
        InputError: not from 1 to one less than the target has.
    """
    if not 1 <= layers < of:
        raise InputError(f"early exit after {layers} of {of} layers", hint="exit before the last layer")


def _with_modules(module: Any, replaced: dict[str, Any]) -> Any:
    clone = copy.copy(module)
    clone._modules = {**module._modules, **replaced}
    return clone


def _check_layers(config: Any, name: str) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if not getattr(config, "layer_types", None) and getattr(config, "sliding_window", None):
        kinds = {"sliding_attention"}  # of all layers, as Mistral's first models have it
    if kinds:
        raise InputError(
            f"{name} has layers of the kind {', '.join(sorted(kinds))}",
            hint="decode with a model whose layers all have full attention",
        )


def _end_tokens(model: Any, name: str) -> list[int]:
    """The tokens that end a model's texts, as its folder says.

    Raises:
        InputError: they are no numbers of tokens.
    """
    said = model.generation_config.eos_token_id
    ends = said if isinstance(said, list) else [] if said is None else [said]
    for end in ends:
        if isinstance(end, bool) or not isinstance(end, int) or not 0 <= end < _MOST_TOKENS:
            raise InputError(
                f"{name}: eos_token_id {str(end)[:40]} is no token",
                hint="correct generation_config.json or config.json: a token's number, or a list of them",
            )
    return ends


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
