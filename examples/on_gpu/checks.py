"""Every path of the kernels against float64, in processes side by side that may die."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from on_gpu.cases import CHECKED, DTYPES, Case
from on_gpu.methods import kernel, said


class Check(NamedTuple):
    """One path of the kernels; picklable, so that it can run in a process of its own."""

    dtype: str
    heads: int
    kv_heads: int
    head_dim: int
    case: Case | None  # None: compaction
    page_size: int

    @property
    def name(self) -> str:
        where = f"pages of {self.page_size}" if self.page_size else "no pages"
        kind = f"tree attention {self.case}, {where}" if self.case else "compaction B=3, 4 rows, 2 layers"
        return f"{kind}, {self.heads}/{self.kv_heads} x {self.head_dim}"


def checks(device: str) -> list[Check]:
    """Every kernel case in every dtype, on every way to read a cache."""
    shapes = [(32, 8, 128), (9, 3, 64)] if device == "cuda" else [(9, 3, 64)]
    return [
        Check(dtype, *shape, case, page)
        for dtype in DTYPES[device]
        for shape in shapes
        for case in (*CHECKED[device], None)
        for page in ((64, 16, 0) if device == "cuda" and case is not None else (64,))
    ]


def checked(check: Check, device: str) -> dict[str, Any]:
    """The worst error against float64, beside what roundings explain; compiles what later processes find compiled."""
    from treeopt.cost.formats import Dtype
    from treeopt.cost.kernels.attention import GroupedAttention
    from treeopt.profile.points import compaction, tree_attention
    from treeopt.profile.pool import TensorPool
    from treeopt.profile.workloads import workload

    found: dict[str, Any] = {"kernel": check.name, "dtype": check.dtype}
    shape = GroupedAttention(heads=check.heads, kv_heads=check.kv_heads, head_dim=check.head_dim)
    try:
        pool = TensorPool(dtype=Dtype(check.dtype), device=device)
        if check.case is None:
            point = compaction(3, 4, 2, shape, Dtype(check.dtype))
            work = workload(point, pool, cold=0.0)
        else:
            case = check.case
            point = tree_attention(case.requests, case.nodes, case.prefix + case.nodes, shape, Dtype(check.dtype))
            work = kernel(case, shape, pool, 1, impl="triton", page_size=check.page_size)
        return found | {"error": work.error(point), "budget": work.budget(pool.dtype), "passed": True}
    except Exception as error:  # the report says what failed, the run goes on
        return found | {"passed": False, "failed": said(error)}


def all_checks(device: str, deadline_s: float) -> Iterator[dict[str, Any]]:
    """Side by side, where there is a GPU: what takes time is compiling. A process that dies takes its checks along."""
    todo = checks(device)
    if device == "cpu":
        yield from (checked(check, device) for check in todo)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed

    pool = ProcessPoolExecutor(min(12, os.cpu_count() or 1), mp_context=multiprocessing.get_context("spawn"))
    running = {pool.submit(checked, check, device): check for check in todo}
    try:
        for done in as_completed(running, timeout=max(1.0, deadline_s - time.monotonic())):
            check = running.pop(done)
            error = done.exception()
            found = (
                {"kernel": check.name, "dtype": check.dtype, "passed": False, "failed": said(error)} if error else None
            )
            yield found or done.result()
    except TimeoutError:
        for check in running.values():
            yield {"kernel": check.name, "dtype": check.dtype, "passed": False, "failed": "left out: no time"}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
