"""KV compaction as a step runs it: every layer's rows of the accepted path, in place."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from treeopt.extras import require
from treeopt.profile.points import KernelPoint
from treeopt.profile.pool import TensorPool
from treeopt.profile.workload import CheckedCall, Workload

# The k-th token of the accepted path was node 3 k: none but the root stands where it belongs.
_APART: Final = 3
_MOST_SETS: Final = 4  # few: a step moves rows that it wrote a moment ago, which no cold cache would show


def compaction_workload(point: KernelPoint, pool: TensorPool, sets: int) -> Workload:
    """The accepted rows of every request in every layer: one launch on a GPU, as the reference decoder on a processor.

    Args:
        point: its sizes `requests`, `moved` (rows per request), `layers`, `kv_heads`, `head_dim`. A GPU's tensors are
            [requests, slots, heads, width] as in engines' caches, a processor's [requests, heads, slots, width].
        pool: where the tensors lie.
        sets: how many caches are moved in turn, at most four.
    """
    requests, moved, layers = (point.size(name) for name in ("requests", "moved", "layers"))
    heads, width = point.size("kv_heads"), point.size("head_dim")
    slots, sets = _APART * moved + 1, min(sets, _MOST_SETS)
    on_gpu = pool.device != "cpu"
    shape = (requests, slots, heads, width) if on_gpu else (requests, heads, slots, width)
    pool.reserve(*[shape] * (2 * layers), sets=sets)
    stores = [[pool.take(*shape) for _ in range(2 * layers)] for _ in range(sets)]
    calls = [_by_kernel(store, moved) if on_gpu else _by_slots(store, moved) for store in stores]
    axis = 1 if on_gpu else 2

    def check() -> CheckedCall:
        path = pool.torch.arange(0, slots, _APART, device=pool.device)
        exact = pool.torch.stack([tensor.index_select(axis, path) for tensor in stores[0]]).double()
        calls[0]()
        return CheckedCall(pool.torch.stack([tensor.narrow(axis, 0, moved + 1) for tensor in stores[0]]), exact)

    return Workload(calls=tuple(calls), check=check, terms=0)


def _by_kernel(tensors: list[Any], moved: int) -> partial[Any]:
    torch, kernels = require("torch", extra="gpu"), require("treeopt.kernels.compaction", extra="gpu")
    requests, device = tensors[0].shape[0], tensors[0].device
    lengths = torch.zeros(requests, dtype=torch.int32, device=device)
    path = torch.arange(0, _APART * moved + 1, _APART, dtype=torch.int32, device=device)
    return partial(kernels.compact_kv, kernels.TokenStore.of(tensors), lengths, path.repeat(requests, 1))


def _by_slots(tensors: list[Any], moved: int) -> partial[Any]:
    cache = require("treeopt.decode.cache", extra="gpu").SlotCache()
    requests, _, slots, _ = tensors[0].shape
    cache.requests, cache.slots = requests, slots
    cache.layers = list(zip(tensors[::2], tensors[1::2], strict=True))
    path = np.tile(np.arange(0, slots, _APART), (requests, 1))
    return partial(cache.compact, path, lengths=np.zeros(requests, dtype=np.int64), rows=np.arange(requests))
