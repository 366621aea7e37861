"""Products in FP8: activations scaled token by token, weights by output channel, as engines serve `fp8` checkpoints."""

from __future__ import annotations

from functools import partial
from typing import Any

from treeopt.profile.elementwise import fused
from treeopt.profile.points import KernelPoint
from treeopt.profile.pool import TensorPool
from treeopt.profile.workload import CheckedCall, Workload, spread


def narrow_gemm_workload(point: KernelPoint, pool: TensorPool, sets: int) -> Workload:
    """Scales found, activations narrowed, the product of torch's `_scaled_mm`; weights are narrow already.

    Right is the product of the narrow values in float64: what narrowing costs in accuracy is the checkpoint's matter.
    """
    torch = pool.torch
    tokens, outputs, inputs = (point.size(name) for name in ("tokens", "outputs", "inputs"))
    pool.reserve((tokens, inputs), (outputs, inputs), sets=sets)
    narrowed = fused(pool, partial(narrow, torch))
    prepared = []
    for _ in range(sets):
        x, (w, w_scale) = pool.take(tokens, inputs), narrow(torch, pool.take(outputs, inputs))
        prepared.append((x, w.T, w_scale.T))

    def call(x: Any, w: Any, w_scale: Any) -> Any:
        values, scale = narrowed(x)
        return torch._scaled_mm(values, w, scale_a=scale, scale_b=w_scale, out_dtype=pool.dtype)

    def check() -> CheckedCall:
        x, w, w_scale = prepared[0]
        rows, columns = spread(pool, tokens), spread(pool, outputs)
        values, scale = narrowed(x)
        exact = (values[rows].double() * scale[rows].double()) @ (w.double() * w_scale.double())[:, columns]
        return CheckedCall(call(x, w, w_scale)[rows][:, columns], exact)

    return Workload(calls=tuple(partial(call, *parts) for parts in prepared), check=check, terms=inputs)


def scales_workload(point: KernelPoint, pool: TensorPool, sets: int) -> Workload:
    """The first part of such a product by itself; right is within the spacing of e4m3, an eighth."""
    torch = pool.torch
    shape = (point.size("tokens"), point.size("inputs"))
    pool.reserve(shape, sets=sets)
    inputs = [pool.take(*shape) for _ in range(sets)]
    narrowed = fused(pool, partial(narrow, torch))

    def check() -> CheckedCall:
        values, scale = narrowed(inputs[0])
        exact = inputs[0].double()
        found = values.double() * scale.double()
        # Half a spacing of e4m3 of a value, or of the least normal one, is rounding: what exceeds it is the error.
        allowed = torch.maximum(exact.abs() / 16, scale.double() * 2.0**-9)
        return CheckedCall(((found - exact).abs() / allowed).clamp(min=1.0).float(), torch.ones_like(exact))

    return Workload(calls=tuple(partial(narrowed, x) for x in inputs), check=check, terms=1)


def narrow(torch: Any, x: Any) -> tuple[Any, Any]:
    """e4m3 values of `[n, k]` and the scales `[n, 1]` that make the largest of each row 448."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448.0
    return (x / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale
