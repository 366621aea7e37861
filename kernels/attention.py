"""Attention of all nodes of all draft trees over their prefixes and their ancestors."""

from __future__ import annotations

import importlib.util
import math
from typing import Any, Final, NamedTuple

from treeopt.kernels.cache import Cache, ContiguousCache, PagedCache
from treeopt.kernels.config import AttentionConfig, split_dim
from treeopt.kernels.step import Step, layout_of, prepare_step
from treeopt.kernels.tensors import (
    Impl,
    Taken,
    Tensor,
    check_tensor,
    choose,
    interpreting,
    jitted,
    on_device,
    torch,
    wrong,
)
from treeopt.kernels.trees import NodeTrees

LOG2_E: Final = math.log2(math.e)
MERGE_ELEMENTS: Final = 4096  # partial values that a program of the merge reads at once
MERGE_PIECES: Final = 8
VALUES_IN_KEYS: Final = ((576, 512),)  # head shapes that are compiled for one read of both


class TreeAttention(NamedTuple):
    """`out` `[T, query heads, Dv]` in the dtype of q, `lse` `[T, query heads]` float32, and what computed them."""

    out: Tensor
    lse: Tensor
    impl: Taken


def tree_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache: Cache,
    trees: NodeTrees | Step,
    *,
    scale: float | None = None,
    impl: Impl = "auto",
    debug: bool = False,
) -> TreeAttention:
    """Attention of draft-tree nodes: each sees the whole prefix of its request, its ancestors, and itself.

    Rows behind the last tree are 0, their log-sum-exp -inf. A NaN of one node reaches those that see it.

    Args:
        q: `[T, query heads, D]`, nodes of all requests in order; BF16, FP16 or FP32.
        k: `[T, KV heads, D]` keys of the nodes, or None: they are in the cache, node i at position L + i.
        v: `[T, KV heads, Dv]` values of the nodes, None with `k`.
        cache: the committed prefixes.
        trees: the trees, or the step that `prepare_step` made of them, which all layers share.
        scale: of the scores; 1 / sqrt(D) if None.
        impl: "triton", "torch", or "auto": Triton on CUDA, torch elsewhere; the result says which.
        debug: also check parents, lengths and pages, which waits for the device.

    Raises:
        InputError: an argument of a wrong shape, dtype, stride or device, or not supported; the message names it.
        TreeError: with `debug`, a tree whose parents do not come first.
    """
    tree_rows = trees.trees if isinstance(trees, Step) else trees
    _check(q, k, v, cache, tree_rows)
    if debug:
        tree_rows.check()
        extra = [len(tree) if k is None else 0 for tree in tree_rows.lists()]
        cache.check([length + more for length, more in zip(cache.lengths.tolist(), extra, strict=True)])
        if isinstance(trees, Step):
            trees.check(cache.lengths)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    taken = choose(impl, q)
    if taken == "torch" or q.shape[0] == 0:
        return tree_attention_reference(q, k, v, cache, tree_rows, scale=scale)
    step = trees if isinstance(trees, Step) else prepare_step(q, cache, trees, impl=taken)
    with on_device(q):
        return _launch(q, k, v, cache, step, scale)


def tree_attention_reference(
    q: Tensor, k: Tensor | None, v: Tensor | None, cache: Cache, trees: NodeTrees, *, scale: float | None = None
) -> TreeAttention:
    """`tree_attention` in plain torch: scores and weights per request, in the dtype of q, softmax in float32 at least.

    With tensors in float64 it is the oracle of the tests.
    """
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    group, dim = q.shape[1] // cache.k.shape[2], cache.v.shape[3]
    out = q.new_zeros((*q.shape[:2], dim))
    lse = q.new_full(q.shape[:2], -torch.inf, dtype=torch.float32)
    offsets, lengths = trees.offsets.tolist(), cache.lengths.tolist()
    for request, tree in enumerate(trees.lists()):
        if not tree:
            continue
        mine, length = slice(offsets[request], offsets[request + 1]), lengths[request]
        stop = length + (len(tree) if k is None else 0)
        keys, values = cache.rows(cache.k, request, stop), cache.rows(cache.v, request, stop)
        if k is not None and v is not None:
            keys, values = torch.cat([keys, k[mine]]), torch.cat([values, v[mine]])
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("nhd,khd->hnk", q[mine], keys)
        scores = scores.to(torch.promote_types(q.dtype, torch.float32)) * scale
        # 0 times NaN is NaN: a value that is no number reaches through its score the rows that see it, and no other.
        broken = ~values.isfinite().all(-1)
        scores += torch.where(broken, torch.nan, 0.0).T[:, None]
        values = values.masked_fill(broken[..., None], 0.0)
        scores.masked_fill_(~_step_mask(tree, length, q.device), -torch.inf)
        out[mine] = torch.einsum("hnk,khd->nhd", scores.softmax(-1).to(q.dtype), values)
        lse[mine] = scores.logsumexp(-1).T.float()
    return TreeAttention(out, lse, "torch")


