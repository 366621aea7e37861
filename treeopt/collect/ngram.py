"""Prompt lookup: guess what followed the last few tokens where they stood before."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from treeopt.arrays import IntArray
from treeopt.collect.guesses import Guesses, Listed, ListedGuesses


@dataclass(frozen=True, kw_only=True)
class NgramDrafter:
    """Looks up the longest run of at most N tokens that stood before, anew for every node of a tree.

    What followed it is ranked by how often it did, then by how recently; the probability is the share. An engine that
    looks up once per step and copies the whole run (vLLM, Transformers) guesses the same top chain only as long as
    there is one match.
    """

    longest: int
    vocabulary_size: int

    def guesses(self, tokens: IntArray, *, first: int, depth: int) -> tuple[Guesses, ...]:
        """See `Drafter`: the guess depends on the tokens before it alone."""
        text = tokens.tolist()
        followers: _Followers = defaultdict(dict)
        places = []
        for end, token in enumerate(text):
            suffixes = [tuple(text[end - n : end]) for n in range(min(self.longest, end), 0, -1)]
            if end >= first:
                places.append(_ranked(followers, suffixes))
            for suffix in suffixes:
                count, _ = followers[suffix].get(token, (0, 0))
                followers[suffix][token] = (count + 1, end)
        return (ListedGuesses(places, vocabulary_size=self.vocabulary_size),)


_Followers = defaultdict[tuple[int, ...], dict[int, tuple[int, int]]]  # run -> next token -> (count, last place)


def _ranked(followers: _Followers, suffixes: list[tuple[int, ...]]) -> Listed:
    found = next((followers[suffix] for suffix in suffixes if suffix in followers), {})
    order = sorted(found, key=lambda token: found[token], reverse=True)
    total = sum(count for count, _ in found.values())
    return Listed(tokens=tuple(order), probabilities=tuple(found[token][0] / total for token in order))
