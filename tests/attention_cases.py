"""Inputs of the attention kernel, their float64 answer, and the error that a dtype may make."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

import torch

from treeopt.kernels.attention import TreeAttention, tree_attention_reference
from treeopt.kernels.cache import Cache, ContiguousCache, PagedCache
from treeopt.kernels.trees import NodeTrees

FLOAT32_SPACING = 2.0**-23


def random_tree(nodes: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(i) if i else -1 for i in range(nodes)]


def chain(nodes: int) -> list[int]:
    return list(range(-1, nodes - 1))


def star(nodes: int) -> list[int]:
    return [-1, *[0] * (nodes - 1)][:nodes]


def unequal(nodes: int) -> list[int]:
    """One long branch, leaves along it."""
    return [-1 if i == 0 else max(0, i - 1 - i % 2) for i in range(nodes)]


@dataclass(frozen=True, kw_only=True)
class Case:
    trees: tuple[list[int], ...]
    lengths: tuple[int, ...]
    kv_heads: int = 2
    group: int = 2
    dim: int = 64
    dim_v: int = 64
    page: int = 16  # 0 = contiguous
    dtype: torch.dtype = torch.float32
    in_cache: bool = False
    odd_strides: bool = False
    v_in_k: bool = False
    processors: int = 4
    seed: int = 0
    room: int = field(default=0)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"N={'/'.join(str(len(t)) for t in self.trees)},L={'/'.join(map(str, self.lengths))},{self.dim},{kind}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None
    cache: Cache
    trees: NodeTrees

    def double(self) -> Inputs:
        """The same values in float64."""
        cache = dataclasses.replace(self.cache, k=self.cache.k.double(), v=self.cache.v.double())
        k, v = (None if t is None else t.double() for t in (self.k, self.v))
        return Inputs(q=self.q.double(), k=k, v=v, cache=cache, trees=self.trees)

    @property
    def arguments(self) -> tuple[object, ...]:
        return self.q, self.k, self.v, self.cache, self.trees


def make(case: Case, device: str) -> Inputs:
    generator = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> torch.Tensor:
        """Random values; with odd strides between other numbers, which must not be read."""
        wide = shape if not case.odd_strides else (shape[0], *(2 * n for n in shape[1:-1]), shape[-1] + 16)
        values = torch.randn(wide, generator=generator).to(device=device, dtype=case.dtype)
        inner = tuple(slice(n, 2 * n) for n in shape[1:-1]) if case.odd_strides else ()
        return values[(slice(None), *inner, slice(shape[-1]))] if case.odd_strides else values

    trees = NodeTrees.from_parents(case.trees, device=device)
    nodes, requests = sum(map(len, case.trees)), len(case.trees)
    lengths = torch.tensor(case.lengths, dtype=torch.int32, device=device)
    room = max(length + len(tree) for length, tree in zip(case.lengths, case.trees, strict=True)) + case.room + 1
    shape = (requests, room) if case.page == 0 else (requests * -(-room // case.page), case.page)
    k = normal(*shape, case.kv_heads, case.dim)
    v = k[..., : case.dim_v] if case.v_in_k else normal(*shape, case.kv_heads, case.dim_v)
    cache: Cache
    if case.page:
        table = torch.randperm(shape[0], generator=generator).int().view(requests, -1).to(device)
        cache = PagedCache(k=k, v=v, table=table, lengths=lengths)
    else:
        cache = ContiguousCache(k=k, v=v, lengths=lengths)
    tree_k = normal(nodes, case.kv_heads, case.dim)
    tree_v = tree_k[..., : case.dim_v] if case.v_in_k else normal(nodes, case.kv_heads, case.dim_v)
    return Inputs(
        q=normal(nodes, case.kv_heads * case.group, case.dim),
        k=None if case.in_cache else tree_k,
        v=None if case.in_cache else tree_v,
        cache=cache,
        trees=trees,
    )


def worst_row(found: torch.Tensor, gold: torch.Tensor) -> float:
    """The largest error of a row of the output, as a share of a typical row."""
    if gold.numel() == 0:
        return 0.0
    return float((found.double() - gold).norm(dim=-1).max() / gold.norm(dim=-1).pow(2).mean().sqrt())


def assert_within_budget(found: TreeAttention, inputs: Inputs) -> None:
    """Against float64: twice the error of plain torch in that dtype, and the spacing of float32, the sums' own."""
    gold = tree_attention_reference(*inputs.double().arguments)
    plain = tree_attention_reference(*inputs.arguments)
    assert found.out.dtype == inputs.q.dtype
    assert worst_row(found.out, gold.out) <= 2 * worst_row(plain.out, gold.out) + FLOAT32_SPACING
    exact = gold.lse.double()
    allowed = 2 * (plain.lse - exact).abs().max() + 4 * FLOAT32_SPACING * exact.abs().clamp(min=1).max()
    assert (found.lse - exact).abs().max() <= allowed
