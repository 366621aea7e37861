"""Hugging Face causal language models, run one document at a time.

A document's numbers then do not depend on its neighbours: batches pad, and padding moves the last bits of a logit.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from treeopt.arrays import IntArray
from treeopt.collect.prompts import Prompt
from treeopt.errors import FileFormatError, InputError
from treeopt.extras import require
from treeopt.files.documents import os_error

Probabilities = npt.NDArray[np.float32]
Loaded = TypeVar("Loaded")

_LAYERS: Final = ("layers", "h")  # what the families call their list of layers
_HINT: Final = "give a directory, a .gguf file or the hub id OWNER/NAME of a causal language model"


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """Where a model is: what `from_pretrained` takes."""

    spec: str
    folder: str
    gguf: str | None = None

    @classmethod
    def locate(cls, spec: str) -> ModelFiles:
        """From a directory, a .gguf file or a hub id.

        Raises:
            InputError: a path at which there is nothing.
        """
        path = Path(spec)
        if path.suffix == ".gguf":
            if not path.is_file():
                raise os_error(FileNotFoundError(), path, what="model", verb="read")
            return cls(spec=spec, folder=str(path.parent), gguf=path.name)
        if not path.is_dir() and (spec.count("/") != 1 or spec.startswith((".", "/")) or path.exists()):
            raise InputError(f"{spec}: no such model", hint=_HINT)
        return cls(spec=spec, folder=spec)

    def load(self, load: Callable[..., Loaded], **options: Any) -> Loaded:
        """Call a `from_pretrained`, without the bars that it draws.

        Raises:
            InputError: it cannot be loaded, with the library's own reason.
        """
        if self.gguf is not None:
            options["gguf_file"] = self.gguf
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                return load(self.folder, **options)
        except (OSError, ValueError, ImportError, KeyError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"{self.spec}: cannot be loaded: {reason}", hint=_HINT) from error


class Encoder:
    """A model's tokenizer and limits, without its weights."""

    def __init__(self, files: ModelFiles) -> None:
        self.name = files.spec
        self._files = files

    @classmethod
    def load(cls, spec: str) -> Encoder:
        """The encoder of a directory, .gguf file or hub id; files are read when they are needed."""
        return cls(ModelFiles.locate(spec))

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Every token's text and number."""
        return dict(self._tokenizer.get_vocab())

    @property
    def layers(self) -> int | None:
        """How many layers the model has, where its configuration says so."""
        return getattr(self._config, "num_hidden_layers", None)

    @cached_property
    def _tokenizer(self) -> Any:
        return self._files.load(require("transformers", extra="hf").AutoTokenizer.from_pretrained)

    @cached_property
    def _config(self) -> Any:
        return self._files.load(require("transformers", extra="hf").AutoConfig.from_pretrained)

    def encode(self, prompt: Prompt, *, max_new_tokens: int) -> IntArray:
        """`[L]` token ids of a prompt.

        Raises:
            FileFormatError: ids that the model does not have, no chat template, nothing left to continue, or no room
                for the continuation (with file and line).
        """
        tokens = np.array(self._ids(prompt), dtype=np.int64)
        limit = getattr(self._config, "max_position_embeddings", None)
        if not len(tokens):
            raise prompt.error("the prompt has no tokens", hint="write some text")
        if tokens.max() >= self._config.vocab_size:
            raise prompt.error(f"token {tokens.max()} is not in {self.name}", hint="give ids of the target's tokenizer")
        if limit is not None and len(tokens) + max_new_tokens > limit:
            raise prompt.error(
                f"{len(tokens)} tokens and {max_new_tokens} new ones exceed the target's {limit} positions",
                hint="shorten the prompt, or lower --max-new-tokens",
            )
        return tokens

    def _ids(self, prompt: Prompt) -> Any:
        if isinstance(prompt.content, str):
            return self._tokenizer(prompt.content)["input_ids"]
        if not isinstance(prompt.content[0], dict):
            return prompt.content
        try:
            chat = list(prompt.content)
            return self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        except Exception as error:  # a template is a program of the model's authors: it may raise anything
            reason = str(error).partition("\n")[0]
            raise prompt.error(f"the chat template fails: {reason}", hint='give plain text as "prompt"') from error


