"""What one forward pass of a network costs on one GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.formats import Dtype, WeightFormats
from treeopt.cost.kernels.attention import GroupedAttention
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

    Weights of the layers are in `formats`; LM head, routers, absorbed projections, messages and norms use 16 bit, the
    KV cache `kv_dtype`. `attention_inputs` are the channels that q, k and v read where they are not the hidden ones.
    Kernels between the GEMMs count as fused the way serving engines fuse them: a norm with the residual sum before it,
    rotary positions with the KV write, the activation with the product of gate and up, the choice of experts with its
    softmax. Kernels inside the routed experts' block and the quantisation of activations belong to the times of those
    blocks and GEMMs. Of linear attention the reads and writes of states and of the short convolution are priced.
    """

    network: ModelShape
    times: KernelTimes
    formats: WeightFormats
    tp: int
    kv_dtype: Dtype = Dtype.BF16
    attention_inputs: int | None = None

    def gemms_s(self, tokens: FloatArray, weights: Iterable[Gemm], dtype: Dtype) -> FloatArray:
        """`[...]` seconds in the GEMMs of `weights`, one after the other; grouped ones stay wide."""
        total = np.zeros(np.shape(tokens))
        for weight in weights:
            total = total + self.times.gemm_s(tokens, weight, dtype.wide if weight.groups > 1 else dtype)
        return total

    def layers_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds in the GEMMs that every token meets: projections, feed-forward, shared experts, routers."""
        net, dtype = self.network, self.formats.layers
        projections = net.attention.projections(net.hidden, self.attention_inputs)
        total = net.attention_layers * self.gemms_s(tokens, projections, dtype)
        if net.linear:
            total = total + net.linear.layers * self.gemms_s(tokens, net.linear.projections(net.hidden), dtype)
        if net.dense_layers:
            total = total + net.dense_layers * self.gemms_s(tokens, net.ffn, dtype)
        if net.experts:
            total = total + net.expert_layers * self.gemms_s(tokens, (net.experts.router(net.hidden),), dtype.wide)
            if net.experts.shared_intermediate:
                total = total + net.expert_layers * self.gemms_s(tokens, net.experts.shared(net.hidden), dtype)
        return total

    def experts_s(self, tokens: FloatArray, independent: FloatArray | None = None) -> FloatArray:
        """`[...]` seconds in the routed experts of all layers; `independent` is that of `KernelTimes.experts_s`."""
        net = self.network
        if net.experts is None:
            return np.zeros(np.shape(tokens))
        one_s = self.times.experts_s(tokens, net.experts, net.hidden, self.formats.experts, independent)
        return net.expert_layers * one_s

    def experts_of_requests_s(self, requests: FloatArray, nodes: FloatArray, tokens: FloatArray) -> FloatArray:
        """`[B, N, ...]` seconds in the routed experts where each request's nodes choose alike, rising along N.

        Args:
            requests: `[B, 1, ...]`.
            nodes: `[1, N, ...]` of each request, 1, 2, ....
            tokens: `[B, N, ...]` that the kernels run: requests x nodes, padded.
        """
        experts = self.network.experts
        if experts is None:
            return np.zeros(np.shape(tokens))
        share = experts.independent(requests, requests * nodes) / (requests * nodes)
        return np.maximum.accumulate(self.experts_s(tokens, tokens * share), axis=1)

    def attention_s(self, requests: FloatArray, queries: FloatArray, keys: FloatArray) -> FloatArray:
        """`[...]` seconds in the attention of all layers; those with a window attend to it and to the queries."""
        net, kv = self.network, self.kv_dtype
        windowed = net.window.layers if net.window else 0
        total = (net.attention_layers - windowed) * self.times.attention_s(requests, queries, keys, net.attention, kv)
        if net.window:
            near = np.minimum(keys, net.window.tokens + queries)
            total = total + windowed * self.times.attention_s(requests, queries, near, net.attention, kv)
        if net.linear:
            moved = net.linear.moved_bytes(requests, queries)
            total = total + net.linear.layers * sum(self.times.stream_s(each) for each in moved)
        return total

    def lm_head_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds to the logits of all tokens."""
        return self.gemms_s(tokens, (self.network.lm_head,), self.formats.wide)

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
        values = self.network.attention_layers * self.network.attention.kv_values
        return self.times.stream_s(2 * self.kv_dtype.bytes_per_value * requests * moved * values)

    @property
    def layer_bytes(self) -> float:
        """Memory of the layers' weights, routed experts included, without embedding and LM head."""
        net, formats = self.network, self.formats
        wider = (self.attention_inputs or net.hidden) - net.hidden
        into = net.attention_layers * wider * net.attention.projections(net.hidden)[0].outputs
        layers = (net.layer_parameters + into) * formats.layers.bytes_per_value
        return layers + net.expert_parameters * formats.experts.bytes_per_value

    def cache_bytes(self, context: int) -> float:
        """KV cache and states of one request; layers with a window keep that much."""
        net = self.network
        windowed, window = (net.window.layers, net.window.tokens) if net.window else (0, 0)
        tokens = (net.attention_layers - windowed) * context + windowed * min(context, window)
        states = net.linear.layers * net.linear.state_bytes if net.linear else 0.0
        return self.kv_dtype.bytes_per_value * net.attention.kv_values * tokens + states

    @property
    def families(self) -> tuple[Family, ...]:
        """The kinds of kernels that a pass runs."""
        experts = (Family.EXPERTS,) if self.network.experts else ()
        messages = (Family.ALL_REDUCE,) if self.tp > 1 else ()
        grouped = isinstance(self.network.attention, GroupedAttention)
        return (Family.GEMM, Family.ATTENTION if grouped else Family.LATENT, Family.STREAM, *experts, *messages)

    def reaches(self, tokens: int, *, requests: int, queries: int, keys: int) -> Iterator[Reach]:
        """How far a pass over `tokens` reaches into each of them."""
        net = self.network
        sent_bytes = int(self._wide_bytes * tokens * max(net.hidden, self._logits / 2))
        attention = Use(requests=requests, queries=queries, keys=keys, tp=self.tp, heads=net.attention.heads)
        uses = {
            Family.GEMM: (self.formats.layers, Use(tokens=tokens, tp=self.tp)),
            Family.ATTENTION: (self.kv_dtype, attention),
            Family.LATENT: (self.kv_dtype, attention),
            Family.ALL_REDUCE: (self.formats.wide, Use(message_bytes=sent_bytes, tp=self.tp)),
            Family.STREAM: (self.formats.wide, Use(tp=self.tp)),
        }
        if net.experts:
            sizes = Use(
                tokens=tokens,
                tp=self.tp,
                hidden=net.hidden,
                intermediate=net.experts.intermediate,
                experts=net.experts.count,
                per_token=net.experts.per_token,
            )
            uses[Family.EXPERTS] = (self.formats.experts, sizes)
        for family in self.families:
            yield Reach(family, *uses[family])
        if self.formats.wide is not self.formats.layers:
            yield Reach(Family.GEMM, self.formats.wide, uses[Family.GEMM][1])  # the LM head

    @property
    def _wide_bytes(self) -> float:
        return self.formats.wide.bytes_per_value

    @property
    def _logits(self) -> int:
        return self.network.vocab * self.tp

    def _streams(self) -> Iterator[Stream]:
        net = self.network
        yield Stream(2 * net.hidden, 1)  # embedding
        yield Stream(4 * net.hidden, 2 * net.layers + 1)  # norms, the last before the LM head
        for values in net.attention.moved_values:
            yield Stream(values, net.attention_layers)
        if net.dense_layers:
            yield Stream(3 * net.intermediate, net.dense_layers)
        if net.experts:
            yield Stream(net.experts.count + 2 * net.experts.per_token, net.expert_layers)
            if net.experts.shared_intermediate:
                yield Stream(3 * net.experts.shared_intermediate, net.expert_layers)
