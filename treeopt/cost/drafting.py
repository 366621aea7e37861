"""What drafting one tree costs: pass by pass, by parallel heads, or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple, Protocol

import numpy as np

from treeopt.arrays import Axis, FloatArray, IntArray
from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.gemm import Gemm

_MEDUSA_HEADS: Final = 5  # of the published ones
# Tables reach to the next multiple: a tree of one node more is in the same table.
_BLOCK: Final = 64
# Drafted keys beyond the prefix at which a pass's attention is priced; between two it is a straight line, as it is in
# a roofline. No tree reaches the last.
_OFFSETS: Final = np.array([1.0, 64.0, 512.0, 8192.0])


class Drafting(Protocol):
    """The price of a drafter beside one target; it does not fall as depth or widths grow."""

    def time_s(self, batch: IntArray, depth: IntArray, widths: IntArray, context: IntArray) -> FloatArray:
        """`[...]` seconds per step; the arguments are those of `StepCost.step_time_s` and broadcast as there."""

    def passes(self, depth: IntArray) -> IntArray:
        """`[...]` passes that the engine starts for a tree of `depth`."""

    def idle_s(self, batch: IntArray, context: IntArray) -> FloatArray:
        """`[...]` seconds of a step that drafts nothing: what keeps the drafter's cache at the verified tokens."""

    @property
    def deepest(self) -> int | None:
        """The most tokens that it guesses one behind the other; None without a limit."""

    @property
    def weight_bytes(self) -> float:
        """Memory of its own weights on one GPU; what it shares with the target is not counted again."""

    def cache_bytes(self, context: int) -> float:
        """Its KV cache of one request of `context` tokens on one GPU."""

    @property
    def families(self) -> tuple[Family, ...]:
        """The kinds of kernels that it runs."""


class _Tables(NamedTuple):
    """Seconds of one pass at R pairs of B and L.

    `first_s [R, D]` of the pass at depth 0, by the depth of the tree. `later_s [R, S, W]` of any other pass, by the
    segment of `_OFFSETS` that its drafted keys lie in and by its width, with the keys at the segment's start;
    `per_key_s [R, S, W]` for each key more.
    """

    first_s: FloatArray
    later_s: FloatArray
    per_key_s: FloatArray


@dataclass(frozen=True, kw_only=True)
class OwnLayers:
    """A drafter with layers of its own, and what follows from them."""

    network: ForwardPass

    def cache_bytes(self, context: int) -> float:
        """That of its layers."""
        return self.network.cache_bytes(context)

    @property
    def families(self) -> tuple[Family, ...]:
        """Those of a forward pass."""
        return self.network.families