class CausalModel:
    """A model with its weights."""

    def __init__(self, model: Any, *, name: str) -> None:
        self.name = name
        self._model = model
        self._torch = require("torch", extra="hf")

    @classmethod
    def load(cls, spec: str, *, device: str, dtype: str) -> CausalModel:
        """Load a directory, .gguf file or hub id; `auto` is CUDA where there is one, and the checkpoint's own dtype
        (float32 on a CPU, where half precision is slow).

        Raises:
            InputError: no such model, it cannot be loaded, or no such device.
        """
        torch, transformers = require("torch", extra="hf"), require("transformers", extra="hf")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        wanted = ("float32" if device == "cpu" else "auto") if dtype == "auto" else dtype
        files = ModelFiles.locate(spec)
        model = files.load(transformers.AutoModelForCausalLM.from_pretrained, dtype=wanted)
        try:
            model = model.to(device).eval()
        except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"device {device}: {reason}", hint="give --device cpu, or cuda where there is one"
            ) from error
        # Continuations come from the model's own distribution: a checkpoint may ask for top-p or a repetition penalty.
        ends = model.generation_config.eos_token_id
        first = ends[0] if isinstance(ends, list) else ends
        model.generation_config = transformers.GenerationConfig(eos_token_id=ends, pad_token_id=first or 0)
        return cls(model, name=spec)

    @property
    def vocabulary_size(self) -> int:
        """V, the width of its distributions."""
        return int(self._model.config.vocab_size)

    @property
    def hidden_size(self) -> int:
        """The width of its hidden states."""
        return int(self._model.config.hidden_size)

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return int(self._model.config.num_hidden_layers)

    @property
    def device(self) -> Any:
        """Where it runs, as torch names it."""
        return self._model.device

    @property
    def dtype(self) -> Any:
        """What it computes in, as torch names it."""
        return self._model.dtype

    def continuation(self, tokens: IntArray, *, max_new_tokens: int, temperature: float, seed: int) -> IntArray:
        """`[L]` prompt to its `[T]` continuation, greedy or sampled; the token that ends it is its last one."""
        sampling = {"top_k": 0, "top_p": 1.0, "temperature": temperature} if temperature > 0 else {}
        cuda = [self.device] if self.device.type == "cuda" else []
        ids = self._ids(tokens)
        with self._torch.random.fork_rng(devices=cuda), self._torch.inference_mode():
            self._torch.manual_seed(seed)
            output = self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=temperature > 0,
                **sampling,
            )
        return np.asarray(output[0, len(tokens) :].cpu().numpy(), dtype=np.int64)

    def probabilities(self, tokens: IntArray, *, first: int, temperature: float) -> Probabilities:
        """`[L]` tokens to `[L - first, V]`: how likely every token was in the place of `tokens[first:]`."""
        with self._torch.inference_mode():
            output = self._model(self._ids(tokens[:-1]), use_cache=False, logits_to_keep=len(tokens) - first)
            return as_probabilities(output.logits[0], temperature)

    def last_hidden(self, tokens: IntArray) -> Any:
        """`[L, hidden]` torch tensor that the output head reads: the last layer's output behind the final norm."""
        with self._torch.inference_mode():
            return self._model.base_model(self._ids(tokens), use_cache=False).last_hidden_state[0]

    def truncated(self, layers: int) -> CausalModel:
        """This model with its first layers only, then its final norm and output head; weights are shared.

        Raises:
            InputError: not fewer layers than it has, or an architecture whose layers are not found.
        """
        check_exit(layers, self.layers)
        base = self._model.base_model
        name = next((name for name in _LAYERS if hasattr(base, name)), None)
        if name is None or base is self._model:
            kind = type(self._model).__name__
            raise InputError(f"early exit from a {kind}: its layers are not found", hint="draft with another drafter")
        shallow = _with_modules(base, {name: getattr(base, name)[:layers]})
        holder = next(key for key, module in self._model.named_children() if module is base)
        return CausalModel(_with_modules(self._model, {holder: shallow}), name=f"{self.name}:{layers}")

    def _ids(self, tokens: IntArray) -> Any:
        return self._torch.as_tensor(tokens, device=self.device)[None]


def as_probabilities(logits: Any, temperature: float) -> Probabilities:
    """`[n, V]` torch logits to probabilities; temperature 0, which has none, gives those of temperature 1."""
    scaled = logits.float() / (temperature or 1.0)
    return np.asarray(scaled.softmax(-1).cpu().numpy(), dtype=np.float32)


def check_exit(layers: int, of: int) -> None:
    """An early exit must leave layers out.

    Raises:
        InputError: not from 1 to one less than the target has.
    """
    if not 1 <= layers < of:
        raise InputError(f"early exit after {layers} of {of} layers", hint="exit before the last layer")


def check_same_vocabulary(target: Encoder, draft: Encoder) -> None:
    """A drafter's token numbers must be the target's.

    Raises:
        FileFormatError: the first token that differs.
    """
    ours, theirs = target.vocabulary, draft.vocabulary
    if ours == theirs:
        return
    token = min(ours.items() ^ theirs.items(), key=lambda item: (item[1], item[0]))[0]
    numbers = f"token {token!r} is {ours.get(token, 'missing')} in the target, {theirs.get(token, 'missing')} in it"
    raise FileFormatError(
        f"{draft.name}: another vocabulary ({len(theirs)} tokens) than the target's ({len(ours)}): {numbers}",
        hint="draft with a model of the same family, or with ngram or early-exit:K",
    )


def _with_modules(module: Any, replaced: dict[str, Any]) -> Any:
    clone = copy.copy(module)
    clone._modules = {**module._modules, **replaced}
    return clone
