"""Rows of multi-head latent attention: its kernel, or the whole block of DeepSeek-V3 around it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from treeopt.cost.fit.layout import RowFamily, RowLayout, ids
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Mask, Sample, fixed
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.attention import LatentAttention, latent_point, latent_work
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.times import KernelTimes

_HIDDEN: Final = 7168
_BLOCK: Final = LatentAttention(
    heads=1, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
)
_KEPT_REQUESTS: Final = 512
# What is left for the kernel of a block is never less than this share of the block.
_LEAST: Final = 0.05


def without_projections(rows: Rows, times: KernelTimes) -> Rows:
    """The rows with the GEMMs and copies of a whole block taken off, at the prices that a step adds back for them."""
    _, requests, _, heads, module = rows.sizes.T
    if not module.any():
        return rows
    taken_s = np.zeros(len(rows))
    for count in np.unique(heads).tolist():
        at = (heads == count) & (module == 1)
        block = replace(_BLOCK, heads=int(count))
        for weight in block.projections(_HIDDEN):
            taken_s[at] += times.gemm_s(requests[at], weight, Dtype.BF16)
        for values in block.moved_values:
            taken_s[at] += times.stream_s(2.0 * requests[at] * values)
    return replace(rows, time_s=np.maximum(rows.time_s - taken_s, _LEAST * rows.time_s))


def _kept(rows: Rows) -> Mask:
    return np.asarray(rows.column("requests") <= _KEPT_REQUESTS)


def _sample(rows: Rows, skew: float) -> Sample:
    keys, requests, queries, heads, _ = rows.sizes.T
    work = latent_work(requests, queries, keys, heads, kv_bytes=rows.dtype.bytes_per_value)
    shape = ids(heads)
    if shape.max(initial=0) < 2:  # one model's heads: leave out batch sizes instead
        shape = ids(requests, heads)
    return Sample(
        work=fixed(work),
        points=latent_point(requests, queries, heads),
        sweep=np.log(keys),
        time_s=rows.time_s,
        shape=shape,
        judged=np.ones(len(rows), dtype=np.bool_),
    )


# `step` tokens are in the cache before this one; `num_heads` are one GPU's.
_SIZES: Final = {"keys": "isl", "requests": "batch_size", "queries": "isl", "heads": "num_heads"}
LATENT_ROWS: Final = RowFamily(
    layouts=(
        RowLayout(
            name="latent attention block",
            family=Family.LATENT,
            needs=("mla_dtype", "gemm_type", "num_heads", "step"),
            sizes={**_SIZES, "module": 1},
            plus={"keys": "step"},
            dtype="kv_cache_dtype",
            only={"gemm_type": ("bfloat16",)},
        ),
        RowLayout(
            name="latent attention",
            family=Family.LATENT,
            needs=("mla_dtype", "num_heads", "step"),
            sizes={**_SIZES, "module": 0},
            plus={"keys": "step"},
            dtype="kv_cache_dtype",
        ),
    ),
    reaches=tuple((0.5 * scale, 0.5, 0.5 * scale) for scale in (0.5, 1.0, 2.0)),
    kept=_kept,
    sample=_sample,
)