@dataclass(frozen=True, kw_only=True)
class Passes(OwnLayers):
    """One pass per depth: pass d runs the `widths[d]` nodes that get children through `network`, after `fusion`.

    The first pass takes in what the last step accepted, after `entry` besides: depth + 1 tokens per request, the
    size that engines pad it to (SGLang's draft-extend graph, vLLM's padded drafter batch); only the last of them needs
    logits. A pass attends to the prefix and to all that was drafted up to and including it.

    The search relies on passes that do not get cheaper when a tree gets wider or deeper (`StepCost`), which kernel
    times that never fall as tokens grow give it.
    """

    fusion: tuple[Gemm, ...] = ()
    entry: tuple[Gemm, ...] = ()
    own_vocab_bytes: float = 0.0
    deepest: int | None = None

    def time_s(self, batch: IntArray, depth: IntArray, widths: IntArray, context: IntArray) -> FloatArray:
        """`[...]` seconds of all passes."""
        batches, contexts = Axis.of(batch), Axis.of(context)
        most = max(int(widths.max(initial=0)), int(depth.max(initial=0)) + 1)
        tables = self._tables(batches.values, contexts.values, -(-most // _BLOCK) * _BLOCK)
        row = batches.at * len(contexts.values) + contexts.at
        later_s = _later_s(tables, widths.reshape(math.prod(widths.shape[:-1]), widths.shape[-1]))
        column = np.arange(later_s.shape[1]).reshape(widths.shape[:-1])
        total: FloatArray = tables.first_s[row, depth] + later_s[row, column]
        return total

    def passes(self, depth: IntArray) -> IntArray:
        """One per depth."""
        return depth

    def idle_s(self, batch: IntArray, context: IntArray) -> FloatArray:
        """`[...]` one pass over the step's tokens without logits, as vLLM runs it to fill the drafter's cache."""
        tokens = batch.astype(np.float64)
        attention_s = self.network.attention_s(tokens, np.ones(()), context.astype(np.float64) + 1.0)
        entry_s = self.network.gemms_s(tokens, self.entry, self.network.formats.layers)
        return self._body_s(tokens) + self.network.experts_s(tokens) + entry_s + attention_s

    @property
    def weight_bytes(self) -> float:
        """The layers, the fusion, and embedding and LM head where they are its own."""
        own = sum(gemm.weights for gemm in (*self.fusion, *self.entry))
        return self.network.layer_bytes + own * self.network.formats.layers.bytes_per_value + self.own_vocab_bytes

    @cached_property
    def _tables(self) -> Callable[[tuple[int, ...], tuple[int, ...], int], _Tables]:
        return lru_cache(maxsize=64)(self._price)

    def _price(self, batches: tuple[int, ...], contexts: tuple[int, ...], most: int) -> _Tables:
        batch, width = np.array(batches, dtype=np.float64)[:, None], np.arange(1.0, most + 1)
        T = Axis.of(batch * width)
        tokens = np.array(T.values, dtype=np.float64)
        experts_s = self.network.experts_of_requests_s(batch, width, batch * width)
        body_s, head_s = self._body_s(tokens)[T.at] + experts_s, self._head_s(tokens)[T.at]
        entry_s = self.network.gemms_s(tokens, self.entry, self.network.formats.layers)[T.at]
        attention_s = self._attention_s(batch, width, np.array(contexts, dtype=np.float64))
        first_s = body_s + entry_s + head_s[:, :1]
        later_s = body_s + head_s
        shape = (len(batches) * len(contexts), len(_OFFSETS), most)
        by_pair = attention_s.reshape(shape)
        first_s = np.repeat(first_s, len(contexts), axis=0) + by_pair[:, 0]
        first_s[:, 0] = 0.0  # depth 0 drafts nothing
        later_s = np.repeat(later_s, len(contexts), axis=0)[:, None] + by_pair[:, :-1]
        per_key_s = np.diff(by_pair, axis=1) / np.diff(_OFFSETS)[:, None]
        no_pass = ((0, 0), (0, 0), (1, 0))  # width 0
        return _Tables(first_s, np.pad(later_s, no_pass), np.pad(per_key_s, no_pass))

    def _body_s(self, tokens: FloatArray) -> FloatArray:
        net = self.network
        layers_s = net.gemms_s(tokens, self.fusion, net.formats.layers) + net.layers_s(tokens)
        return layers_s + net.elementwise_s(tokens) + net.all_reduce_s(tokens)

    def _head_s(self, tokens: FloatArray) -> FloatArray:
        net = self.network
        return net.lm_head_s(tokens) + net.gather_s(tokens) + net.top_guesses_s(tokens)

    def _attention_s(self, batch: FloatArray, width: FloatArray, contexts: FloatArray) -> FloatArray:
        """`[B, L, S, W]` seconds, falling along neither of the last two."""
        keys = contexts[:, None, None] + _OFFSETS[:, None]
        time_s = self.network.attention_s(batch[..., None, None], width, keys)
        return np.maximum.accumulate(np.maximum.accumulate(time_s, axis=2), axis=3)


def _later_s(tables: _Tables, widths: IntArray) -> FloatArray:
    """`[R, P]` seconds of the passes after the first, of P trees by their `[P, D]` widths."""
    rows, segments, columns = tables.later_s.shape
    cells = (rows, segments * columns)  # in full: of no rows, reshape cannot tell the rest
    later_s, per_key_s = tables.later_s.reshape(cells), tables.per_key_s.reshape(cells)
    total = np.zeros((rows, len(widths)))
    keys = np.zeros(len(widths), dtype=np.int64)
    for level, width in enumerate(np.ascontiguousarray(widths.T)):
        keys = keys + width
        if level == 0 or not width.any():
            continue
        segment = sum((keys >= offset).astype(np.int64) for offset in _OFFSETS[1:-1])
        cell = segment * columns + width
        total += later_s[:, cell] + per_key_s[:, cell] * (keys - _OFFSETS[segment])
    return total


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Parallel heads on the target's last hidden state: a residual block and an own LM head per depth.

    They see one token per request. The block is copied to every GPU, the LM head shares out (vLLM's `medusa.py`).
    """

    target: ForwardPass
    heads: int | None = None

    @property
    def deepest(self) -> int | None:
        """One head guesses one token; None where their number is not known."""
        return self.heads

    @property
    def weight_bytes(self) -> float:
        """Every head's block and LM head."""
        hidden = self.target.network.hidden
        weights = hidden * hidden + self.target.network.lm_head.weights
        return (self.heads or _MEDUSA_HEADS) * weights * self.target.formats.wide.bytes_per_value

    def cache_bytes(self, context: int) -> float:
        """None."""
        return 0.0

    def idle_s(self, batch: IntArray, context: IntArray) -> FloatArray:
        """Nothing: heads read the last state alone."""
        return np.zeros(())

    def time_s(self, batch: IntArray, depth: IntArray, widths: IntArray, context: IntArray) -> FloatArray:
        """`[...]` seconds of `depth` heads."""
        target, hidden, batches = self.target, self.target.network.hidden, Axis.of(batch)
        tokens = np.array(batches.values, dtype=np.float64)
        block_s = target.gemms_s(tokens, (Gemm(hidden, hidden),), target.formats.wide)
        head_s = block_s + target.lm_head_s(tokens) + target.gather_s(tokens) + target.top_guesses_s(tokens)
        total: FloatArray = depth * head_s[batches.at]
        return total

    def passes(self, depth: IntArray) -> IntArray:
        """One, if any head runs."""
        return np.minimum(depth, 1)

    @property
    def families(self) -> tuple[Family, ...]:
        """GEMMs: the rest is small."""
        return (Family.GEMM,)


@dataclass(frozen=True, kw_only=True)
class Free:
    """Guesses that cost the GPU nothing."""

    deepest: int | None = None
    weight_bytes: float = 0.0

    def cache_bytes(self, context: int) -> float:
        """None."""
        return 0.0

    def idle_s(self, batch: IntArray, context: IntArray) -> FloatArray:
        """Nothing."""
        return np.zeros(())

    def time_s(self, batch: IntArray, depth: IntArray, widths: IntArray, context: IntArray) -> FloatArray:
        """Zero."""
        return np.zeros(())

    def passes(self, depth: IntArray) -> IntArray:
        """None."""
        return np.zeros_like(depth)

    @property
    def families(self) -> tuple[Family, ...]:
        """None."""
        return ()
