"""What a drafter guesses for a run of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from treeopt.arrays import FloatArray, IntArray
from treeopt.collect.models import Probabilities

UNLISTED = -1


class Guesses(Protocol):
    """A drafter's guesses in n places."""

    def ranks(self, tokens: IntArray) -> IntArray:
        """`[n]` how many guesses the drafter places before `tokens [n]`; -1 where it does not list the token."""

    def best(self, k: int) -> Probabilities:
        """`[n, k]` its probabilities of its k best guesses, best first; 0 where it has fewer."""

    def distribution(self, place: int) -> FloatArray:
        """`[V]` its probabilities in one place."""


class DenseGuesses:
    """A distribution over the whole vocabulary in every place; among equals the lower token number comes first."""

    def __init__(self, probabilities: Probabilities) -> None:
        self._probabilities = probabilities  # [n, V]

    def ranks(self, tokens: IntArray) -> IntArray:
        """See `Guesses`."""
        its = np.take_along_axis(self._probabilities, tokens[:, None], axis=1)
        before = self._probabilities == its
        before &= np.arange(self._probabilities.shape[1]) < tokens[:, None]
        before |= self._probabilities > its
        return np.asarray(np.count_nonzero(before, axis=1), dtype=np.int64)

    def best(self, k: int) -> Probabilities:
        """See `Guesses`."""
        n, V = self._probabilities.shape
        found = np.zeros((n, k), dtype=np.float32)
        kept = min(k, V)
        largest = np.partition(self._probabilities, V - kept, axis=1)[:, V - kept :]
        found[:, :kept] = np.sort(largest, axis=1)[:, ::-1]
        return found

    def distribution(self, place: int) -> FloatArray:
        """See `Guesses`."""
        return np.asarray(self._probabilities[place], dtype=np.float64)


class Listed(NamedTuple):
    """The few tokens that a drafter lists in one place, best first."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]


class ListedGuesses:
    """A short list in every place."""

    def __init__(self, places: Sequence[Listed], *, vocabulary_size: int) -> None:
        self._places = places
        self._vocabulary_size = vocabulary_size

    def ranks(self, tokens: IntArray) -> IntArray:
        """See `Guesses`."""
        pairs = zip(self._places, tokens.tolist(), strict=True)
        found = [place.tokens.index(t) if t in place.tokens else UNLISTED for place, t in pairs]
        return np.array(found, dtype=np.int64)

    def best(self, k: int) -> Probabilities:
        """See `Guesses`."""
        found = np.zeros((len(self._places), k), dtype=np.float32)
        for row, place in zip(found, self._places, strict=True):
            row[: len(place.probabilities)] = place.probabilities[:k]
        return found

    def distribution(self, place: int) -> FloatArray:
        """See `Guesses`."""
        full = np.zeros(self._vocabulary_size)
        full[list(self._places[place].tokens)] = self._places[place].probabilities
        return full
