"""The calls behind a point of every operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from treeopt.cost.kernels.stand_ins import WIDE_FORMATS
from treeopt.profile import points
from treeopt.profile.attention import attention_workload, schedule_workload
from treeopt.profile.compaction import compaction_workload
from treeopt.profile.elementwise import elementwise_workload
from treeopt.profile.experts import experts_workload
from treeopt.profile.narrow import narrow_gemm_workload, scales_workload
from treeopt.profile.points import KernelPoint
from treeopt.profile.pool import TensorPool
from treeopt.profile.timer import input_sets
from treeopt.profile.workload import CheckedCall, Workload, spread

_ATTENTION = (points.ATTENTION, points.LATENT, points.PAGES_16, points.CONTIGUOUS, points.FLASH)
_ELEMENTWISE = (points.NORM, points.ROPE, points.ACTIVATION, points.CHOICE, points.SAMPLING)


def workload(point: KernelPoint, pool: TensorPool, *, cold: float) -> Workload:
    """Make a point ready on the pool's device; the sets of inputs together exceed `cold` bytes where they can."""
    makers: dict[str, Callable[[KernelPoint, TensorPool, int], Workload]] = {
        points.GEMM: _gemm if point.dtype in WIDE_FORMATS else narrow_gemm_workload,
        points.SCALES: scales_workload,
        points.EXPERTS: partial(experts_workload, cold=cold),
        points.STREAM: _stream,
        points.COMPACTION: compaction_workload,
        points.SCHEDULE: schedule_workload,
        **dict.fromkeys(_ATTENTION, attention_workload),
        **dict.fromkeys(_ELEMENTWISE, elementwise_workload),
    }
    return makers[point.operator](point, pool, input_sets(point.traffic_bytes, cold))


def _gemm(point: KernelPoint, pool: TensorPool, sets: int) -> Workload:
    linear = pool.torch.nn.functional.linear
    m, n, k = (point.size(name) for name in ("tokens", "outputs", "inputs"))
    pool.reserve((m, k), (n, k), sets=sets)
    inputs = [(pool.take(m, k), pool.take(n, k)) for _ in range(sets)]
    x, w = inputs[0]

    def check() -> CheckedCall:
        rows, columns = spread(pool, m), spread(pool, n)
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
