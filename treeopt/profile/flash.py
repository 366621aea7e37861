"""Flash attention of the engine that is installed: what verifies chains there, to time trees beside it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Final, NamedTuple

# `call(q, k, v, table, lengths)`: `q [B, N, heads, D]`, the last N of each request's tokens in pages `[pages, 64, KV
# heads, D]`, each seeing what stands before it.
Call = Callable[[Any, Any, Any, Any, Any], Any]


class Flash(NamedTuple):
    """Whose it is, and how it is called."""

    library: str
    call: Call


def _vllm(module: Any) -> Call:
    ends: dict[tuple[int, int], Any] = {}  # made before a graph is captured

    def call(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        sizes = requests, nodes = q.shape[0], q.shape[1]
        if sizes not in ends:
            ends[sizes] = lengths.new_tensor([nodes * request for request in range(requests + 1)])
        found = module.flash_attn_varlen_func(
            q=q.flatten(0, 1),
            k=k,
            v=v,
            cu_seqlens_q=ends[sizes],
            max_seqlen_q=nodes,
            seqused_k=lengths,
            max_seqlen_k=table.shape[1] * k.shape[1],
            causal=True,
            block_table=table,
        )
        return found.unflatten(0, (requests, nodes))

    return call


def _sglang(module: Any) -> Call:
    def call(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        return module.flash_attn_with_kvcache(
            q=q, k_cache=k, v_cache=v, page_table=table, cache_seqlens=lengths, causal=True
        )

    return call


_INSTALLED: Final = {"vllm.vllm_flash_attn": ("vllm", _vllm), "sgl_kernel.flash_attn": ("sgl_kernel", _sglang)}


def flash_attention() -> Flash | None:
    """The first that is installed; None without an engine."""
    for name, (library, make) in _INSTALLED.items():
        if importlib.util.find_spec(library) is not None:
            return Flash(library, make(importlib.import_module(name)))
    return None
