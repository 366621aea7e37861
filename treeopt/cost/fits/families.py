"""Each family's kernels as arrays of sizes: what they move and compute, what tells shapes apart, what is swept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.coverage import visited_experts
from treeopt.cost.fits.roofline import Tiling, Work
from treeopt.cost.timing import Family

# Activations, KV and messages are 16 bit beside every weight format.
WIDE_BYTES: Final = 2
# The sizes that rows of each family have; the swept one first.
SIZES: Final[Mapping[Family, tuple[str, ...]]] = {
    Family.GEMM: ("tokens", "outputs", "inputs"),
    Family.ATTENTION: ("keys", "requests", "queries", "heads", "kv_heads", "head_dim", "causal"),
    Family.EXPERTS: ("tokens", "hidden", "intermediate", "experts", "per_token", "skewed"),
    Family.ALL_REDUCE: ("message_bytes", "tp"),
    Family.STREAM: ("traffic_bytes",),
}
# Bytes of one weight by number format; int4 has a 16 bit scale per 128 weights.
VALUE_BYTES: Final[Mapping[str, float]] = {
    "bf16": 2,
    "fp16": 2,
    "fp32": 4,
    "fp8": 1,
    "fp8_block": 1,
    "int4": 0.5 + 2 / 128,
}
# What tells a layer of balanced experts from one with skewed routing: far beyond any reach.
_ROUTING_APART: Final = 20.0


def gemm_work(
    tokens: FloatArray, outputs: FloatArray, inputs: FloatArray, bytes_per_value: float, tiling: Tiling | None = None
) -> Work:
    """`[...]` tokens through one weight `[outputs, inputs]`, streamed once."""
    plain = 2.0 * tokens * outputs * inputs
    return Work(
        traffic_bytes=bytes_per_value * outputs * inputs
        + max(WIDE_BYTES, bytes_per_value) * tokens * (outputs + inputs),
        flops=plain if tiling is None else tiling.flops(tokens, outputs, inputs),
        units=np.zeros(np.shape(plain)),
    )


def attention_work(
    requests: FloatArray,
    queries: FloatArray,
    keys: FloatArray,
    heads: FloatArray,
    kv_heads: FloatArray,
    head_dim: FloatArray,
) -> Work:
    """`[...]` requests, each with `queries` over `keys`: the KV is read once, every query meets every key.

    The overhead counts per request and KV head, the pieces that a decode kernel is cut into.
    """
    return Work(
        traffic_bytes=WIDE_BYTES * requests * keys * 2.0 * kv_heads * head_dim,
        flops=4.0 * requests * queries * keys * heads * head_dim,
        units=1.0 * requests * kv_heads,
    )


def experts_work(
    tokens: FloatArray, hidden: int, intermediate: int, count: int, per_token: int, skew: float, bytes_per_value: float
) -> Work:
    """`[...]` tokens through the gated blocks of their experts, of which only the visited ones are streamed."""
    visited = visited_experts(tokens, count, per_token, skew)
    pairs = tokens * per_token
    weights = 3.0 * hidden * intermediate
    return Work(
        traffic_bytes=bytes_per_value * weights * visited + WIDE_BYTES * pairs * (2.0 * hidden + 3.0 * intermediate),
        flops=2.0 * pairs * weights,
        units=visited,
    )


def all_reduce_work(message_bytes: FloatArray, tp: FloatArray) -> Work:
    """`[...]` message summed over `tp` GPUs: each sends 2 (tp - 1) / tp of it, as around a ring.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms".
    """
    sent = 2.0 * (tp - 1.0) / tp * message_bytes
    return Work(traffic_bytes=sent, flops=np.zeros(np.shape(sent)), units=np.zeros(np.shape(sent)))


def gemm_point(outputs: FloatArray, inputs: FloatArray) -> FloatArray:
    """`[..., 2]` what tells weights apart."""
    return np.stack([np.log(outputs), np.log(inputs)], axis=-1)


def attention_point(
    requests: FloatArray, queries: FloatArray, heads: FloatArray, kv_heads: FloatArray, head_dim: FloatArray
) -> FloatArray:
    """`[..., 4]` what tells attention kernels apart: pieces of work, heads that share KV, channels, queries."""
    pieces, group = np.log(requests * kv_heads), np.log(heads / kv_heads)
    return np.stack(np.broadcast_arrays(pieces, group, np.log(head_dim), np.log(queries)), axis=-1)


def experts_point(
    hidden: FloatArray, intermediate: FloatArray, count: FloatArray, per_token: FloatArray, skewed: FloatArray
) -> FloatArray:
    """`[..., 5]` what tells layers of experts apart; balanced and skewed routing never mix."""
    routing = _ROUTING_APART * (np.asarray(skewed) > 0)
    parts = (np.log(hidden), np.log(intermediate), np.log(count), np.log(per_token), routing)
    return np.stack(np.broadcast_arrays(*parts), axis=-1)


def all_reduce_point(tp: FloatArray) -> FloatArray:
    """`[..., 1]` what tells all-reduces apart."""
    return np.log(np.asarray(tp, dtype=np.float64))[..., None]
