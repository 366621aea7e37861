"""Drafters: a model, the target's own first layers, prompt lookup, another drafter under noise, fixed guesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treeopt.arrays import FloatArray, IntArray
from treeopt.collect.ngram import NgramDrafter
from treeopt.decode.batch import NOTHING, TreeBatch
from treeopt.decode.cache import SlotCache
from treeopt.decode.drafting import Drafter, Level
from treeopt.decode.models import Model, distributions
from treeopt.decode.step import nodes_step, text_step
from treeopt.extras import require


class LogitGuesses:
    """Guesses from torch logits `[n, V']` at a temperature, cut or padded to the target's V tokens."""

    def __init__(self, logits: Any, *, vocabulary_size: int, temperature: float) -> None:
        self._logits = logits[:, :vocabulary_size]
        self._vocabulary_size = vocabulary_size
        self._temperature = temperature or 1.0

    def top(self, k: int) -> IntArray:
        """See `Guesses`."""
        kept = min(k, self._logits.shape[1])
        found = np.asarray(self._logits.topk(kept, dim=1).indices.cpu().numpy(), dtype=np.int64)
        return np.pad(found, ((0, 0), (0, k - kept)), constant_values=NOTHING)

    def distribution(self) -> FloatArray:
        """See `Guesses`."""
        law = distributions(self._logits, self._temperature)
        return np.pad(law, ((0, 0), (0, self._vocabulary_size - law.shape[1])))


class ListGuesses:
    """Guesses from a distribution `[n, V]`; equal ones go by token number."""

    def __init__(self, law: FloatArray) -> None:
        self._law = law

    def top(self, k: int) -> IntArray:
        """See `Guesses`."""
        found = np.full((len(self._law), k), NOTHING)
        for best, row in zip(found, self._law, strict=True):
            possible = np.flatnonzero(row)  # few, where a drafter looks guesses up
            order = possible[np.argsort(-row[possible], kind="stable")][:k]
            best[: len(order)] = order
        return found

    def distribution(self) -> FloatArray:
        """See `Guesses`."""
        return self._law


class ModelDrafter:
    """A model of its own, or the target's first layers, with a cache that is kept from step to step.

    At depth 0 it reads what was committed since it last drafted, the root included; at each further depth it runs the
    nodes that have children. What it wrote for nodes is dropped: the accepted ones are read again as text, in the pass
    that reads the root anyway.
    """

    def __init__(self, model: Model, *, vocabulary_size: int, temperature: float = 0.0) -> None:
        self._model = model
        self._vocabulary_size = vocabulary_size
        self._temperature = temperature
        self._cache = SlotCache()
        self._read: dict[int, list[int]] = {}  # by row: the text whose keys and values are in the cache
        self._slots: dict[int, list[int]] = {}  # by row: the slot of each node of the tree at work

    def guesses(self, level: Level) -> LogitGuesses:
        """See `Drafter`."""
        logits = self._read_texts(level) if level.depth == 0 else self._run_nodes(level)
        return LogitGuesses(logits, vocabulary_size=self._vocabulary_size, temperature=self._temperature)

    def _read_texts(self, level: Level) -> Any:
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

    def _run_nodes(self, level: Level) -> Any:
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
    """Prompt lookup, as `treeopt.collect` ranks it: what followed the last few tokens where they stood before."""

    def __init__(self, *, longest: int = 3, vocabulary_size: int) -> None:
        self._lookup = NgramDrafter(longest=longest, vocabulary_size=vocabulary_size)

    def guesses(self, level: Level) -> ListGuesses:
        """See `Drafter`."""
        rows = []
        for i in range(len(level)):
            text = np.array([*level.text(i), 0])  # the last token is the one to guess
            (found,) = self._lookup.guesses(text, first=len(text) - 1, depth=1)
            rows.append(found.distribution(0))
        return ListGuesses(np.array(rows))


class NoisyDrafter:
    """Another drafter whose probabilities are bent by noise, which is a function of the text before the guess."""

    def __init__(self, drafter: Drafter, *, scale: float, seed: int = 0) -> None:
        self._drafter = drafter
        self._scale = scale
        self._seed = seed

    def guesses(self, level: Level) -> ListGuesses:
        """See `Drafter`."""
        law = self._drafter.guesses(level).distribution()
        for i, row in enumerate(law):
            rng = np.random.default_rng([self._seed, *np.abs(level.text(i))])
            row *= np.exp(self._scale * rng.standard_normal(len(row)))
        return ListGuesses(law / law.sum(axis=1, keepdims=True))


class FixedDrafter:
    """A drafter that guesses the same tokens everywhere, best first."""

    def __init__(self, tokens: Sequence[int], *, vocabulary_size: int) -> None:
        self._law = np.zeros(vocabulary_size)
        self._law[list(tokens)] = 2.0 ** -np.arange(1, len(tokens) + 1)

    def guesses(self, level: Level) -> ListGuesses:
        """See `Drafter`."""
        return ListGuesses(np.tile(self._law / self._law.sum(), (len(level), 1)))


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.array(a[:n]) != np.array(b[:n]))
    return int(differ[0]) if len(differ) else n
