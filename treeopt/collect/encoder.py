"""A model's tokenizer and limits, without its weights: what prompts are checked against."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from treeopt.arrays import IntArray
from treeopt.collect.prompts import Prompt
from treeopt.decode.checkpoint import Checkpoint
from treeopt.errors import FileFormatError
from treeopt.extras import require


class Encoder:
    """The tokenizer and the configuration of a checkpoint; files are read when they are needed."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.name = checkpoint.spec
        self._checkpoint = checkpoint

    @classmethod
    def load(cls, spec: str) -> Encoder:
        """The encoder of a directory, .gguf file or hub id."""
        return cls(Checkpoint.locate(spec))

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
        return self._checkpoint.load(require("transformers", extra="hf").AutoTokenizer.from_pretrained)

    @cached_property
    def _config(self) -> Any:
        return self._checkpoint.load(require("transformers", extra="hf").AutoConfig.from_pretrained)

    def encode(self, prompt: Prompt, *, max_new_tokens: int) -> IntArray:
        """`[L]` token ids of a prompt.

        Raises:
            FileFormatError: ids that the model does not have, no chat template, nothing left to continue, or no room
                for the continuation (with file and line).
        """
        ids = self._ids(prompt)
        limit = getattr(self._config, "max_position_embeddings", None)
        if not len(ids):
            raise prompt.error("the prompt has no tokens", hint="write some text")
        if max(ids) >= self._config.vocab_size:
            raise prompt.error(f"token {max(ids)} is not in {self.name}", hint="give ids of the target's tokenizer")
        if limit is not None and len(ids) + max_new_tokens > limit:
            raise prompt.error(
                f"{len(ids)} tokens and {max_new_tokens} new ones exceed the target's {limit} positions",
                hint="shorten the prompt, or lower --max-new-tokens",
            )
        return np.array(ids, dtype=np.int64)

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
