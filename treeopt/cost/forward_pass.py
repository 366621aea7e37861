"""What one forward pass of a network costs on one GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.family import Family, Use
from treeopt.cost.kernels.gemm import Gemm
from treeopt.cost.kernels.times import KernelTimes
from treeopt.cost.model import ModelShape


class Reach(NamedTuple):
    """How far a pass reaches into one kind of kernel."""

    family: Family
    dtype: Dtype
    use: Use


class Stream(NamedTuple):
    """A kernel that only moves values: how many per token, and how often it runs in a pass."""

    values: int
    runs: int


@dataclass(frozen=True, kw_only=True)
class ForwardPass:
    """A network's kernels on one GPU of `tp`; `network` is that GPU's part (`ModelShape.shard`).

    Weights of the layers are `dtype`; the LM head, attention, messages and norms use 16 bit. `attention_inputs` are
    the channels that q, k and v read where they are not the hidden ones. Kernels between the GEMMs count as fused the
    way serving engines fuse them: a norm with the residual sum before it, rotary positions with the KV write, the
    activation with the product of gate and up, the choice of experts with its softmax. Kernels inside the routed
    experts' block and the quantisation of activations belong to the times of those blocks and GEMMs.
    """

    network: ModelShape
    times: KernelTimes
    dtype: Dtype
    tp: int
    attention_inputs: int | None = None

    def gemms_s(self, tokens: FloatArray, weights: Iterable[Gemm], dtype: Dtype) -> FloatArray:
        """`[...]` seconds in the GEMMs of `weights`, one after the other."""
        total = np.zeros(np.shape(tokens))
        for weight in weights:
            total = total + self.times.gemm_s(tokens, weight, dtype)
        return total

    def layers_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds in the GEMMs that every token meets: projections, feed-forward, shared experts, routers."""
        net = self.network
        projections = net.attention.projections(net.hidden, self.attention_inputs)
        total = net.layers * self.gemms_s(tokens, projections, self.dtype)
        if net.dense_layers:
            total = total + net.dense_layers * self.gemms_s(tokens, net.ffn, self.dtype)
        if net.experts:
            every_token = [net.experts.router(net.hidden)]
            if net.experts.shared_intermediate:
                every_token += net.experts.shared(net.hidden)
            total = total + net.expert_layers * self.gemms_s(tokens, every_token, self.dtype)
        return total

    def experts_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds in the routed experts of all layers."""
        net = self.network
        if net.experts is None:
            return np.zeros(np.shape(tokens))
        return net.expert_layers * self.times.experts_s(tokens, net.experts, net.hidden, self.dtype)

    def attention_s(self, requests: FloatArray, queries: FloatArray, keys: FloatArray) -> FloatArray:
        """`[...]` seconds in the attention of all layers; those with a window attend to it and to the queries."""
        net = self.network
        windowed = net.window.layers if net.window else 0
        total = (net.layers - windowed) * self.times.attention_s(requests, queries, keys, net.attention)
        if net.window:
            near = np.minimum(keys, net.window.tokens + queries)
            total = total + windowed * self.times.attention_s(requests, queries, near, net.attention)
        return total

    def lm_head_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds to the logits of all tokens."""
        return self.gemms_s(tokens, (self.network.lm_head,), self.dtype.wide)

    def elementwise_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds in embedding, norms, rotary positions, KV writes, activations and choices of experts."""
        total = np.zeros(np.shape(tokens))
        for values, runs in self._streams():
            total = total + runs * self.times.stream_s(self._wide_bytes * tokens * values)
        return total

    def all_reduce_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds in all-reduces, two per layer (after attention and after the feed-forward block)."""
        message_bytes = self._wide_bytes * tokens * self.network.hidden
        return 2 * self.network.layers * self.times.all_reduce_s(message_bytes, self.tp)

    def gather_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds to gather the logits from all GPUs: half of what summing as many would send."""
        return self.times.all_reduce_s(self._wide_bytes * tokens * self._logits / 2, self.tp)

    def sampling_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds over the logits: 16-bit ones widened to 32 bit (2 bytes read, 4 written), then read once."""
        values = tokens * self._logits
        read_s = self.times.stream_s(4.0 * values)
        return read_s if self._wide_bytes == 4.0 else self.times.stream_s(6.0 * values) + read_s

    def top_guesses_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds to find the likeliest tokens, as a drafter does: the 16-bit logits read once."""
        return self.times.stream_s(self._wide_bytes * tokens * self._logits)

    def compaction_s(self, requests: FloatArray, moved: FloatArray) -> FloatArray:
        """`[...]` seconds to copy the KV of `moved` accepted tokens next to the prefix: one kernel for all layers."""
        values = self.network.layers * self.network.attention.kv_values
        return self.times.stream_s(2 * self._wide_bytes * requests * moved * values)

    @property
    def families(self) -> tuple[Family, ...]:
        """The kinds of kernels that a pass runs."""
        experts = (Family.EXPERTS,) if self.network.experts else ()
        messages = (Family.ALL_REDUCE,) if self.tp > 1 else ()
        return (Family.GEMM, Family.ATTENTION, Family.STREAM, *experts, *messages)

    def reaches(self, tokens: int, *, requests: int, queries: int, keys: int) -> Iterator[Reach]:
        """How far a pass over `tokens` reaches into each of them."""
        wide = self.dtype.wide
        sent_bytes = int(self._wide_bytes * tokens * max(self.network.hidden, self._logits / 2))
        uses = {
            Family.GEMM: Use(tokens=tokens, tp=self.tp),
            Family.EXPERTS: Use(tokens=tokens, tp=self.tp),
            Family.ATTENTION: Use(requests=requests, queries=queries, keys=keys, tp=self.tp),
            Family.ALL_REDUCE: Use(message_bytes=sent_bytes, tp=self.tp),
            Family.STREAM: Use(tp=self.tp),
        }
        for family in self.families:
            yield Reach(family, self.dtype if family in (Family.GEMM, Family.EXPERTS) else wide, uses[family])
        if wide is not self.dtype:
            yield Reach(Family.GEMM, wide, uses[Family.GEMM])  # the LM head

    @property
    def _wide_bytes(self) -> float:
        return self.dtype.wide.bytes_per_value

    @property
    def _logits(self) -> int:
        return self.network.vocab * self.tp

    def _streams(self) -> Iterator[Stream]:
        net = self.network
        yield Stream(2 * net.hidden, 1)  # embedding
        yield Stream(4 * net.hidden, 2 * net.layers + 1)  # norms, the last before the LM head
        for values in net.attention.moved_values:
            yield Stream(values, net.layers)
        if net.dense_layers:
            yield Stream(3 * net.intermediate, net.dense_layers)
        if net.experts:
            yield Stream(net.experts.count + 2 * net.experts.per_token, net.expert_layers)
            if net.experts.shared_intermediate:
                yield Stream(3 * net.experts.shared_intermediate, net.expert_layers)