def _step_mask(tree: list[int], length: int, device: object) -> Tensor:
    mask = torch.eye(len(tree), dtype=torch.bool, device=device)
    for node, parent in enumerate(tree):
        if parent >= 0:
            mask[node] |= mask[parent]
    return torch.cat([mask.new_ones((len(tree), length)), mask], 1)


def _check(q: Tensor, k: Tensor | None, v: Tensor | None, cache: Cache, trees: NodeTrees) -> None:
    if not isinstance(cache, PagedCache | ContiguousCache):
        raise wrong("cache", f"it is a {type(cache).__name__}", hint="give a PagedCache or a ContiguousCache")
    nodes, (kv_heads, dim), dim_v = trees.parents.shape[0], cache.k.shape[2:], cache.v.shape[3]
    check_tensor("q", q, shape=(nodes, "heads", dim), dtype=cache.k.dtype, like=cache.k)
    if (k is None) != (v is None):
        raise wrong("k" if k is None else "v", "only one of k and v is given", hint="give both, or none")
    if k is not None:
        check_tensor("k", k, shape=(nodes, kv_heads, dim), dtype=q.dtype, like=q)
        check_tensor("v", v, shape=(nodes, kv_heads, dim_v), dtype=q.dtype, like=q)
    layout_of(q, cache)
    if trees.requests != cache.lengths.shape[0]:
        raise wrong("trees", f"{trees.requests} trees", hint=f"the cache has {cache.lengths.shape[0]} requests")
    check_tensor("trees.parents", trees.parents, shape=(nodes,), dtype=torch.int32, like=q)


