"""Prompt lookup as engines do it: looked up once per step, and copied."""

from __future__ import annotations

from collections.abc import Sequence

from treeopt.acceptance.prompt_lookup import PromptLookup, copied_from
from treeopt.acceptance.sglang_lookup import Paths, drafts_along
from treeopt.arrays import IntArray
from treeopt.decode.drafting import DraftLevel
from treeopt.decode.guesses import Listed, ListedGuesses

_NOTHING_LISTED = Listed((), ())


class CopyDrafter:
    """One draft per step, by the rule of an engine: nothing where no run matches.

    vLLM, Transformers and llama.cpp copy a chain. SGLang's drafts may branch where shorter matches were followed by
    something else; the first that it finds comes first.
    """

    def __init__(self, lookup: PromptLookup, *, vocabulary_size: int) -> None:
        self._lookup = lookup
        self._vocabulary_size = vocabulary_size
        self._first: dict[int, list[int]] = {}  # by row: the text of its first draft start

    def guesses(self, level: DraftLevel) -> ListedGuesses:
        """See `Drafter`: a node on the draft is followed by what is drafted next, any other by nothing."""
        drafts: dict[int, Paths] = {}
        places = []
        for i in range(len(level)):
            b = int(level.request[i])
            if b not in drafts:
                text = list(level.texts[b])
                first = self._first_of(int(level.rows[b]), text)
                drafts[b] = self._drafts(text, first=first, length=level.trees.trees[b].depth)[-1]
            places.append(_after(drafts[b], tuple(level.path(i))))
        return self._of(places)

    def along(self, tokens: IntArray, *, first: int, depth: int) -> tuple[ListedGuesses, ...]:
        """See `Drafter`: the d-th token of each root's chain, of a draft that branches behind the text's own tokens."""
        text = tokens.tolist()
        drafts = self._drafts(text, first=first, length=depth)
        branches = self._lookup.rule == "sglang"

        def listed(end: int, d: int) -> Listed:
            drafted = drafts[end - first]
            if branches:
                return _after(drafted, tuple(text[end : end + d]))
            return Listed((drafted[d][-1],), (1.0,)) if d < len(drafted) else _NOTHING_LISTED

        return tuple(self._of([listed(end, d) for end in range(first, len(text) - d)]) for d in range(depth))

    def _first_of(self, row: int, text: list[int]) -> int:
        """The length of a request's text at its first draft: SGLang remembers what was written since."""
        begun = self._first.get(row)
        if begun is None or text[: len(begun)] != begun:
            self._first[row] = text
        return len(self._first[row])

    def _drafts(self, text: list[int], *, first: int, length: int) -> list[Paths]:
        """The paths drafted behind the first `first`, `first` + 1, ... tokens."""
        if self._lookup.rule == "sglang":
            return drafts_along(text, first=first, depth=self._lookup.longest, nodes=length)
        copied = copied_from(text, self._lookup, length=length)[first - 1 :]
        return [tuple(tuple(text[places.start : end + 1]) for end in places) for places in copied]

    def _of(self, places: Sequence[Listed]) -> ListedGuesses:
        return ListedGuesses(places, vocabulary_size=self._vocabulary_size)


def _after(drafted: Paths, path: tuple[int, ...]) -> Listed:
    """What a draft has behind a path, in the order in which it was found; no guess is said to be likelier."""
    tokens = tuple(own[-1] for own in drafted if own[:-1] == path)
    return Listed(tokens, (1.0 / len(tokens),) * len(tokens)) if tokens else _NOTHING_LISTED
