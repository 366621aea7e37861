"""A drafter without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treeopt.arrays import IntArray
from treeopt.decode.drafting import DraftLevel
from treeopt.decode.guesses import Listed, ListedGuesses


class FixedDrafter:
    """A drafter that guesses the same tokens everywhere, best first."""

    def __init__(self, tokens: Sequence[int], *, vocabulary_size: int) -> None:
        law = np.array([0.5**place for place in range(1, len(tokens) + 1)])
        self._listed = Listed(tuple(tokens), tuple((law / law.sum()).tolist()))
        self._vocabulary_size = vocabulary_size

    def guesses(self, level: DraftLevel) -> ListedGuesses:
        """See `Drafter`."""
        return self._times(len(level))

    def along(self, tokens: IntArray, *, first: int, depth: int) -> tuple[ListedGuesses, ...]:
        """See `Drafter`."""
        return (self._times(len(tokens) - first),)

    def _times(self, n: int) -> ListedGuesses:
        return ListedGuesses([self._listed] * n, vocabulary_size=self._vocabulary_size)
