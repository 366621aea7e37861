"""What drafting a whole block in one pass costs: a step in depth, not a slope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np

from treeopt.arrays import Axis, FloatArray, IntArray
from treeopt.cost.drafting import OwnLayers
from treeopt.cost.kernels.gemm import Gemm


class Entry(NamedTuple):
    """What runs over the tokens that a step verified, before the pass: states of the target come in.

    Attributes:
        tokens: of a request that run, rejected ones included: engines pad to the most that can be accepted.
        fusion: GEMMs that every GPU has a copy of.
        injection: GEMMs that share out: keys and values of all layers in one.
        streamed: values read and written per token between them: norms, rotary positions, the KV write.
    """

    tokens: int
    fusion: tuple[Gemm, ...] = ()
    injection: tuple[Gemm, ...] = ()
    streamed: tuple[int, ...] = ()


class Guessing(NamedTuple):
    """What makes guesses of the pass's output, beside the LM head over all guesses.

    Attributes:
        over_guesses: GEMMs that run once over the guesses of all requests.
        per_guess: GEMMs over one token per request, as often as tokens are guessed, one behind the other; with them the
            logits are read twice more per guess (base and correction).
        streamed: values moved per guess.
    """

    over_guesses: tuple[Gemm, ...] = ()
    per_guess: tuple[Gemm, ...] = ()
    streamed: int = 0


_ONLY_THE_HEAD: Final = Guessing()


@dataclass(frozen=True, kw_only=True)
class BlockPass(OwnLayers):
    """One pass per step over `rows` tokens of every request, of which `guesses` give a guess.

    What runs is the same whatever of the block is verified: the engine fixes the width of the pass when it starts (vLLM
    drafts B (1 + K_max) rows for any K of its schedule). Depth costs nothing up to `deepest` = `guesses`.

    Args:
        network: the layers and the LM head.
        rows: tokens of a request in the pass.
        guesses: tokens of a request that the LM head reads.
        entry: what runs over the verified tokens; also where nothing is drafted.
        beside: further GEMMs over the rows, each once.
        guessing: what makes guesses beside the LM head.
        cached_by_pass: the pass itself writes the keys of verified tokens, so a step that drafts nothing runs it over
            its own tokens (P-EAGLE, PARD); else the entry writes them (DFlash).
        own_vocab_bytes: memory of an embedding and LM head of its own.
    """

    rows: int
    guesses: int
    entry: Entry
    beside: tuple[Gemm, ...] = ()
    guessing: Guessing = _ONLY_THE_HEAD
    cached_by_pass: bool = False
    own_vocab_bytes: float = 0.0

    def time_s(self, batch: IntArray, depth: IntArray, widths: IntArray, context: IntArray) -> FloatArray:
        """`[...]` seconds: the same for every depth but 0, which drafts nothing."""
        batches, contexts = Axis.of(batch), Axis.of(context)
        drafted_s = self._table(batches.values, contexts.values)[batches.at, contexts.at]
        total: FloatArray = drafted_s * (np.asarray(depth) > 0)
        return total

    def passes(self, depth: IntArray) -> IntArray:
        """One, if anything is drafted."""
        return np.minimum(depth, 1)

    def idle_s(self, batch: IntArray, context: IntArray) -> FloatArray:
        """`[...]` the verified tokens' way into the cache."""
        requests = batch.astype(np.float64)
        if not self.cached_by_pass:
            return self._entry_s(requests)
        fusion_s = self.network.gemms_s(requests, self.entry.fusion, self.network.formats.wide)
        total: FloatArray = fusion_s + self._layers_s(requests, 1, context.astype(np.float64) + 1.0)
        return total

    @property
    def deepest(self) -> int:
        """As many tokens as are guessed."""
        return self.guesses

    @property
    def weight_bytes(self) -> float:
        """The layers, the fusion, what stands beside them, and embedding and LM head where they are its own."""
        gemms = (*self.entry.fusion, *self.beside, *self.guessing.over_guesses, *self.guessing.per_guess)
        own = sum(gemm.weights for gemm in gemms)  # the injection is the layers' own keys and values
        return self.network.layer_bytes + own * self.network.formats.wide.bytes_per_value + self.own_vocab_bytes

    @cached_property
    def _table(self) -> Callable[[tuple[int, ...], tuple[int, ...]], FloatArray]:
        return lru_cache(maxsize=64)(self._price)

    def _price(self, batches: tuple[int, ...], contexts: tuple[int, ...]) -> FloatArray:
        """`[B, L]` seconds."""
        requests = np.array(batches, dtype=np.float64)[:, None]
        keys = np.array(contexts, dtype=np.float64)[None] + self.rows
        return self._entry_s(requests) + self._layers_s(requests, self.rows, keys) + self._guesses_s(requests)

    def _entry_s(self, requests: FloatArray) -> FloatArray:
        net, tokens = self.network, requests * self.entry.tokens
        gemms_s = net.gemms_s(tokens, (*self.entry.fusion, *self.entry.injection), net.formats.wide)
        return gemms_s + self._streamed_s(tokens, *self.entry.streamed)

    def _layers_s(self, requests: FloatArray, rows: int, keys: FloatArray) -> FloatArray:
        net, tokens = self.network, requests * rows
        gemms_s = net.layers_s(tokens) + net.gemms_s(tokens, self.beside, net.formats.wide)
        between_s = net.elementwise_s(tokens) + net.all_reduce_s(tokens)
        attention_s = net.attention_s(requests, np.array(1.0 * rows), keys)
        return gemms_s + net.experts_s(tokens) + between_s + attention_s

    def _guesses_s(self, requests: FloatArray) -> FloatArray:
        net, tokens = self.network, requests * self.guesses
        logits_s = net.lm_head_s(tokens) + net.gather_s(tokens)
        own_s = net.gemms_s(tokens, self.guessing.over_guesses, net.formats.wide)
        if self.guessing.streamed:
            own_s = own_s + self._streamed_s(tokens, self.guessing.streamed)
        if not self.guessing.per_guess:
            return logits_s + own_s + net.top_guesses_s(tokens)
        step_s = net.gemms_s(requests, self.guessing.per_guess, net.formats.wide) + net.top_guesses_s(2 * requests)
        return logits_s + own_s + self.guesses * step_s

    def _streamed_s(self, tokens: FloatArray, *values: int) -> FloatArray:
        moved = self.network.formats.wide.bytes_per_value
        return sum((self.network.times.stream_s(moved * tokens * each) for each in values), np.zeros(np.shape(tokens)))
