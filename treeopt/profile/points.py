"""What is timed: one kernel at one size, and the least time that it can take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from treeopt.cost.fit.kinds import UNPRICED
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.attention import GroupedAttention, LatentAttention
from treeopt.cost.kernels.experts import Experts, visited_experts
from treeopt.cost.kernels.gemm import Gemm

GEMM: Final = "gemm"
SCALES: Final = "activation_scales"
ATTENTION: Final = "tree_attention"
LATENT: Final = "latent_attention"
EXPERTS: Final = "experts"
ALL_REDUCE: Final = "all_reduce"
STREAM: Final = "stream"
# What is timed for what it says beside the others: `UNPRICED`.
COMPACTION: Final = "compaction"
NORM: Final = "norm"
ROPE: Final = "rope"
ACTIVATION: Final = "activation"
CHOICE: Final = "expert_choice"
SAMPLING: Final = "sampling"
SCHEDULE: Final = "schedule"
PAGES_16: Final = "tree_attention_pages_16"
CONTIGUOUS: Final = "tree_attention_contiguous"
FLASH: Final = "flash_attention"


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The best rates that the device has shown: of a large copy and of a large matrix product."""

    bandwidth_bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, kw_only=True)
class KernelPoint:
    """One kernel at one size.

    Attributes:
        operator: as timing rows name it, `gemm` or `tree_attention`; those of `UNPRICED` are not fitted.
        sizes: by name, those that rows of its family have.
        traffic_bytes: what it moves at least, every input cold and read once.
        flops: what it computes.
        held_bytes: what its inputs take, where that is more than it moves: all experts of a layer.
    """

    operator: str
    dtype: Dtype
    sizes: tuple[tuple[str, float], ...]
    traffic_bytes: int
    flops: int
    held_bytes: int = 0

    @property
    def priced(self) -> bool:
        """Whether a fit takes its row in."""
        return self.operator not in UNPRICED

    @property
    def input_bytes(self) -> int:
        """Memory for one set of its inputs and results."""
        return max(self.traffic_bytes, self.held_bytes)

    def document(self) -> dict[str, Any]:
        """As timing rows name it."""
        return {"operator": self.operator, "dtype": str(self.dtype), **dict(self.sizes)}

    def size(self, name: str) -> int:
        """One of its sizes."""
        return int(dict(self.sizes)[name])

    def floor_s(self, ceilings: Ceilings) -> float:
        """The theoretical least time: bytes over bandwidth or operations over peak, whichever takes longer.

        Source: Williams et al. 2009, "Roofline".
        """
        return max(self.traffic_bytes / ceilings.bandwidth_bytes_per_s, self.flops / ceilings.flops_per_s)

    def __str__(self) -> str:
        return f"{self.operator} {self.dtype}, " + ", ".join(f"{name} {value}" for name, value in self.sizes)


def gemm(tokens: int, weight: Gemm, dtype: Dtype) -> KernelPoint:
    """`tokens` through one weight."""
    wide = dtype.wide.bytes_per_value * tokens * weight.activations
    return KernelPoint(
        operator=GEMM,
        dtype=dtype,
        sizes=(("tokens", tokens), ("outputs", weight.outputs), ("inputs", weight.inputs)),
        traffic_bytes=int(dtype.bytes_per_value * weight.weights + wide),
        flops=2 * tokens * weight.weights,
    )


def activation_scales(tokens: int, inputs: int, dtype: Dtype) -> KernelPoint:
    """Activations of `tokens` into a narrow GEMM: read, scaled, written narrow."""
    return KernelPoint(
        operator=SCALES,
        dtype=dtype,
        sizes=(("tokens", tokens), ("inputs", inputs)),
        traffic_bytes=int((dtype.wide.bytes_per_value + dtype.bytes_per_value) * tokens * inputs),
        flops=0,
    )


