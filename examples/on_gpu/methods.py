"""The kernel and what it is compared with, each checked before it is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from on_gpu.cases import COMPARED, FLEX_CASES, PAGES, Case, modelled

Method = Callable[[Case, Any, Any, int], Any]


def masked(case: Case, shape: Any, pool: Any, sets: int, *, repeat: bool) -> Any:
    """torch's attention with a Boolean mask: heads shared by torch, or KV heads stored once for every query head."""
    from treeopt.profile.attention import masked_workload

    s = case.sizes(shape)
    return masked_workload(replace(s, kv_heads=s.heads) if repeat else s, pool, sets)


def flex(case: Case, shape: Any, pool: Any, sets: int) -> Any:
    """FlexAttention with the tree as its mask; compiled on a GPU."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from treeopt.profile.attention import contiguous_workload, step_mask

    s = case.sizes(shape)
    mask = step_mask(pool.torch, s.nodes, s.prefix).to(pool.device)
    block = create_block_mask(
        lambda b, h, q, k: mask[q, k], None, None, s.nodes, s.prefix + s.nodes, device=pool.device
    )
    run = pool.torch.compile(flex_attention, dynamic=False) if pool.device == "cuda" else flex_attention
    return contiguous_workload(s, pool, sets, partial(run, block_mask=block, enable_gqa=s.heads != s.kv_heads), mask)


def chain(case: Case, shape: Any, pool: Any, sets: int) -> Any:
    """torch's causal attention, FlashAttention where torch has it: verifies a chain of N tokens, no tree."""
    from treeopt.profile.attention import contiguous_workload

    s, torch = case.sizes(shape), pool.torch
    keys = s.prefix + s.nodes
    mask = torch.ones(s.nodes, keys, dtype=torch.bool, device=pool.device).tril(s.prefix)
    bias = mask
    if pool.device == "cuda":
        from torch.nn.attention.bias import causal_lower_right

        bias = causal_lower_right(s.nodes, keys)
    attend = partial(torch.nn.functional.scaled_dot_product_attention, attn_mask=bias, enable_gqa=s.heads != s.kv_heads)
    return contiguous_workload(s, pool, sets, attend, mask)


def kernel(case: Case, shape: Any, pool: Any, sets: int, *, impl: str, page_size: int = 64) -> Any:
    from treeopt.profile.attention import kernel_workload

    return kernel_workload(case.sizes(shape), pool, sets, impl=impl, page_size=page_size)  # type: ignore[arg-type]


def own(device: str) -> tuple[str, Method]:
    """What the kernel is called, and itself; on a processor plain torch in its place."""
    name, impl = ("tree attention", "triton") if device == "cuda" else ("torch reference", "torch")
    return name, partial(kernel, impl=impl)


def methods(device: str) -> dict[str, Method]:
    name, run = own(device)
    return {
        name: run,
        **{f"the same, {where}": partial(run, page_size=size) for where, size in PAGES.items()},  # type: ignore[call-arg]
        "sdpa, mask": partial(masked, repeat=False),
        "sdpa, mask, KV repeated": partial(masked, repeat=True),
        "sdpa, chain only": chain,
    }


def said(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


def timed(bench: Any, case: Case, name: str, make: Method, deadline_s: float) -> dict[str, Any]:
    """One method on one case: its result is checked first, then it is timed."""
    from treeopt.profile.points import tree_attention
    from treeopt.profile.timer import input_sets

    shape, dtype, device = bench.shapes.grouped[0], bench.questions.dtype, bench.device
    point = tree_attention(case.requests, case.nodes, case.prefix + case.nodes, case.shape(shape), dtype)
    row: dict[str, Any] = {"case": str(case), **case._asdict(), "method": name}
    if time.monotonic() > deadline_s:
        return row | {"failed": "left out: no time"}
    try:
        work = make(case, shape, bench.pool, input_sets(point.traffic_bytes, bench.cold))
        error = work.error(point)
        timing = device.timer.time(work.calls)
    except Exception as problem:  # a baseline that this torch lacks must not end the run
        return row | {"failed": said(problem)}
    return row | {
        "time_s": timing.time_s,
        "spread": timing.spread,
        "error": error,
        "of_copy": point.traffic_bytes / timing.time_s / bench.ceilings.bandwidth_bytes_per_s,
        "of_product": point.flops / timing.time_s / bench.ceilings.flops_per_s,
    }


def compare(bench: Any, deadline_s: float) -> Iterator[dict[str, Any]]:
    """The kernel on the rows of the launch table, then every method on every case."""
    kind = bench.device.kind
    for case in modelled() if kind == "cuda" else ():
        yield timed(bench, case, *own(kind), deadline_s)
    for case in COMPARED[kind]:
        for name, make in methods(kind).items():
            yield timed(bench, case, name, make, deadline_s)


def compare_flex(bench: Any, deadline_s: float) -> Iterator[dict[str, Any]]:
    """FlexAttention, last: each case compiles for long."""
    for case in COMPARED[bench.device.kind][:FLEX_CASES]:
        yield timed(bench, case, "flex", flex, deadline_s)
