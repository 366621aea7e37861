"""Attention of a step's tokens over the slots of their requests: the seam at which a kernel is plugged in."""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol

import numpy as np

from treeopt.decode.models import softmax
from treeopt.decode.step import ForwardBatch
from treeopt.extras import require


class Attention(Protocol):
    """An attention function."""

    def __call__(self, q: Any, keys: Any, values: Any, mask: Any, step: ForwardBatch) -> Any:
        """`[A, H, M, D]` queries over `[A, H_kv, S, D]` slots to `[A, H, M, D]`.

        The slots already hold the step's own keys and values, at `step.starts + i`. `mask [A, M, S]` (torch, bool)
        says what each token sees; a kernel that needs the structure instead finds it in `step.trees` and `step.starts`.
        """


def masked_attention(q: Any, keys: Any, values: Any, mask: Any, step: ForwardBatch) -> Any:
    """The plain way, in the precision of its inputs, torch's or numpy's; see `Attention`."""
    group = q.shape[1] // keys.shape[1]
    if isinstance(q, np.ndarray):
        keys, values = keys.repeat(group, axis=1), values.repeat(group, axis=1)
        scores = np.where(mask[:, None], q @ keys.swapaxes(2, 3) / math.sqrt(q.shape[-1]), -np.inf)
        return softmax(scores) @ values
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = q @ keys.transpose(2, 3) / math.sqrt(q.shape[-1])
    return softmax(scores.masked_fill(~mask[:, None], -math.inf)) @ values


def kernel_attention(impl: Literal["triton", "torch"] = "triton") -> Attention:
    """Attention by `treeopt.kernels`: a tree's nodes by the kernel, plain text (which engines prefill) the plain way.

    Args:
        impl: "triton", which runs on a CPU only under Triton's interpreter, or "torch", the kernel's reference.
    """
    torch = require("torch", extra="gpu")
    from treeopt.kernels.attention import tree_attention
    from treeopt.kernels.cache import ContiguousCache
    from treeopt.kernels.trees import NodeTrees

    def attend(q: Any, keys: Any, values: Any, mask: Any, step: ForwardBatch) -> Any:
        if step.trees is None:
            return masked_attention(q, keys, values, mask, step)
        there = torch.arange(q.shape[2]) < torch.as_tensor(step.counts)[:, None]
        there = there.to(q.device)
        lengths = torch.as_tensor(step.starts, dtype=torch.int32, device=q.device)
        cache = ContiguousCache(k=keys.transpose(1, 2), v=values.transpose(1, 2), lengths=lengths)
        trees = NodeTrees.from_parents([tree.parents.tolist() for tree in step.trees.trees], device=q.device)
        found = tree_attention(q.transpose(1, 2)[there], None, None, cache, trees, impl=impl)
        out = q.new_zeros(q.transpose(1, 2).shape)
        out[there] = found.out
        return out.transpose(1, 2)

    return attend
