"""What one forward pass of a network costs on one GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from treeopt.cost import operators
from treeopt.cost.base import FloatArray
from treeopt.cost.dtype import Dtype
from treeopt.cost.experts import Experts
from treeopt.cost.gemm import Gemm
from treeopt.cost.hardware import Hardware
from treeopt.cost.model import ModelShape
from treeopt.cost.operators import WIDE_BYTES, Operator


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A network's kernels on one GPU of `tp`; `network` is that GPU's part (`ModelShape.shard`).

    Weights of the layers are `dtype`; the LM head, attention and messages use `dtype.wide`. Not priced: norms,
    activations and rotary embeddings, sampling, the gathering of logits, and the engine's own time on the CPU.
    """

    network: ModelShape
    hardware: Hardware
    dtype: Dtype
    tp: int

    def gemms_s(self, tokens: FloatArray, weights: Iterable[Gemm], dtype: Dtype) -> FloatArray:
        """`[...]` seconds in the GEMMs of `weights`, one after the other."""
        total = np.zeros(np.shape(tokens))
        for weight in weights:
            total += operators.gemm(tokens, weight, dtype).time_s(self.hardware, dtype)
        return total

    def layers_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds in the GEMMs of all layers: projections, feed-forward blocks, experts."""
        net = self.network
        total = net.layers * self.gemms_s(tokens, net.attention.projections(net.hidden), self.dtype)
        if net.dense_layers:
            total += net.dense_layers * self.gemms_s(tokens, net.ffn, self.dtype)
        if net.experts:
            total += net.expert_layers * self._experts_s(tokens, net.experts)
        return total

    def lm_head_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds to the logits of all tokens."""
        return self.gemms_s(tokens, (self.network.lm_head,), self.dtype.wide)

    def all_reduce_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds in all-reduces, two per layer (after attention and after the feed-forward block)."""
        message_bytes = WIDE_BYTES * tokens * self.network.hidden
        return 2 * self.network.layers * operators.all_reduce_s(message_bytes, self.hardware, self.tp)

    def attention(self, requests: FloatArray, queries: FloatArray, keys: FloatArray) -> Operator:
        """The attention of all layers."""
        return operators.attention(requests, queries, keys, self.network.attention, self.network.layers)

    def compaction(self, requests: FloatArray, moved: FloatArray) -> Operator:
        """The copying of accepted tokens' KV in all layers."""
        return operators.compaction(requests, moved, self.network.kv_bytes_per_token(self.dtype.wide))

    def _experts_s(self, tokens: FloatArray, experts: Experts) -> FloatArray:
        hidden = self.network.hidden
        routed = operators.expert_ffn(tokens, experts, experts.routed(hidden), self.dtype)
        every_token = [experts.router(hidden)]
        if experts.shared_intermediate:
            every_token += experts.shared(hidden)
        return routed.time_s(self.hardware, self.dtype) + self.gemms_s(tokens, every_token, self.dtype)