def tree_attention(
    requests: int, nodes: int, keys: int, shape: GroupedAttention, dtype: Dtype, *, operator: str = ATTENTION
) -> KernelPoint:
    """`requests` trees of `nodes`, each over `keys`: its own prefix and the tree's; one layer."""
    rows = 2 * requests * nodes * shape.heads * shape.head_dim  # queries read, results written
    return KernelPoint(
        operator=operator,
        dtype=dtype,
        sizes=(
            ("keys", keys),
            ("requests", requests),
            ("queries", nodes),
            ("heads", shape.heads),
            ("kv_heads", shape.kv_heads),
            ("head_dim", shape.head_dim),
        ),
        traffic_bytes=int(dtype.bytes_per_value * (requests * keys * shape.kv_values + rows)),
        flops=requests * nodes * keys * shape.flops_per_pair,
    )


def latent_attention(requests: int, nodes: int, keys: int, shape: LatentAttention, dtype: Dtype) -> KernelPoint:
    """The same over one latent per token, whose first part is the values."""
    rows = requests * nodes * shape.heads * (shape.kv_values + shape.kv_lora_rank)
    return KernelPoint(
        operator=LATENT,
        dtype=dtype,
        sizes=(("keys", keys), ("requests", requests), ("queries", nodes), ("heads", shape.heads)),
        traffic_bytes=int(dtype.bytes_per_value * (requests * keys * shape.kv_values + rows)),
        flops=requests * nodes * keys * shape.flops_per_pair,
    )


def routed_experts(tokens: int, hidden: int, layer: Experts, dtype: Dtype) -> KernelPoint:
    """`tokens` through the routed experts of a layer, as popular as `layer.skew` says, each token choosing on its own.

    8 tokens that visit 2 of 8 balanced experts each are expected to visit 8 (1 - 0.75^8) = 7.2 of them.
    """
    weights = 3 * hidden * layer.intermediate
    visited = float(visited_experts(np.array(float(tokens)), layer.count, layer.per_token, layer.skew))
    pairs = tokens * layer.per_token
    moved = dtype.wide.bytes_per_value * pairs * (2 * hidden + 3 * layer.intermediate)
    return KernelPoint(
        operator=EXPERTS,
        dtype=dtype,
        sizes=(
            ("tokens", tokens),
            ("hidden", hidden),
            ("intermediate", layer.intermediate),
            ("experts", layer.count),
            ("per_token", layer.per_token),
            ("skewed", layer.skew),
        ),
        traffic_bytes=int(dtype.bytes_per_value * weights * visited + moved),
        flops=2 * pairs * weights,
        held_bytes=int(dtype.bytes_per_value * weights * layer.count),
    )


def all_reduce(message_bytes: int, tp: int, dtype: Dtype) -> KernelPoint:
    """A message summed over `tp` GPUs; each sends 2 (tp - 1) / tp of it."""
    return KernelPoint(
        operator=ALL_REDUCE,
        dtype=dtype,
        sizes=(("message_bytes", message_bytes), ("tp", tp)),
        traffic_bytes=2 * (tp - 1) * message_bytes // tp,
        flops=0,
        held_bytes=message_bytes,
    )


def stream(traffic_bytes: int, dtype: Dtype) -> KernelPoint:
    """A copy that moves so many bytes, reads and writes together."""
    sizes = (("traffic_bytes", traffic_bytes),)
    return KernelPoint(operator=STREAM, dtype=dtype, sizes=sizes, traffic_bytes=traffic_bytes, flops=0)


def compaction(requests: int, moved: int, layers: int, shape: GroupedAttention, dtype: Dtype) -> KernelPoint:
    """The KV of `moved` accepted tokens of each request, in all layers, next to the prefix."""
    traffic_bytes = int(2 * dtype.bytes_per_value * requests * moved * layers * shape.kv_values)
    sizes = (
        ("traffic_bytes", traffic_bytes),
        ("requests", requests),
        ("moved", moved),
        ("layers", layers),
        ("kv_heads", shape.kv_heads),
        ("head_dim", shape.head_dim),
    )
    return KernelPoint(operator=COMPACTION, dtype=dtype, sizes=sizes, traffic_bytes=traffic_bytes, flops=0)


