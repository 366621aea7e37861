"""What each kernel of a step moves and computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from treeopt.arrays import FloatArray
from treeopt.cost.attention import Attention
from treeopt.cost.dtype import Dtype
from treeopt.cost.experts import Experts
from treeopt.cost.gemm import Gemm

# Activations, KV and messages are 16 bit beside every weight format.
WIDE_BYTES: Final = 2


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The work of one kernel, or of `launches` that are equally bound: `[...]` bytes moved and operations done."""

    traffic_bytes: FloatArray
    flops: FloatArray
    launches: int = 1


def gemm(tokens: FloatArray, weight: Gemm, dtype: Dtype) -> Operator:
    """`[...]` tokens through one weight, streamed once whatever their number."""
    return Operator(
        traffic_bytes=dtype.bytes_per_value * weight.weights + dtype.wide.bytes_per_value * tokens * weight.activations,
        flops=2.0 * tokens * weight.weights,
    )


def expert_ffn(tokens: FloatArray, experts: Experts, hidden: int, dtype: Dtype) -> Operator:
    """`[...]` tokens through their routed experts, as two grouped GEMMs that stream the visited experts only."""
    block = experts.routed(hidden)
    pairs = tokens * experts.per_token
    values = block.gate_up.activations + block.down.activations
    weights_bytes = dtype.bytes_per_value * block.weights * experts.visited(tokens)
    return Operator(
        traffic_bytes=weights_bytes + dtype.wide.bytes_per_value * pairs * values,
        flops=2.0 * pairs * block.weights,
        launches=2,
    )


def attention(requests: FloatArray, queries: FloatArray, keys: FloatArray, shape: Attention) -> Operator:
    """`[...]` requests, each with `queries` tokens attending to `keys`, in one layer.

    A request's KV is read once, whatever the number of its queries: they share one kernel. Every query counts as
    attending to every key, since tree-attention kernels mask scores after computing them.
    """
    return Operator(
        traffic_bytes=WIDE_BYTES * requests * keys * shape.kv_values,
        flops=1.0 * requests * queries * keys * shape.flops_per_pair,
    )
