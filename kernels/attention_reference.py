"""Tree attention in plain torch: what runs off a GPU, and in float64 an oracle of the tests."""

from __future__ import annotations

import math
from typing import NamedTuple

from treeopt.kernels.cache import Cache
from treeopt.kernels.tensors import Taken, Tensor, torch
from treeopt.kernels.trees import NodeTrees


class TreeAttention(NamedTuple):
    """`out` `[T, query heads, Dv]` in the dtype of q, `lse` `[T, query heads]` float32, and what computed them."""

    out: Tensor
    lse: Tensor
    impl: Taken


def tree_attention_reference(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache: Cache,
    trees: NodeTrees,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> TreeAttention:
    """`tree_attention` in plain torch: scores and weights per request, in the dtype of q, softmax in float32 at least.

    With tensors in float64 it is an oracle of the tests.
    """
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    group, dim = q.shape[1] // cache.k.shape[2], cache.v.shape[3]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = q.new_zeros((*q.shape[:2], dim))
    lse = q.new_full(q.shape[:2], -torch.inf, dtype=torch.float32)
    offsets, lengths = trees.offsets.tolist(), cache.lengths.tolist()
    for request, tree in enumerate(trees.lists()):
        if not tree:
            continue
        mine, length = slice(offsets[request], offsets[request + 1]), lengths[request]
        stop = length + (len(tree) if k is None else 0)
        keys = _stored(cache.rows(cache.k, request, stop), cache.k_scale, q.dtype)
        values = _stored(cache.rows(cache.v, request, stop), cache.v_scale, q.dtype)
        if k is not None and v is not None:
            keys, values = torch.cat([keys, k[mine]]), torch.cat([values, v[mine]])
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("nhd,khd->hnk", q[mine], keys).to(wide) * scale
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        # 0 times NaN is NaN: a value that is no number reaches through its score the rows that see it, and no other.
        broken = ~values.isfinite().all(-1)
        scores += torch.where(broken, torch.nan, 0.0).T[:, None]
        values = values.masked_fill(broken[..., None], 0.0)
        scores.masked_fill_(~_step_mask(tree, length, window, q.device), -torch.inf)
        if sinks is not None:
            sink = sinks.to(wide)[:, None, None].expand(-1, len(tree), 1)
            scores, values = torch.cat([scores, sink], -1), torch.cat([values, torch.zeros_like(values[:1])])
        out[mine] = torch.einsum("hnk,khd->nhd", scores.softmax(-1).to(q.dtype), values)
        lse[mine] = scores.logsumexp(-1).T.float()
    return TreeAttention(out, lse, "torch")


def _stored(rows: Tensor, scale: Tensor | None, dtype: object) -> Tensor:
    """Cached rows as they are meant, with the scales of FP8 values."""
    return rows.to(dtype) if scale is None else (rows.float() * scale[:, None]).to(dtype)


def _step_mask(tree: list[int], length: int, window: int | None, device: object) -> Tensor:
    """`[N, L + N]` what the nodes see."""
    mask = torch.eye(len(tree), dtype=torch.bool, device=device)
    for node, parent in enumerate(tree):
        if parent >= 0:
            mask[node] |= mask[parent]
    if window is not None:
        depth = mask.sum(1) - 1
        mask &= depth[:, None] - depth[None, :] < window
        position = torch.arange(length, device=device)
        return torch.cat([length + depth[:, None] - position[None, :] < window, mask], 1)
    return torch.cat([mask.new_ones((len(tree), length)), mask], 1)
