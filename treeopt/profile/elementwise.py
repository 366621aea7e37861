"""The kernels between the products of a step: norms, rotary positions, activations, choices of experts, sampling.

A step prices them as streams of their bytes; they are timed to say how far that is from what they take. On a GPU torch
compiles each into as few kernels as engines run; on a processor it runs as models of Hugging Face do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from treeopt.profile.points import ACTIVATION, CHOICE, NORM, ROPE, SAMPLING, KernelPoint
from treeopt.profile.pool import TensorPool
from treeopt.profile.workload import CheckedCall, Workload

_EPSILON: Final = 1e-6
_BASE: Final = 10_000.0

# What a kernel computes, and what of its result is compared: the same function in float64 is exact.
Compute = Callable[..., Any]


def elementwise_workload(point: KernelPoint, pool: TensorPool, sets: int) -> Workload:
    """Any of them, on random inputs; right is the same in float64."""
    shapes, compute, terms = _KINDS[point.operator](point, pool)
    pool.reserve(*shapes, sets=sets)
    inputs = [tuple(pool.take(*shape) for shape in shapes) for _ in range(sets)]
    run = fused(pool, compute)

    def check() -> CheckedCall:
        exact = compute(*(tensor.double() for tensor in inputs[0]))
        result = run(*inputs[0])
        if point.operator == SAMPLING:  # which token it is may depend on the order; its logit may not
            (logits,) = inputs[0]
            result, exact = (logits.gather(1, token[:, None]) for token in (result, exact))
        return CheckedCall(result, exact.double())

    return Workload(calls=tuple(partial(run, *tensors) for tensors in inputs), check=check, terms=terms)


def fused(pool: TensorPool, compute: Compute) -> Compute:
    """Compiled on a GPU, as it is on a processor."""
    if pool.device == "cpu":
        return compute
    compiled: Compute = pool.torch.compile(compute, dynamic=False)
    return compiled


_Kind = tuple[list[tuple[int, ...]], Compute, int]


def _norm(point: KernelPoint, pool: TensorPool) -> _Kind:
    tokens, hidden = point.size("tokens"), point.size("hidden")

    def compute(x: Any, residual: Any, weight: Any) -> Any:
        residual = x + residual
        return pool.torch.stack([residual, pool.torch.nn.functional.rms_norm(residual, (hidden,), weight, _EPSILON)])

    return [(tokens, hidden), (tokens, hidden), (hidden,)], compute, hidden


def _rope(point: KernelPoint, pool: TensorPool) -> _Kind:
    tokens, turned = point.size("tokens"), point.size("turned")
    torch = pool.torch
    steps = torch.arange(turned // 2, device=pool.device, dtype=torch.float64)
    angle = torch.arange(tokens, device=pool.device)[:, None, None] * _BASE ** (-2.0 * steps / turned)
    table = {dtype: (angle.cos().to(dtype), angle.sin().to(dtype)) for dtype in (pool.dtype, torch.float64)}

    def turn(x: Any) -> Any:
        cos, sin = table[x.dtype]
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    def compute(q: Any, k: Any, plain: Any) -> Any:
        return torch.cat([turn(q).flatten(1), turn(k).flatten(1), plain], 1)

    heads, kv_heads, plain = (point.size(name) for name in ("heads", "kv_heads", "plain"))
    return [(tokens, heads, turned), (tokens, kv_heads, turned), (tokens, plain)], compute, 2


def _activation(point: KernelPoint, pool: TensorPool) -> _Kind:
    tokens, width = point.size("tokens"), point.size("intermediate")

    def compute(both: Any) -> Any:
        gate, up = both.chunk(2, -1)
        return pool.torch.nn.functional.silu(gate) * up

    return [(tokens, 2 * width)], compute, 1


def _expert_choice(point: KernelPoint, pool: TensorPool) -> _Kind:
    tokens, count, chosen = point.size("tokens"), point.size("experts"), point.size("per_token")

    def compute(scores: Any) -> Any:
        weights, places = scores.float().softmax(-1).topk(chosen)
        return weights.to(scores.dtype) + 0 * places  # both are results

    return [(tokens, count)], compute, count


def _sampling(point: KernelPoint, pool: TensorPool) -> _Kind:
    def compute(logits: Any) -> Any:
        return logits.float().argmax(-1)

    return [(point.size("tokens"), point.size("vocab"))], compute, 0


_KINDS: Final[dict[str, Callable[[KernelPoint, TensorPool], _Kind]]] = {
    NORM: _norm,
    ROPE: _rope,
    ACTIVATION: _activation,
    CHOICE: _expert_choice,
    SAMPLING: _sampling,
}