def norm(tokens: int, hidden: int, dtype: Dtype) -> KernelPoint:
    """The sum with the residual and its norm: both read, both written."""
    return _moved(NORM, dtype, 4 * tokens * hidden, tokens=tokens, hidden=hidden)


def rope(tokens: int, shape: GroupedAttention | LatentAttention, dtype: Dtype) -> KernelPoint:
    """Queries and keys turned by their positions, keys and values written to the cache.

    `plain` values of each token are cached as they are: values, or the latent.
    """
    if isinstance(shape, GroupedAttention):
        kv_heads, turned = shape.kv_heads, shape.head_dim
    else:
        kv_heads, turned = 1, shape.qk_rope_head_dim
    plain = shape.kv_values - kv_heads * turned
    values = 2 * tokens * (shape.heads * turned + shape.kv_values)
    sizes = {"tokens": tokens, "heads": shape.heads, "kv_heads": kv_heads, "turned": turned, "plain": plain}
    return _moved(ROPE, dtype, values, **sizes)


def activation(tokens: int, intermediate: int, dtype: Dtype) -> KernelPoint:
    """The activation of the gate times up: two read, one written."""
    return _moved(ACTIVATION, dtype, 3 * tokens * intermediate, tokens=tokens, intermediate=intermediate)


def expert_choice(tokens: int, count: int, per_token: int, dtype: Dtype) -> KernelPoint:
    """The softmax of the router's scores, and its largest with their places."""
    values = tokens * (count + 2 * per_token)
    return _moved(CHOICE, dtype, values, tokens=tokens, experts=count, per_token=per_token)


def sampling(tokens: int, vocab: int, dtype: Dtype) -> KernelPoint:
    """The logits widened to 32 bit, where they are not, and read again for the likeliest token."""
    wide = dtype.bytes_per_value == 4
    values = tokens * vocab * (4 if wide else 10) / dtype.bytes_per_value
    return _moved(SAMPLING, dtype, values, tokens=tokens, vocab=vocab)


def schedule(requests: int, nodes: int, keys: int, shape: GroupedAttention, dtype: Dtype) -> KernelPoint:
    """What the attention of all layers shares: the trees' ancestors and the pieces of the prefixes; 4-byte numbers."""
    traffic_bytes = 4 * (2 * requests + requests * nodes * (3 + -(-nodes // 64)))
    sizes = tree_attention(requests, nodes, keys, shape, dtype).sizes
    return KernelPoint(operator=SCHEDULE, dtype=dtype, sizes=sizes, traffic_bytes=traffic_bytes, flops=0)


def _moved(operator: str, dtype: Dtype, values: float, **sizes: int) -> KernelPoint:
    traffic_bytes = int(dtype.bytes_per_value * values)
    named = (("traffic_bytes", traffic_bytes), *sizes.items())
    return KernelPoint(operator=operator, dtype=dtype, sizes=named, traffic_bytes=traffic_bytes, flops=0)


def coarse_to_fine(points: Sequence[KernelPoint]) -> list[KernelPoint]:
    """The same points in an order of which every beginning covers the whole range: van der Corput's, in base 2."""
    bits = max(1, (len(points) - 1).bit_length())
    order = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1 << bits))
    return [points[i] for i in order if i < len(points)]


def interleaved(groups: Iterable[Sequence[KernelPoint]]) -> Iterator[KernelPoint]:
    """One point of every group in turn, each group coarse to fine."""
    queues = [coarse_to_fine(group) for group in groups if group]
    for i in range(max(map(len, queues), default=0)):
        yield from (queue[i] for queue in queues if i < len(queue))
