"""What a drafter guesses in n places: a law over the whole vocabulary, or a short list."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray, IntArray
from treeopt.decode.batch import NOTHING
from treeopt.decode.models import distributions

Probabilities = npt.NDArray[np.float32]
EVERYWHERE = slice(None)


class Guesses(Protocol):
    """A drafter's guesses in n places."""

    def top(self, k: int) -> IntArray:
        """`[n, k]` its k best guesses, best first; -1 where it has fewer."""

    def best(self, k: int) -> Probabilities:
        """`[n, k]` its probabilities of its k best guesses, best first; 0 where it has fewer."""

    def ranks(self, tokens: IntArray) -> IntArray:
        """`[n]` how many guesses the drafter places before `tokens [n]`; -1 where it does not list the token."""

    def distribution(self, places: slice = EVERYWHERE) -> FloatArray:
        """`[places, V]` its probabilities; a row of zeros where it has no guess."""


class LogitGuesses:
    """Guesses from torch logits `[n, V']` at a temperature, cut or padded to the target's V tokens.

    Among equally likely tokens the lower number comes first. Temperature 0, which has no law, gives that of 1.

    Args:
        tokens: `[V']` the target's numbers of the columns, for a drafter of fewer tokens; None: the same.
    """

    def __init__(
        self, logits: Any, *, vocabulary_size: int, temperature: float, tokens: IntArray | None = None
    ) -> None:
        self._logits = logits[:, :vocabulary_size]
        self._vocabulary_size = vocabulary_size
        self._temperature = temperature or 1.0
        self._tokens = tokens

    def top(self, k: int) -> IntArray:
        """See `Guesses`."""
        kept = min(k, self._logits.shape[1])
        found = np.asarray(self._logits.topk(kept, dim=1).indices.cpu().numpy(), dtype=np.int64)
        found = found if self._tokens is None else self._tokens[found]
        return np.pad(found, ((0, 0), (0, k - kept)), constant_values=NOTHING)

    def best(self, k: int) -> Probabilities:
        """See `Guesses`."""
        n, V = self._law.shape
        found = np.zeros((n, k), dtype=np.float32)
        kept = min(k, V)
        largest = np.partition(self._law, V - kept, axis=1)[:, V - kept :]
        found[:, :kept] = np.sort(largest, axis=1)[:, ::-1]
        return found

    def ranks(self, tokens: IntArray) -> IntArray:
        """See `Guesses`."""
        its = np.take_along_axis(self._law, tokens[:, None], axis=1)
        before = self._law == its
        before &= np.arange(self._law.shape[1]) < tokens[:, None]
        before |= self._law > its
        found = np.asarray(np.count_nonzero(before, axis=1), dtype=np.int64)
        return found if self._tokens is None else np.where(np.isin(tokens, self._tokens), found, NOTHING)

    def distribution(self, places: slice = EVERYWHERE) -> FloatArray:
        """See `Guesses`."""
        return self._full(distributions(self._logits[places], self._temperature))

    @cached_property
    def _law(self) -> Probabilities:
        return self._full(as_probabilities(self._logits, self._temperature))

    def _full(self, law: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """`[n, V]`: families pad their embeddings to different widths; what is beyond the target's is no token."""
        full = np.zeros((len(law), self._vocabulary_size), dtype=law.dtype)
        full[:, slice(law.shape[1]) if self._tokens is None else self._tokens] = law
        return full


class Listed(NamedTuple):
    """The few tokens that a drafter lists in one place, best first."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def of(cls, law: FloatArray) -> Listed:
        """From a distribution `[V]`: what is possible, equal ones by token number."""
        possible = np.flatnonzero(law)
        order = possible[np.argsort(-law[possible], kind="stable")]
        return cls(tuple(order.tolist()), tuple(law[order].tolist()))


class ListedGuesses:
    """A short list in every place."""

    def __init__(self, places: Sequence[Listed], *, vocabulary_size: int) -> None:
        self._places = places
        self._vocabulary_size = vocabulary_size

    def top(self, k: int) -> IntArray:
        """See `Guesses`."""
        found = np.full((len(self._places), k), NOTHING)
        for row, place in zip(found, self._places, strict=True):
            row[: len(place.tokens)] = place.tokens[:k]
        return found

    def best(self, k: int) -> Probabilities:
        """See `Guesses`."""
        found = np.zeros((len(self._places), k), dtype=np.float32)
        for row, place in zip(found, self._places, strict=True):
            row[: len(place.probabilities)] = place.probabilities[:k]
        return found

    def ranks(self, tokens: IntArray) -> IntArray:
        """See `Guesses`."""
        pairs = zip(self._places, tokens.tolist(), strict=True)
        found = [place.tokens.index(token) if token in place.tokens else NOTHING for place, token in pairs]
        return np.array(found, dtype=np.int64)

    def distribution(self, places: slice = EVERYWHERE) -> FloatArray:
        """See `Guesses`."""
        chosen = self._places[places]
        full = np.zeros((len(chosen), self._vocabulary_size))
        for row, place in zip(full, chosen, strict=True):
            row[list(place.tokens)] = place.probabilities
        return full


def as_probabilities(logits: Any, temperature: float) -> Probabilities:
    """`[n, V]` torch logits to float32 probabilities; temperature 0, which has none, gives those of temperature 1."""
    scaled = logits.float() / (temperature or 1.0)
    return np.asarray(scaled.softmax(-1).cpu().numpy(), dtype=np.float32)
