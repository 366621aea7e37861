"""What is timed: one kernel at one size, and the least time that it can take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.attention import GroupedAttention
from treeopt.cost.kernels.gemm import Gemm

GEMM: Final = "gemm"
ATTENTION: Final = "tree_attention"
STREAM: Final = "stream"
COMPACTION: Final = "compaction"


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The best rates that the device has shown: of a large copy and of a large matrix product."""

    bandwidth_bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, kw_only=True)
class KernelPoint:
    """One kernel at one size.

    Attributes:
        operator: as timing rows name it: `gemm`, `tree_attention`, `stream`, `compaction`.
        sizes: by name, those that rows of its family have.
        traffic_bytes: what it moves at least, every input cold and read once.
        flops: what it computes.
    """

    operator: str
    dtype: Dtype
    sizes: tuple[tuple[str, int], ...]
    traffic_bytes: int
    flops: int

    def document(self) -> dict[str, Any]:
        """As timing rows name it."""
        return {"operator": self.operator, "dtype": str(self.dtype), **dict(self.sizes)}

    def size(self, name: str) -> int:
        """One of its sizes."""
        return dict(self.sizes)[name]

    def floor_s(self, ceilings: Ceilings) -> float:
        """The theoretical least time: bytes over bandwidth or operations over peak, whichever takes longer.

        Source: Williams et al. 2009, "Roofline".
        """
        return max(self.traffic_bytes / ceilings.bandwidth_bytes_per_s, self.flops / ceilings.flops_per_s)

    def __str__(self) -> str:
        return f"{self.operator} {self.dtype}, " + ", ".join(f"{name} {value}" for name, value in self.sizes)


def gemm(tokens: int, weight: Gemm, dtype: Dtype) -> KernelPoint:
    """`tokens` through one weight."""
    return KernelPoint(
        operator=GEMM,
        dtype=dtype,
        sizes=(("tokens", tokens), ("outputs", weight.outputs), ("inputs", weight.inputs)),
        traffic_bytes=int(dtype.bytes_per_value * (weight.weights + tokens * weight.activations)),
        flops=2 * tokens * weight.weights,
    )


def tree_attention(requests: int, nodes: int, keys: int, shape: GroupedAttention, dtype: Dtype) -> KernelPoint:
    """`requests` trees of `nodes`, each over `keys`: its own prefix and the tree's; one layer."""
    rows = 2 * requests * nodes * shape.heads * shape.head_dim  # queries read, results written
    return KernelPoint(
        operator=ATTENTION,
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
