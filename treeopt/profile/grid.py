"""The points that a model's step needs timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.attention import Attention, GroupedAttention
from treeopt.cost.kernels.experts import MOST_SKEW
from treeopt.cost.kernels.gemm import Gemm
from treeopt.profile import points
from treeopt.profile.attention import LATENT_DIMS
from treeopt.profile.points import KernelPoint, interleaved
from treeopt.profile.shapes import Shapes

TOKENS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
FEW_TOKENS: Final = (1, 8, 64, 512, 4096)  # where a kernel is only set beside its price
REQUESTS: Final = (1, 4, 16, 64, 256)
FEW_REQUESTS: Final = (1, 2, 4)  # a fit leaves batch sizes out in turn: it needs three
NODES: Final = (1, 4, 8, 16, 32, 64)
KEYS: Final = (128, 512, 2048, 8192, 32768, 131072)
STREAM_BYTES: Final = tuple(1 << k for k in range(12, 28))  # 4 kB to 128 MB
MESSAGE_BYTES: Final = tuple(1 << k for k in range(12, 27))
MOVED: Final = (1, 2, 4, 8)
# A product of this many rows, columns and inputs shows the arithmetic's ceiling.
_MATMUL: Final = {"cpu": 2048, "cuda": 8192}
_COPY_BYTES: Final = {"cpu": 1 << 28, "cuda": 1 << 31}
# One point in turn of each group: the copies, of which a fit needs twelve, go in four groups.
_STREAM_GROUPS: Final = 4
_WIDTHS, _FITTED_INPUTS = 3, 512  # of activations: how many a fit of their scales needs, and how wide at least


@dataclass(frozen=True, kw_only=True)
class GridReach:
    """How far the questions go that the profile shall answer, and what there is to time them with.

    Attributes:
        max_tokens: B x N.
        max_keys: L + N.
        memory_bytes: what the inputs of one point may take.
        kernels: whether the Triton kernels run: other layouts of the cache and the schedule are timed too.
        flash: whether an engine's flash attention is installed.
        ranks: processes or GPUs that can sum messages.
        experts_dtype: what grouped products come in; None for none.
    """

    max_tokens: int = 512
    max_keys: int = 8192
    memory_bytes: float = 2e9
    kernels: bool = False
    flash: bool = False
    ranks: int = 1
    experts_dtype: Dtype | None = None


def grid(shapes: Shapes, dtype: Dtype, reach: GridReach) -> list[KernelPoint]:
    """The points of a step's kernels, so ordered that every beginning covers the whole range.

    In FP8 the weights of the layers are timed narrow and wide: a profile needs wide ones, of the LM head at least.
    """
    wide = dtype.wide
    tokens = [t for t in TOKENS if t <= reach.max_tokens]
    groups = [[points.gemm(t, weight, wide) for t in tokens] for weight in shapes.weights]
    groups += _narrow_groups(shapes, dtype, tokens)
    for shape in shapes.attention:
        groups += _attention_groups(shape, wide, reach)
    groups += [
        [points.stream(size, wide) for size in STREAM_BYTES[start::_STREAM_GROUPS]] for start in range(_STREAM_GROUPS)
    ]
    groups += _experts_groups(shapes, tokens, reach)
    if 1 < shapes.tp <= reach.ranks:
        groups.append([points.all_reduce(size, shapes.tp, wide) for size in MESSAGE_BYTES])
    for heads in shapes.grouped[:1]:
        pairs = [(b, m) for m in MOVED for b in _requests(reach) if b * (m + 1) <= reach.max_tokens]
        groups.append([points.compaction(b, m, shapes.layers, heads, wide) for b, m in pairs])
        groups += _beside_groups(heads, wide, reach)
    groups += _moved_groups(shapes, wide, reach)
    return [point for point in interleaved(groups) if point.input_bytes <= reach.memory_bytes]


def ceiling_points(
    dtype: Dtype, *, device: Literal["cpu", "cuda"], memory_bytes: float
) -> tuple[KernelPoint, KernelPoint]:
    """A large copy and a large matrix product, within the memory given."""
    side, copied, dtype = _MATMUL[device], _COPY_BYTES[device], dtype.wide
    while 3 * dtype.bytes_per_value * side * side > memory_bytes:
        side //= 2
    while copied > memory_bytes:
        copied //= 2
    return points.stream(copied, dtype), points.gemm(side, Gemm(side, side), dtype)


def _narrow_groups(shapes: Shapes, dtype: Dtype, tokens: list[int]) -> Iterator[list[KernelPoint]]:
    for weight in shapes.narrow:
        yield [points.gemm(t, weight, dtype) for t in tokens]
    inputs = sorted({weight.inputs for weight in shapes.narrow})
    while inputs and sum(width >= _FITTED_INPUTS for width in inputs) < _WIDTHS:
        inputs.append(2 * inputs[-1])
    for width in inputs:
        yield [points.activation_scales(t, width, dtype) for t in tokens]


def _attention_groups(shape: Attention, dtype: Dtype, reach: GridReach) -> Iterator[list[KernelPoint]]:
    lengths = [keys for keys in KEYS if keys <= reach.max_keys]
    for b in _requests(reach):
        sizes = [(b, n, keys) for keys in lengths for n in NODES if b * n <= reach.max_tokens]
        if isinstance(shape, GroupedAttention):
            yield [points.tree_attention(*size, shape, dtype) for size in sizes]
        elif (shape.kv_lora_rank, shape.qk_rope_head_dim) == LATENT_DIMS:
            yield [points.latent_attention(*size, shape, dtype) for size in sizes]


def _experts_groups(shapes: Shapes, tokens: list[int], reach: GridReach) -> Iterator[list[KernelPoint]]:
    """Balanced routing and the most skewed one: what lies between is priced between them."""
    if reach.experts_dtype is None:
        return
    for hidden, layer in shapes.experts:
        for skew in (0.0, MOST_SKEW):
            routing = replace(layer, skew=skew)
            yield [points.routed_experts(t, hidden, routing, reach.experts_dtype) for t in tokens]


def _beside_groups(shape: GroupedAttention, dtype: Dtype, reach: GridReach) -> Iterator[list[KernelPoint]]:
    """The same attention on other layouts, as chains by the engine's kernel, and what a step of it shares."""
    sizes = [
        (b, n, keys)
        for b in _requests(reach)[::2]
        for n in NODES[::3]
        for keys in KEYS[1::2]
        if b * n <= reach.max_tokens and keys <= reach.max_keys
    ]
    if reach.kernels:
        for operator in (points.PAGES_16, points.CONTIGUOUS):
            yield [points.tree_attention(*size, shape, dtype, operator=operator) for size in sizes]
        yield [points.schedule(*size, shape, dtype) for size in sizes]
    if reach.flash:
        yield [points.tree_attention(*size, shape, dtype, operator=points.FLASH) for size in sizes]


def _moved_groups(shapes: Shapes, dtype: Dtype, reach: GridReach) -> Iterator[list[KernelPoint]]:
    """What a step prices as streams of bytes."""
    tokens = [t for t in FEW_TOKENS if t <= reach.max_tokens]
    yield [points.norm(t, hidden, dtype) for hidden in shapes.hidden for t in tokens]
    yield [points.rope(t, shape, dtype) for shape in shapes.attention for t in tokens]
    yield [points.activation(t, width, dtype) for width in shapes.intermediate for t in tokens]
    counts = dict.fromkeys((layer.count, layer.per_token) for _, layer in shapes.experts)
    yield [points.expert_choice(t, *count, dtype) for count in counts for t in tokens]
    yield [points.sampling(t, shapes.vocab, dtype) for t in tokens]


def _requests(reach: GridReach) -> tuple[int, ...]:
    found = tuple(b for b in REQUESTS if b <= reach.max_tokens)
    return found if len(found) >= len(FEW_REQUESTS) else FEW_REQUESTS
