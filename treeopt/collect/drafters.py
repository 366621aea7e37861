"""Drafters: what each would guess along the text that the target wrote."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from treeopt.arrays import IntArray
from treeopt.collect.guesses import DenseGuesses, Guesses
from treeopt.collect.medusa import MedusaDrafter
from treeopt.collect.models import CausalModel, Encoder, Probabilities, check_exit, check_same_vocabulary
from treeopt.collect.ngram import NgramDrafter
from treeopt.collect.settings import Draft, Settings


class Drafter(Protocol):
    """Something that guesses the next tokens."""

    def guesses(self, tokens: IntArray, *, first: int, depth: int) -> tuple[Guesses, ...]:
        """What it would have guessed for a text, given the text before each token.

        The text's draft starts have their roots at `tokens[first - 1]` and after it. Element d - 1 of the result holds
        the guesses at depth d, one for each root whose d-th token after it is there: for `tokens[first + d - 1:]`.
        A drafter whose guess depends on the tokens before it alone, and not on where in a draft it stands, gives one
        element for all depths.
        """


class ModelDrafter:
    """A language model of its own, or the target's first layers.

    Its state along a draft is its KV cache, which is a function of the tokens: the guess is the same at every depth.
    """

    def __init__(self, model: CausalModel, *, vocabulary_size: int, temperature: float) -> None:
        self._model = model
        self._vocabulary_size = vocabulary_size
        self._temperature = temperature

    def guesses(self, tokens: IntArray, *, first: int, depth: int) -> tuple[Guesses, ...]:
        """See `Drafter`."""
        found = self._model.probabilities(tokens, first=first, temperature=self._temperature)
        return (DenseGuesses(_fitted(found, self._vocabulary_size)),)


def check_pair(draft: Draft, target: Encoder) -> None:
    """Refuse what the small files of drafter and target already rule out, before weights are loaded.

    Raises:
        InputError: it is not there, has another vocabulary than the target, or exits where the target has no layer.
    """
    if draft.kind == "model":
        check_same_vocabulary(target, Encoder.load(draft.argument))
    if draft.kind == "early-exit" and target.layers is not None:
        check_exit(draft.number, target.layers)


def load_drafter(settings: Settings, target: CausalModel) -> Drafter:
    """The drafter that the settings name.

    Raises:
        InputError: it cannot be loaded, or does not go with the target.
    """
    draft, V = settings.drafter, target.vocabulary_size
    if draft.kind == "ngram":
        return NgramDrafter(longest=draft.number, vocabulary_size=V)
    if draft.kind == "medusa":
        return MedusaDrafter.load(draft.argument, target, temperature=settings.temperature, depth=settings.depth)
    if draft.kind == "early-exit":
        model = target.truncated(draft.number)
    else:
        model = CausalModel.load(draft.argument, device=settings.device, dtype=settings.dtype)
    return ModelDrafter(model, vocabulary_size=V, temperature=settings.temperature)


def _fitted(probabilities: Probabilities, V: int) -> Probabilities:
    """Families pad their embeddings to different widths; what is beyond the shared vocabulary is no token."""
    have = probabilities.shape[1]
    return probabilities[:, :V] if have >= V else np.pad(probabilities, ((0, 0), (0, V - have)))
