"""Drafters: a model, the target's own first layers, prompt lookup, another drafter under noise, fixed guesses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from treeopt.arrays import IntArray
from treeopt.decode.batch import NOTHING, TreeBatch
from treeopt.decode.cache import SlotCache
from treeopt.decode.drafting import Drafter, DraftLevel
from treeopt.decode.guesses import Guesses, Listed, ListedGuesses, LogitGuesses
from treeopt.decode.models import CausalModel
from treeopt.decode.step import nodes_step, text_step
from treeopt.extras import require


class ModelDrafter:
    """A model of its own, or the target's first layers, with a cache that is kept from step to step.

    At depth 0 it reads what was committed since it last drafted, the root included; at each further depth it runs the
    nodes that have children. What it wrote for nodes is dropped: the accepted ones are read again as text, in the pass
    that reads the root anyway.
    """

    def __init__(self, model: CausalModel, *, vocabulary_size: int, temperature: float = 0.0) -> None:
        self._model = model
        self._vocabulary_size = vocabulary_size
        self._temperature = temperature
        self._cache = SlotCache()
        self._read: dict[int, list[int]] = {}  # by row: the text whose keys and values are in the cache
        self._slots: dict[int, list[int]] = {}  # by row: the slot of each node of the tree at work

    def guesses(self, level: DraftLevel) -> LogitGuesses:
        """See `Drafter`."""
        return self._of(self._read_texts(level) if level.depth == 0 else self._run_nodes(level))

    def along(self, tokens: IntArray, *, first: int, depth: int) -> tuple[LogitGuesses, ...]:
        """See `Drafter`: its state along a draft is its KV cache, which the tokens alone decide."""
        return (self._of(self._model.reference(tokens[:-1], first=first - 1)),)

    def _of(self, logits: Any) -> LogitGuesses:
        return LogitGuesses(logits, vocabulary_size=self._vocabulary_size, temperature=self._temperature)

    def _read_texts(self, level: DraftLevel) -> Any:
        known, new = [], []
        for b in level.request:
            text, row = list(level.texts[b]), int(level.rows[b])
            kept = min(_common_length(text, self._read.get(row, [])), len(text) - 1)
            known.append(kept)
            new.append(text[kept:])
            self._read[row] = text
            self._slots[row] = [NOTHING] * level.trees.nodes
            self._slots[row][0] = len(text) - 1
        step = text_step(new, lengths=np.array(known), rows=level.rows[level.request])
        return self._model.forward(step, self._cache, at=step.counts - 1)

    def _run_nodes(self, level: DraftLevel) -> Any:
        requests = np.unique(level.request)
        nodes = [level.node[level.request == b].tolist() for b in requests]
        rows = level.rows[requests]
        slots = [self._slots[int(row)] for row in rows]
        lengths = np.array([len(level.texts[b]) for b in requests])
        starts = np.array([max(s) + 1 for s in slots])
        trees = TreeBatch.of([level.trees.trees[b] for b in requests])
        step = nodes_step(trees, level.tokens[requests], nodes, slots, lengths=lengths, starts=starts, rows=rows)
        logits = self._model.forward(step, self._cache)
        for run, start, of_node in zip(nodes, starts.tolist(), slots, strict=True):
            for i, node in enumerate(run):
                of_node[node] = start + i
        torch = require("torch", extra="gpu")
        return torch.cat([logits[a, : len(run)] for a, run in enumerate(nodes)])


class LookupDrafter:
    """Prompt lookup: the longest run of at most N tokens that stood before, anew for every node of a tree.

    What followed it is ranked by how often it did, then by how recently; the probability is the share. An engine that
    looks up once per step and copies the whole run (vLLM, Transformers) guesses the same top chain only as long as
    there is one match.
    """

    def __init__(self, *, longest: int = 3, vocabulary_size: int) -> None:
        self._longest = longest
        self._vocabulary_size = vocabulary_size

    def guesses(self, level: DraftLevel) -> ListedGuesses:
        """See `Drafter`."""
        # The last token of each text is the one to guess.
        return self._of([self._listed([*level.text(i), 0], len(level.text(i)))[0] for i in range(len(level))])

    def along(self, tokens: IntArray, *, first: int, depth: int) -> tuple[ListedGuesses, ...]:
        """See `Drafter`: the guess depends on the tokens before it alone."""
        return (self._of(self._listed(tokens.tolist(), first)),)

    def _of(self, places: list[Listed]) -> ListedGuesses:
        return ListedGuesses(places, vocabulary_size=self._vocabulary_size)

    def _listed(self, text: list[int], first: int) -> list[Listed]:
        followers: _Followers = defaultdict(dict)
        places = []
        for end, token in enumerate(text):
            suffixes = [tuple(text[end - n : end]) for n in range(min(self._longest, end), 0, -1)]
            if end >= first:
                places.append(_ranked(followers, suffixes))
            for suffix in suffixes:
                count, _ = followers[suffix].get(token, (0, 0))
                followers[suffix][token] = (count + 1, end)
        return places


_Followers = defaultdict[tuple[int, ...], dict[int, tuple[int, int]]]  # run -> next token -> (count, last place)


def _ranked(followers: _Followers, suffixes: list[tuple[int, ...]]) -> Listed:
    found = next((followers[suffix] for suffix in suffixes if suffix in followers), {})
    order = sorted(found, key=lambda token: found[token], reverse=True)
    total = sum(count for count, _ in found.values())
    return Listed(tokens=tuple(order), probabilities=tuple(found[token][0] / total for token in order))


class NoisyDrafter:
    """Another drafter whose probabilities are bent by noise, which is a function of the text before the guess."""

    def __init__(self, drafter: Drafter, *, scale: float, seed: int = 0) -> None:
        self._drafter = drafter
        self._scale = scale
        self._seed = seed

    def guesses(self, level: DraftLevel) -> ListedGuesses:
        """See `Drafter`."""
        return self._bent(self._drafter.guesses(level), [level.text(i) for i in range(len(level))])

    def along(self, tokens: IntArray, *, first: int, depth: int) -> tuple[ListedGuesses, ...]:
        """See `Drafter`."""
        text, found = tokens.tolist(), self._drafter.along(tokens, first=first, depth=depth)
        return tuple(
            self._bent(guesses, [text[:end] for end in range(first + d, len(text))]) for d, guesses in enumerate(found)
        )

    def _bent(self, guesses: Guesses, texts: Sequence[Sequence[int]]) -> ListedGuesses:
        law = guesses.distribution()
        for row, text in zip(law, texts, strict=True):
            rng = np.random.default_rng([self._seed, *np.abs(text)])
            row *= np.exp(self._scale * rng.standard_normal(len(row)))
        law /= law.sum(axis=1, keepdims=True)
        return ListedGuesses([Listed.of(row) for row in law], vocabulary_size=law.shape[1])


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.array(a[:n]) != np.array(b[:n]))
    return int(differ[0]) if len(differ) else n
