"""Heads that guess one token after the other from their own hidden states: EAGLE, EAGLE-3, MTP, P-EAGLE.

A head reads pairs. Pair i is the embedding of token i + 1 beside the target's state at token i, and what it puts out
guesses token i + 2. In a draft whose root is token r, the pairs up to r - 1 have the target's states; from there on the
target has seen nothing, so each further pair holds the head's own last output in the state's place. Here the further
tokens are those of the text (the rank of a token at depth d is recorded given that the path to it is right), so the
drafts of all roots run at once: in pass d every root has one row, which sees the target's pairs up to its root, its own
rows of earlier passes, and itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from treeopt.arrays import IntArray
from treeopt.collect.heads.layers import GrowingCache
from treeopt.decode.guesses import LogitGuesses
from treeopt.decode.hf import HuggingFaceModel
from treeopt.extras import require


class HeadPass(NamedTuple):
    """What a pass over M pairs gives: `[M, hidden]` states for the next one, and what the output head reads."""

    states: Any
    hidden: Any


class ChainHead(Protocol):
    """A head's own forward."""

    tokens: IntArray | None
    """`[V_d]` the target's numbers of its tokens; None: the same."""
    mask: int | None
    """The token that further pairs hold in place of the text's; None: the text's."""

    def states(self, tokens: IntArray) -> Any:
        """`[L]` text to the `[L, hidden]` states that it reads beside the tokens that follow."""

    def run(self, tokens: IntArray, states: Any, positions: IntArray, mask: Any, cache: GrowingCache) -> HeadPass:
        """One pass over M pairs.

        Args:
            tokens: `[M]`, whose embeddings it reads.
            states: `[M, hidden]`.
            positions: `[M]` of the states' tokens.
            mask: `[M, S]` torch, bool: what each pair sees of the S rows so far, its own included.
        """

    def head(self, hidden: Any) -> Any:
        """`[n, hidden]` to `[n, V_d]` logits."""


class ChainDrafter:
    """A chain head beside its target."""

    def __init__(self, head: ChainHead, target: HuggingFaceModel, *, temperature: float) -> None:
        self._head = head
        self._target = target
        self._temperature = temperature

    def along(self, tokens: IntArray, *, first: int, depth: int) -> Iterator[LogitGuesses]:
        """See `TextDrafter`: one element per depth."""
        torch = require("torch", extra="hf")
        pairs, starts = len(tokens) - 2, len(tokens) - first
        roots = np.arange(starts) + first - 2  # the last pair of the target's before each root
        device, cache = self._target.device, GrowingCache()
        with torch.no_grad():
            states, seen = self._head.states(tokens[:-2]), torch.ones(pairs, pairs, device=device).tril().bool()
            states, hidden = self._head.run(tokens[1:-1], states, np.arange(pairs), seen, cache)
            states, hidden, seen = states[first - 2 :], hidden[first - 2 :], seen[first - 2 :]
        yield self._guesses(hidden)
        padded = np.pad(tokens, (0, depth))  # roots near the end have no such tokens: their rows are not asked
        for d in range(2, depth + 1):
            with torch.no_grad():
                seen = torch.cat([seen, torch.eye(starts, device=device).bool()], dim=1)
                further = padded[roots + d] if self._head.mask is None else np.full(starts, self._head.mask)
                states, hidden = self._head.run(further, states, roots + d - 1, seen, cache)
            yield self._guesses(hidden[: max(starts - d + 1, 0)])

    def _guesses(self, hidden: Any) -> LogitGuesses:
        torch = require("torch", extra="hf")
        with torch.no_grad():
            logits = self._head.head(hidden)
        return LogitGuesses(
            logits,
            vocabulary_size=self._target.vocabulary_size,
            temperature=self._temperature,
            tokens=self._head.tokens,
        )
