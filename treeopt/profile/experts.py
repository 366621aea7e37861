"""The routed experts of one layer: tokens sorted by expert, two grouped products, the sum of each token's results."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from treeopt.arrays import FloatArray, IntArray
from treeopt.cost.kernels.experts import popularity
from treeopt.profile.points import KernelPoint
from treeopt.profile.pool import TensorPool
from treeopt.profile.timer import input_sets
from treeopt.profile.workload import CheckedCall, Workload

_MOST_CHOICES: Final = 64


def experts_workload(point: KernelPoint, pool: TensorPool, sets: int, *, cold: float = 0.0) -> Workload:
    """torch's grouped product, over choices that are as popular as the point says; every call has choices of its own.

    The weights of all experts together are more than a cache for all but toys: sets of them are as many as it takes.
    """
    tokens, hidden, width, count = (point.size(name) for name in ("tokens", "hidden", "intermediate", "experts"))
    chosen, skew = point.size("per_token"), float(dict(point.sizes)["skewed"])
    torch, draws = pool.torch, np.random.default_rng(0)
    layers = input_sets(point.input_bytes, cold)
    up_shape, down_shape = (count, 2 * width, hidden), (count, hidden, width)
    pool.reserve(up_shape, down_shape, (tokens, hidden), sets=max(layers, 1))
    weights = [(pool.take(*up_shape), pool.take(*down_shape), pool.take(tokens, hidden)) for _ in range(layers)]
    share = popularity(count, chosen, skew) if skew else np.full(count, chosen / count)
    inputs = []
    for at in range(max(layers, min(sets, _MOST_CHOICES))):
        ids = torch.from_numpy(choices(share, tokens, draws)).to(pool.device)
        gates = torch.from_numpy(draws.dirichlet(np.ones(chosen), tokens)).to(pool.device, pool.dtype)
        inputs.append((*weights[at % layers], ids, gates))
    scale = hidden**-0.5  # results near 1, whatever the width
    call = partial(routed, torch, scale=scale)

    def check() -> CheckedCall:
        return CheckedCall(call(*inputs[0]), _exact(torch, *inputs[0], scale=scale))

    return Workload(calls=tuple(partial(call, *parts) for parts in inputs), check=check, terms=hidden + width)


def choices(share: FloatArray, tokens: int, draws: np.random.Generator) -> IntArray:
    """`[tokens, k]` distinct experts of each token, where `share [experts]` says how likely each is and sums to k.

    Systematic sampling meets every share exactly: k points, 1 apart, on the cumulated shares (Madow 1949).
    """
    at = draws.permutation(len(share))
    edges = np.cumsum(share[at])
    edges *= round(float(edges[-1])) / edges[-1]
    points = draws.random((tokens, 1)) + np.arange(round(float(edges[-1])))
    return np.asarray(at[np.minimum(np.searchsorted(edges, points, side="right"), len(share) - 1)])


def routed(torch: Any, up: Any, down: Any, x: Any, ids: Any, gates: Any, *, scale: float) -> Any:
    """`[tokens, hidden]` the sum of each token's experts, weighted by `gates`; no step waits for the device."""
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    tokens, chosen = ids.shape
    order = ids.flatten().argsort()
    experts = torch.arange(up.shape[0], device=x.device)
    ends = torch.searchsorted(ids.flatten()[order], experts, right=True).int()
    both = grouped(x[order // chosen], up.transpose(1, 2), offs=ends) * scale
    gate, straight = both.chunk(2, -1)
    found = grouped(torch.nn.functional.silu(gate) * straight, down.transpose(1, 2), offs=ends)
    found = found * gates.flatten()[order, None]
    return x.new_zeros((tokens, x.shape[1])).index_add_(0, order // chosen, found)


def _exact(torch: Any, up: Any, down: Any, x: Any, ids: Any, gates: Any, *, scale: float) -> Any:
    """Expert by expert in float64."""
    found = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in ids.unique().tolist():
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        gate, straight = (x[tokens].double() @ up[expert].double().T * scale).chunk(2, -1)
        values = (torch.nn.functional.silu(gate) * straight) @ down[expert].double().T
        found.index_add_(0, tokens, values * gates[tokens, slots].double()[:, None])
    return found
