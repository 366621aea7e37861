"""Attention of all nodes of all draft trees over their prefixes and their ancestors."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

from treeopt.kernels.attention_reference import TreeAttention, tree_attention_reference
from treeopt.kernels.cache import Cache, ContiguousCache, PagedCache, flat
from treeopt.kernels.chip import chip_of
from treeopt.kernels.config import LATENT, AttentionConfig, split_dim
from treeopt.kernels.slicing import MERGE_PIECES
from treeopt.kernels.step import Layout, Step, layout_of, prepare_step
from treeopt.kernels.tensors import (
    Impl,
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


def tree_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache: Cache,
    trees: NodeTrees | Step,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    impl: Impl = "auto",
    debug: bool = False,
) -> TreeAttention:
    """Attention of draft-tree nodes: each sees the whole prefix of its request, its ancestors, and itself.

    Rows behind the last tree are 0, their log-sum-exp -inf. A NaN of one node reaches those that see it.

    Args:
        q: `[T, query heads, D]`, nodes of all requests in order; BF16, FP16 or FP32.
        k: `[T, KV heads, D]` keys of the nodes, in the dtype of q, or None: they are in the cache, node i at L + i.
        v: `[T, KV heads, Dv]` values of the nodes, None with `k`.
        cache: the committed prefixes.
        trees: the trees, or the step that `prepare_step` made of them, which all layers share.
        scale: of the scores; 1 / sqrt(D) if None.
        window: tokens that a node sees, itself included: of its prefix and its ancestors the nearest (Mistral, Gemma).
        softcap: scores become softcap x tanh(score / softcap) (Gemma 2).
        sinks: `[query heads]` float32, a score without a value that joins each softmax (gpt-oss).
        impl: "triton", "torch", or "auto": Triton on CUDA, torch elsewhere; the result says which.
        debug: also check parents, lengths and pages, which waits for the device.

    Raises:
        InputError: an argument of a wrong shape, dtype, stride or device, or not supported; the message names it.
        TreeError: with `debug`, a tree whose parents do not come first.
    """
    tree_rows = trees.trees if isinstance(trees, Step) else trees
    _check(q, k, v, cache, tree_rows)
    layout = layout_of(q, cache, window)
    if sinks is not None:
        check_tensor("sinks", sinks, shape=(q.shape[1],), dtype=torch.float32, like=q, dense=True)
    if softcap is not None and softcap <= 0:
        raise wrong("softcap", f"it is {softcap}", hint="give a positive number, or None for no cap")
    if debug:
        tree_rows.check()
        extra = [len(tree) if k is None else 0 for tree in tree_rows.lists()]
        cache.check([length + more for length, more in zip(cache.lengths.tolist(), extra, strict=True)])
        if isinstance(trees, Step):
            trees.check(cache.lengths)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    taken = choose(impl, q)
    if taken == "torch" or q.shape[0] == 0:
        return tree_attention_reference(
            q, k, v, cache, tree_rows, scale=scale, window=window, softcap=softcap, sinks=sinks
        )
    step = trees if isinstance(trees, Step) else prepare_step(q, cache, trees, window=window, impl=taken)
    _check_step(step, layout, cache)
    with on_device(q):
        return _launch(q, k, v, cache, step, scale, softcap or 0.0, sinks)


def _check(q: Tensor, k: Tensor | None, v: Tensor | None, cache: Cache, trees: NodeTrees) -> None:
    if not isinstance(cache, PagedCache | ContiguousCache):
        raise wrong("cache", f"it is a {type(cache).__name__}", hint="give a PagedCache or a ContiguousCache")
    nodes, (kv_heads, dim), dim_v = trees.parents.shape[0], cache.k.shape[2:], cache.v.shape[3]
    stored = q.dtype if cache.k_scale is not None else cache.k.dtype  # FP8 caches are read into the queries' dtype
    check_tensor("q", q, shape=(nodes, "heads", dim), dtype=stored, like=cache.k)
    if (k is None) != (v is None):
        raise wrong("k" if k is None else "v", "only one of k and v is given", hint="give both, or none")
    if k is not None:
        check_tensor("k", k, shape=(nodes, kv_heads, dim), dtype=q.dtype, like=q)
        check_tensor("v", v, shape=(nodes, kv_heads, dim_v), dtype=q.dtype, like=q)
    if trees.requests != cache.lengths.shape[0]:
        raise wrong("trees", f"{trees.requests} trees", hint=f"the cache has {cache.lengths.shape[0]} requests")
    check_tensor("trees.parents", trees.parents, shape=(nodes,), dtype=torch.int32, like=q)


def _launch(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache: Cache,
    step: Step,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
) -> TreeAttention:
    plan, trees, layout = step.plan, step.trees, step.layout
    assert plan is not None
    config, schedule = plan.config, plan.schedule
    in_k = _values_in_keys(cache.k, cache.v) and (k is None or _values_in_keys(k, v))
    if layout.shape in LATENT and not in_k:
        raise wrong("v", "it is not a part of k", hint="latent values are views of the keys: k[..., :512]")
    out = torch.empty((*q.shape[:2], layout.shape.values), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    (qk0, qk1), (v0, v1) = (split_dim(d, element_bytes=q.element_size()) for d in layout.shape)
    paged = isinstance(cache, PagedCache)
    fp8 = _fp8(cache.k)
    stored = [t.view(torch.uint8) if fp8 == "bits" else t for t in (cache.k, cache.v)]
    descriptors = _descriptors(cache, stored[0], stored[1], config.block_n) if qk1 == v1 == 0 and not in_k else None
    no_tree, scale_stride = (q, 0, 0), int(cache.k_scale is not None and cache.k_scale.numel() > 1)
    programs = plan.cut.items * layout.kv_heads * plan.tiles
    jitted("_attention_triton").attention_kernel[(programs + plan.workers,)](
        *(q, *q.stride()[:2]),
        *(no_tree if k is None else (k, *k.stride()[:2])),
        *(no_tree if v is None else (v, *v.stride()[:2])),
        *(out, *out.stride()[:2]),
        *(part for tensor in stored for part in (tensor, *tensor.stride()[:3])),
        *(descriptors or (None, None)),
        *(cache.k_scale, cache.v_scale, scale_stride),
        sinks,
        *((cache.table, cache.table.stride(0)) if isinstance(cache, PagedCache) else (cache.lengths, 0)),
        step.ancestors.bits,
        step.ancestors.depths,
        lse,
        schedule.work,
        schedule.spans,
        schedule.tasks,
        schedule.counters,
        *plan.partials,
        cache.capacity,
        q.shape[0],
        trees.words,
        plan.cut.items,
        plan.tiles,
        programs,
        scale,
        NUM_KV_HEADS=layout.kv_heads,
        GROUP_SIZE=layout.group,
        GROUP_POW2=1 << (layout.group - 1).bit_length(),
        PAGE_SIZE=cache.page_size if paged else 0,
        WINDOW=layout.window,
        SOFTCAP=softcap,
        TREE_IN_CACHE=k is None,
        V_IN_K=in_k,
        USE_TMA=descriptors is not None,
        FP8=fp8,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        TAIL_N=config.tail_n,
        HEAD_DIM_0=qk0,
        HEAD_DIM_1=qk1,
        VALUE_DIM_0=v0,
        VALUE_DIM_1=v1,
        MERGE_PIECES=MERGE_PIECES,
        MERGE_ROWS=plan.cut.merge_rows,
        PRECISION=_precision(),
        UPCAST=q.dtype == torch.bfloat16 and interpreting(),
        num_warps=config.num_warps,
        num_stages=config.stages(paged=paged),
        **_limits(config),
    )
    return TreeAttention(out, lse, "triton")


def _check_step(step: Step, layout: Layout, cache: Cache) -> None:
    if step.plan is None:
        raise wrong("trees", "the step was prepared for plain torch", hint="prepare it with impl='triton'")
    if step.layout != layout:
        raise wrong("trees", f"the step was prepared for {step.layout}", hint=f"here it needs one for {layout}")
    if cache.lengths.data_ptr() != step.lengths.data_ptr() or cache.capacity < step.capacity:
        raise wrong(
            "trees",
            "the step was prepared for a cache of other lengths",
            hint="give all layers of a step the same tensor of lengths, and other lengths a step of their own",
        )


def _fp8(k: Tensor) -> str:
    """How e4m3 is read: by an instruction, from its bits where the chip has none, "" where the cache has no FP8."""
    if k.dtype != torch.float8_e4m3fn:
        return ""
    return "native" if chip_of(k.device).fp8 and not interpreting() else "bits"


def _limits(config: AttentionConfig) -> dict[str, int]:
    """NVIDIA's register limit, which Triton for other devices does not know."""
    return {} if config.maxnreg is None or torch.version.hip else {"maxnreg": config.maxnreg}


def _values_in_keys(k: Tensor, v: Tensor) -> bool:
    """Whether v is the first power of two of k's dimensions, so that one read serves both."""
    same = k.data_ptr() == v.data_ptr() and k.stride() == v.stride()
    return bool(same and v.shape[-1] == split_dim(k.shape[-1])[0])


def _precision() -> str:
    """Three TF32 products for float32 on NVIDIA's tensor cores; sixteen-bit products are exact either way."""
    return "ieee" if torch.version.hip else "tf32x3"


def _descriptors(cache: Cache, k: Tensor, v: Tensor, keys: int) -> tuple[Any, Any] | None:
    """Tensor-memory-accelerator descriptors of K and V as `[tokens, heads x D]`, where layout and device allow."""
    if (isinstance(cache, PagedCache) and cache.page_size % keys) or not chip_of(k.device).tma:
        return None
    views = flat(k), flat(v)
    if any(view is None for view in views) or not importlib.util.find_spec("triton.tools.tensor_descriptor"):
        return None
    make = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor.from_tensor
    return make(views[0], [keys, k.shape[3]]), make(views[1], [keys, v.shape[3]])
