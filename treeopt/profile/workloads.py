"""The calls behind a point of every operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from treeopt.profile.attention import tree_attention_workload
from treeopt.profile.compaction import compaction_workload
from treeopt.profile.points import ATTENTION, COMPACTION, GEMM, STREAM, KernelPoint
from treeopt.profile.pool import TensorPool
from treeopt.profile.timer import input_sets
from treeopt.profile.workload import CheckedCall, Workload

# Every value of a GEMM is a sum of its own: so many rows and columns are checked, spread over all.
_CHECKED: Final = 128


def workload(point: KernelPoint, pool: TensorPool, *, cold: float) -> Workload:
    """Make a point ready on the pool's device; the sets of inputs together exceed `cold` bytes where they can."""
    makers: dict[str, Callable[[KernelPoint, TensorPool, int], Workload]] = {
        GEMM: _gemm,
        ATTENTION: tree_attention_workload,
        STREAM: _stream,
        COMPACTION: compaction_workload,
    }
    return makers[point.operator](point, pool, input_sets(point.traffic_bytes, cold))


def _gemm(point: KernelPoint, pool: TensorPool, sets: int) -> Workload:
    linear = pool.torch.nn.functional.linear
    m, n, k = (point.size(name) for name in ("tokens", "outputs", "inputs"))
    pool.reserve((m, k), (n, k), sets=sets)
    inputs = [(pool.take(m, k), pool.take(n, k)) for _ in range(sets)]
    x, w = inputs[0]

    def check() -> CheckedCall:
        rows, columns = _spread(pool, m), _spread(pool, n)
        return CheckedCall(linear(x, w)[rows][:, columns], x[rows].double() @ w[columns].double().T)

    return Workload(calls=tuple(partial(linear, x, w) for x, w in inputs), check=check, terms=k)


def _stream(point: KernelPoint, pool: TensorPool, sets: int) -> Workload:
    values = max(1, point.traffic_bytes // (2 * pool.dtype.itemsize))
    pool.reserve((values,), (values,), sets=sets)
    pairs = [(pool.take(values), pool.take(values)) for _ in range(sets)]
    source, target = pairs[0]

    def check() -> CheckedCall:
        return CheckedCall(target.copy_(source), source.double())

    return Workload(calls=tuple(partial(target.copy_, source) for source, target in pairs), check=check, terms=0)


def _spread(pool: TensorPool, size: int) -> Any:
    return pool.torch.linspace(0, size - 1, min(size, _CHECKED), device=pool.device).round().long()
