"""What each kernel of a step moves and computes, and the roofline that turns this into time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.cost.attention import Attention
from treeopt.cost.base import FloatArray
from treeopt.cost.dtype import Dtype
from treeopt.cost.experts import Experts
from treeopt.cost.gemm import GatedFfn, Gemm
from treeopt.cost.hardware import Hardware

# Activations and KV are 16 bit beside every weight format.
WIDE_BYTES: Final = 2


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The work of one kernel, or of `launches` that are equally bound: `[...]` bytes moved and operations done."""

    traffic_bytes: FloatArray
    flops: FloatArray
    launches: int = 1

    def busy_s(self, hardware: Hardware, dtype: Dtype) -> FloatArray:
        """`[...]` seconds of memory or arithmetic, whichever takes longer.

        Source: Williams et al. 2009, "Roofline".
        """
        memory_s = self.traffic_bytes / hardware.bandwidth_bytes_per_s
        return np.maximum(memory_s, self.flops / hardware.flops_per_s(dtype))

    def time_s(self, hardware: Hardware, dtype: Dtype) -> FloatArray:
        """`[...]` seconds with the launches."""
        return self.busy_s(hardware, dtype) + self.launches * hardware.launch_s


def gemm(tokens: FloatArray, weight: Gemm, dtype: Dtype) -> Operator:
    """`[...]` tokens through one weight, streamed once whatever their number."""
    return Operator(
        traffic_bytes=dtype.bytes_per_value * weight.weights + WIDE_BYTES * tokens * weight.activations,
        flops=2.0 * tokens * weight.weights,
    )


def visited_experts(tokens: FloatArray, experts: Experts) -> FloatArray:
    """`[...]` distinct experts that the tokens are expected to visit, each token's choice independent and balanced.

    E (1 - (1 - k/E)^T), balls in bins. Source: MoESD, arXiv 2505.19645.
    """
    unvisited = (1.0 - experts.per_token / experts.count) ** tokens
    return experts.count * (1.0 - unvisited)


def expert_ffn(tokens: FloatArray, experts: Experts, block: GatedFfn, dtype: Dtype) -> Operator:
    """`[...]` tokens through their routed experts, as two grouped GEMMs that stream the visited experts only."""
    pairs = tokens * experts.per_token
    values = block.gate_up.activations + block.down.activations
    weights_bytes = dtype.bytes_per_value * block.weights * visited_experts(tokens, experts)
    return Operator(
        traffic_bytes=weights_bytes + WIDE_BYTES * pairs * values, flops=2.0 * pairs * block.weights, launches=2
    )


def attention(requests: FloatArray, queries: FloatArray, keys: FloatArray, shape: Attention, layers: int) -> Operator:
    """`[...]` requests, each with `queries` tokens attending to `keys`, in `layers` equal layers.

    A request's KV is read once, whatever the number of its queries: they share one kernel. Every query counts as
    attending to every key, since tree-attention kernels mask scores after computing them.
    """
    return Operator(
        traffic_bytes=layers * WIDE_BYTES * requests * keys * shape.kv_values,
        flops=1.0 * layers * requests * queries * keys * shape.flops_per_pair,
        launches=layers,
    )


def compaction(requests: FloatArray, moved: FloatArray, kv_bytes_per_token: int) -> Operator:
    """`[...]` requests that copy the KV of `moved` accepted tokens next to their prefix: a read and a write each."""
    traffic_bytes = 2.0 * requests * moved * kv_bytes_per_token
    return Operator(traffic_bytes=traffic_bytes, flops=np.zeros_like(traffic_bytes))


def all_reduce_s(message_bytes: FloatArray, hardware: Hardware, tp: int) -> FloatArray:
    """`[...]` seconds to sum a message over `tp` GPUs around a ring: each sends 2 (tp - 1) / tp of it; 0 for one GPU.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms".
    """
    if tp == 1:
        return np.zeros_like(message_bytes)
    return 2 * (tp - 1) / tp * message_bytes / hardware.link_bandwidth_bytes_per_s + hardware.launch_s
