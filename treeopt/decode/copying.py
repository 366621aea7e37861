"""Prompt lookup as vLLM and Transformers do it: looked up once per step, and copied."""

from __future__ import annotations

from treeopt.acceptance.prompt_lookup import PromptLookup, copied_from
from treeopt.arrays import IntArray
from treeopt.decode.drafting import DraftLevel
from treeopt.decode.guesses import Listed, ListedGuesses

_NOTHING_LISTED = Listed((), ())


class CopyDrafter:
    """One chain per step: what followed the earliest match of the longest run; nothing where no run matches."""

    def __init__(self, lookup: PromptLookup, *, vocabulary_size: int) -> None:
        self._lookup = lookup
        self._vocabulary_size = vocabulary_size

    def guesses(self, level: DraftLevel) -> ListedGuesses:
        """See `Drafter`: a node on the copied chain is followed by its next token, any other by nothing."""
        return self._of(
            [self._after(list(level.texts[int(level.request[i])]), level.path(i)) for i in range(len(level))]
        )

    def along(self, tokens: IntArray, *, first: int, depth: int) -> tuple[ListedGuesses, ...]:
        """See `Drafter`: at depth d the d-th copied token of each root."""
        text = tokens.tolist()
        places = copied_from(text, self._lookup)
        return tuple(
            self._of([_copied(text[:end], places[end - 1], d) for end in range(first, len(text) - d)])
            for d in range(depth)
        )

    def _after(self, text: list[int], path: list[int]) -> Listed:
        place = copied_from(text, self._lookup)[-1]
        is_copied = place is not None and text[place : place + len(path)] == path
        return _copied(text, place, len(path)) if is_copied else _NOTHING_LISTED

    def _of(self, places: list[Listed]) -> ListedGuesses:
        return ListedGuesses(places, vocabulary_size=self._vocabulary_size)


def _copied(text: list[int], place: int | None, depth: int) -> Listed:
    """The token that is copied to a depth; nothing behind the end of the text."""
    if place is None or place + depth >= len(text):
        return _NOTHING_LISTED
    return Listed((text[place + depth],), (1.0,))