def _launch(q: Tensor, k: Tensor | None, v: Tensor | None, cache: Cache, step: Step, scale: float) -> TreeAttention:
    config, schedule, trees = step.config, step.schedule, step.trees
    layout = layout_of(q, cache)
    if config is None or schedule is None:
        raise wrong("trees", "the step was prepared for plain torch", hint="prepare it with impl='triton'")
    if step.layout != layout:
        raise wrong("trees", f"the step was prepared for {step.layout}", hint=f"here it needs one for {layout}")
    if cache.lengths.data_ptr() != step.lengths.data_ptr() or cache.capacity < step.capacity:
        raise wrong(
            "trees",
            "the step was prepared for a cache of other lengths",
            hint="give all layers of a step the same tensor of lengths, and other lengths a step of their own",
        )
    in_k = _values_in_keys(cache.k, cache.v) and (k is None or _values_in_keys(k, v))
    if layout.shape in VALUES_IN_KEYS and not in_k:
        raise wrong("v", "it is not a part of k", hint="latent values are views of the keys: k[..., :512]")
    kv_heads, dim_v = layout.kv_heads, layout.shape.values
    out = torch.empty((*q.shape[:2], dim_v), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    rows, items = trees.max_nodes * layout.group, schedule.work.shape[0]
    split = items > trees.requests
    parts = _parts(q, items if split else 1, kv_heads, rows, dim_v)
    (qk0, qk1), (v0, v1) = (split_dim(d, element_bytes=q.element_size()) for d in layout.shape)
    paged = isinstance(cache, PagedCache)
    descriptors = _descriptors(cache, config.block_n) if qk1 == v1 == 0 and not in_k else None
    no_tree = (q, 0, 0)
    jitted("_attention_triton").attention_kernel[(-(-rows // config.block_m), kv_heads, items)](
        *(q, *q.stride()[:2]),
        *(no_tree if k is None else (k, *k.stride()[:2])),
        *(no_tree if v is None else (v, *v.stride()[:2])),
        *(out, *out.stride()[:2]),
        *(cache.k, *cache.k.stride()[:3]),
        *(cache.v, *cache.v.stride()[:3]),
        *(descriptors or (None, None)),
        *((cache.table, cache.table.stride(0)) if isinstance(cache, PagedCache) else (cache.lengths, 0)),
        cache.capacity,
        schedule.work,
        step.ancestors.bits,
        trees.words,
        lse,
        *parts,
        rows,
        q.shape[0],
        scale * LOG2_E,
        GROUP_SIZE=layout.group,
        GROUP_POW2=1 << (layout.group - 1).bit_length(),
        PAGE_SIZE=cache.page_size if paged else 0,
        TREE_IN_CACHE=k is None,
        V_IN_K=in_k,
        USE_TMA=descriptors is not None,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        TAIL_N=config.tail_n,
        HEAD_DIM_0=qk0,
        HEAD_DIM_1=qk1,
        VALUE_DIM_0=v0,
        VALUE_DIM_1=v1,
        PRECISION=_precision(),
        UPCAST=q.dtype == torch.bfloat16 and interpreting(),
        num_warps=config.num_warps,
        num_stages=config.stages(paged=paged),
        **_limits(config),
    )
    if split:
        _merge(parts, out, lse, step, rows, (v0, v1))
    return TreeAttention(out, lse, "triton")


def _merge(
    parts: tuple[Tensor, Tensor], out: Tensor, lse: Tensor, step: Step, rows: int, dims: tuple[int, int]
) -> None:
    assert step.schedule is not None
    block = merge_rows(dims[0])
    grid = (-(-rows // block), step.layout.kv_heads, step.trees.requests)
    jitted("_merge_triton").merge_kernel[grid](
        parts,
        (out, *out.stride()[:2]),
        lse,
        step.schedule.spans,
        step.trees.offsets,
        rows,
        GROUP=step.layout.group,
        V0=dims[0],
        V1=dims[1],
        ROWS=block,
        PIECES=MERGE_PIECES,
        num_warps=4,
    )


def _limits(config: AttentionConfig) -> dict[str, int]:
    """NVIDIA's register limit, which Triton for other devices does not know."""
    return {} if config.maxnreg is None or torch.version.hip else {"maxnreg": config.maxnreg}


def merge_rows(dim: int) -> int:
    """Rows per program of the merge, for values of `dim` elements."""
    return max(1, MERGE_ELEMENTS // (MERGE_PIECES * dim))


def _parts(q: Tensor, items: int, kv_heads: int, rows: int, dim_v: int) -> tuple[Tensor, Tensor]:
    values = torch.empty((items, kv_heads, rows, dim_v), dtype=torch.float32, device=q.device)
    return values, torch.empty((items, kv_heads, rows), dtype=torch.float32, device=q.device)


def _values_in_keys(k: Tensor, v: Tensor) -> bool:
    """Whether v is the first power of two of k's dimensions, so that one read serves both."""
    same = k.data_ptr() == v.data_ptr() and k.stride() == v.stride()
    return bool(same and v.shape[-1] == split_dim(k.shape[-1])[0])


def _precision() -> str:
    """Three TF32 products for float32 on NVIDIA's tensor cores; sixteen-bit products are exact either way."""
    return "ieee" if torch.version.hip else "tf32x3"


def _descriptors(cache: Cache, keys: int) -> tuple[Any, Any] | None:
    """Tensor-memory-accelerator descriptors of K and V as `[tokens, heads x D]`, where layout and device allow."""
    if isinstance(cache, PagedCache) and cache.page_size % keys:
        return None
    if torch.version.hip or (cache.k.is_cuda and torch.cuda.get_device_capability(cache.k.device) < (9, 0)):
        return None
    k, v = _flat(cache.k), _flat(cache.v)
    if k is None or v is None or not importlib.util.find_spec("triton.tools.tensor_descriptor"):
        return None
    make = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor.from_tensor
    return make(k, [keys, cache.k.shape[3]]), make(v, [keys, cache.v.shape[3]])


def _flat(tensor: Tensor) -> Tensor | None:
    """`[tokens, heads x D]` view, or None where strides or alignment forbid it."""
    blocks, tokens, heads, dim = tensor.shape
    block_stride, token_stride, head_stride, _ = tensor.stride()
    bytes_ = tensor.element_size()
    if block_stride != tokens * token_stride or (heads > 1 and head_stride != dim):
        return None
    if (token_stride * bytes_) % 16 or tensor.data_ptr() % 16:
        return None
    return tensor.as_strided((blocks * tokens, heads * dim), (token_stride, 1))
