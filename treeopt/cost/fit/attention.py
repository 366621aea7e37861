"""Rows of attention: one query per request, whole prompts, or trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from treeopt.cost.fit.layout import KEPT_WHOLE, RowFamily, RowLayout, ids
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Mask, Sample, fixed
from treeopt.cost.kernels.attention import attention_point, attention_work
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.roofline import Roofline

_KEPT_REQUESTS: Final = 512
_KEPT_GROUPS: Final = (1, 2, 4, 5, 6, 7, 8, 12, 16)
_KEPT_HEAD_DIMS: Final = (64, 80, 96, 112, 128, 192, 256)
# Arithmetic this large bounds a prefill kernel; its median rate is what attention computes at.
_PREFILL_FLOPS: Final = 1e11
_PREFILL_SHARPNESS: Final = 3.0
_HEADS: Final = {"heads": "num_heads", "kv_heads": "num_key_value_heads", "requests": "batch_size"}


def with_arithmetic(sample: Sample, rows: Rows) -> Sample:
    """Rows with the operations that a sample leaves out where every row has one query."""
    keys, requests, queries, heads, kv_heads, head_dim, _ = rows.sizes.T
    kv_bytes = rows.dtype.bytes_per_value
    return replace(sample, work=fixed(attention_work(requests, queries, keys, heads, kv_heads, head_dim, kv_bytes)))


def prefill_arithmetic(form: Roofline, given: Rows, otherwise: float) -> Roofline:
    """Decode rows say nothing on arithmetic: its rate is the median of large prefill rows, where there are any."""
    causal = given.where(given.column("causal") == 1)
    keys, requests, queries, heads, _, head_dim, _ = causal.sizes.T
    flops = 2.0 * requests * queries * (keys + 1.0) * heads * head_dim  # each query meets half of the keys
    large = flops >= _PREFILL_FLOPS
    rate = float(np.median(flops[large] / (causal.time_s[large] - form.launch_s))) if large.any() else otherwise
    return replace(form, peak_flops=rate, sharpness=_PREFILL_SHARPNESS)


def _kept(rows: Rows) -> Mask:
    group = rows.column("heads") / rows.column("kv_heads")
    served = np.isin(group, _KEPT_GROUPS) & np.isin(rows.column("head_dim"), _KEPT_HEAD_DIMS)
    served &= rows.column("requests") <= _KEPT_REQUESTS
    return np.asarray(((len(rows) <= KEPT_WHOLE) | served) & (rows.column("causal") == 0))


def _sample(rows: Rows, skew: float) -> Sample:
    keys, requests, queries, heads, kv_heads, head_dim, _ = rows.sizes.T
    work = attention_work(requests, queries, keys, heads, kv_heads, head_dim, rows.dtype.bytes_per_value)
    if (queries == 1).all():  # memory bounds them all: a peak could take any value
        work = work._replace(flops=np.zeros(len(rows)))
    shape = ids(heads, kv_heads, head_dim)
    if shape.max() < 2:  # one model's heads: leave out batch sizes instead
        shape = ids(requests, heads, kv_heads)
    return Sample(
        work=fixed(work),
        points=attention_point(requests, queries, heads, kv_heads, head_dim),
        sweep=np.log(keys),
        time_s=rows.time_s,
        shape=shape,
        judged=np.ones(len(rows), dtype=np.bool_),
    )


ATTENTION_ROWS: Final = RowFamily(
    layouts=(
        RowLayout(
            name="decode attention",
            family=Family.ATTENTION,
            needs=("num_key_value_heads", "kv_len"),
            sizes={**_HEADS, "keys": "kv_len", "queries": 1, "head_dim": 128, "causal": 0},
            dtype="kv_cache_dtype",
        ),
        # `step` tokens are in the cache before this one; context tables have none.
        RowLayout(
            name="attention table",
            family=Family.ATTENTION,
            needs=("num_key_value_heads", "isl", "step", "head_dim"),
            sizes={**_HEADS, "keys": "isl", "queries": "isl", "head_dim": "head_dim", "causal": 1},
            plus={"keys": "step"},
            dtype="kv_cache_dtype",
            only={"window_size": ("0",), "attn_dtype": ("bfloat16",)},
        ),
        RowLayout(
            name="context attention",
            family=Family.ATTENTION,
            needs=("num_key_value_heads", "isl", "latency_us"),
            sizes={**_HEADS, "keys": "isl", "queries": "isl", "head_dim": 128, "causal": 1},
            dtype="kv_cache_dtype",
        ),
    ),
    reaches=tuple((0.25 * scale, 0.7 * scale, 0.2, 0.4) for scale in (0.5, 1.0, 2.0)),
    kept=_kept,
    sample=_sample,
)
