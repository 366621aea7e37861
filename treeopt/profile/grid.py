"""The points that a model's step needs timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.attention import GroupedAttention
from treeopt.cost.kernels.gemm import Gemm
from treeopt.profile.points import KernelPoint, compaction, gemm, interleaved, stream, tree_attention
from treeopt.profile.shapes import Shapes

TOKENS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
REQUESTS: Final = (1, 4, 16, 64, 256)
FEW_REQUESTS: Final = (1, 2, 4)  # a fit leaves batch sizes out in turn: it needs three
NODES: Final = (1, 4, 8, 16, 32, 64)
KEYS: Final = (128, 512, 2048, 8192, 32768, 131072)
STREAM_BYTES: Final = tuple(1 << k for k in range(12, 28))  # 4 kB to 128 MB
MOVED: Final = (1, 2, 4, 8)
# A product of this many rows, columns and inputs shows the arithmetic's ceiling.
_MATMUL: Final = {"cpu": 2048, "cuda": 8192}
_COPY_BYTES: Final = {"cpu": 1 << 28, "cuda": 1 << 31}
# One point in turn of each group: the copies, of which a fit needs twelve, go in four groups.
_STREAM_GROUPS: Final = 4


@dataclass(frozen=True, kw_only=True)
class GridReach:
    """How far the questions go that the profile shall answer.

    Attributes:
        max_tokens: B x N.
        max_keys: L + N.
        memory_bytes: what the inputs of one point may take.
    """

    max_tokens: int = 512
    max_keys: int = 8192
    memory_bytes: float = 2e9


def grid(shapes: Shapes, dtype: Dtype, reach: GridReach) -> list[KernelPoint]:
    """The points of a step's kernels, so ordered that every beginning covers the whole range.

    Experts and messages between GPUs are not among them: torch has no kernel of its own that engines use for them.
    """
    tokens = [t for t in TOKENS if t <= reach.max_tokens]
    groups = [[gemm(t, weight, dtype) for t in tokens] for weight in shapes.weights]
    for shape in shapes.attention:
        groups += _attention_groups(shape, dtype, reach)
    groups += [[stream(size, dtype) for size in STREAM_BYTES[start::_STREAM_GROUPS]] for start in range(_STREAM_GROUPS)]
    for shape in shapes.attention[:1]:
        pairs = [(b, m) for m in MOVED for b in _requests(reach) if b * (m + 1) <= reach.max_tokens]
        groups.append([compaction(b, m, shapes.layers, shape, dtype) for b, m in pairs])
    return [point for point in interleaved(groups) if point.traffic_bytes <= reach.memory_bytes]


def ceiling_points(dtype: Dtype, *, device: str, memory_bytes: float) -> tuple[KernelPoint, KernelPoint]:
    """A large copy and a large matrix product, within the memory given."""
    side, copied = _MATMUL[device], _COPY_BYTES[device]
    while 3 * dtype.bytes_per_value * side * side > memory_bytes:
        side //= 2
    while copied > memory_bytes:
        copied //= 2
    return stream(copied, dtype), gemm(side, Gemm(side, side), dtype)


def _attention_groups(shape: GroupedAttention, dtype: Dtype, reach: GridReach) -> list[list[KernelPoint]]:
    lengths = [keys for keys in KEYS if keys <= reach.max_keys]
    return [
        [tree_attention(b, n, keys, shape, dtype) for keys in lengths for n in NODES if b * n <= reach.max_tokens]
        for b in _requests(reach)
    ]


def _requests(reach: GridReach) -> tuple[int, ...]:
    found = tuple(b for b in REQUESTS if b <= reach.max_tokens)
    return found if len(found) >= len(FEW_REQUESTS) else FEW_REQUESTS
