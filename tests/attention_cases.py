"""Inputs of the attention kernel, their float64 answer, and the error that a dtype may make."""

from __future__ import annotations

import dataclasses
import mmap
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from treeopt.kernels.attention import TreeAttention, tree_attention_reference
from treeopt.kernels.cache import Cache, ContiguousCache, PagedCache, SharedPrefixes
from treeopt.kernels.step import Step, prepare_step
from treeopt.kernels.trees import NodeTrees

FLOAT32_SPACING = 2.0**-23
NORESERVE = 0x4000  # Linux; Python names it from 3.13 on


def sparse(elements: int, device: str = "cpu") -> torch.Tensor:
    """Float16 memory of which only touched pages exist."""
    if device == "cuda":
        return torch.empty(elements, dtype=torch.float16, device=device)
    memory = mmap.mmap(-1, 2 * elements, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    return torch.frombuffer(memory, dtype=torch.float16)


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
    fp8: str = ""  # "tensor" or "heads": one scale of the cache, or one per KV head
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    shared: tuple[tuple[int, int], ...] = ()  # (requests, tokens) of groups of requests

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
    options: dict[str, Any] = field(default_factory=dict)  # of the call
    shared: SharedPrefixes | None = None

    def double(self) -> Inputs:
        """The same values in float64."""
        cache = dataclasses.replace(self.cache, k=self.cache.k.double(), v=self.cache.v.double())
        k, v = (None if t is None else t.double() for t in (self.k, self.v))
        return Inputs(q=self.q.double(), k=k, v=v, cache=cache, trees=self.trees, options=self.options)

    def step(self, *, impl: str = "triton", processors: int | None = None) -> Step:
        """Prepared for these."""
        window = self.options.get("window")
        return prepare_step(
            self.q, self.cache, self.trees, window=window, shared=self.shared, impl=impl, processors=processors
        )

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
    scales: dict[str, torch.Tensor] = {}
    if case.fp8:
        k, v = k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)
        v = k[..., : case.dim_v] if case.v_in_k else v
        count = 1 if case.fp8 == "tensor" else case.kv_heads
        draws = [0.25 + torch.rand(count, generator=generator) for _ in range(2)]
        scales = dict(zip(("k_scale", "v_scale"), [d.to(device) for d in draws], strict=True))
    if case.page:
        table = torch.randperm(shape[0], generator=generator).int().view(requests, -1).to(device)
        first = 0
        for count, tokens in case.shared:  # the first request's pages, those that are shared whole
            table[first : first + count, : tokens // case.page] = table[first, : tokens // case.page].clone()
            first += count
        cache = PagedCache(k=k, v=v, table=table, lengths=lengths, **scales)
    else:
        cache = ContiguousCache(k=k, v=v, lengths=lengths, **scales)
    options = {"window": case.window, "softcap": case.softcap}
    heads = case.kv_heads * case.group
    options["sinks"] = torch.randn(heads, generator=generator).to(device) if case.sinks else None
    shared = None
    if case.shared:
        counts, tokens = zip(*case.shared, strict=True)
        ends = [sum(counts[:i]) for i in range(len(counts) + 1)]
        whole = [n // case.page * case.page for n in tokens]
        shared = SharedPrefixes(
            offsets=torch.tensor(ends, dtype=torch.int32, device=device),
            tokens=torch.tensor(whole, dtype=torch.int32, device=device),
        )
    tree_k = normal(nodes, case.kv_heads, case.dim)
    tree_v = tree_k[..., : case.dim_v] if case.v_in_k else normal(nodes, case.kv_heads, case.dim_v)
    return Inputs(
        q=normal(nodes, heads, case.dim),
        k=None if case.in_cache else tree_k,
        v=None if case.in_cache else tree_v,
        cache=cache,
        trees=trees,
        options=options,
        shared=shared,
    )


def worst_row(found: torch.Tensor, gold: torch.Tensor) -> float:
    """The largest error of a row of the output, as a share of a typical row."""
    if gold.numel() == 0:
        return 0.0
    return float((found.double() - gold).norm(dim=-1).max() / gold.norm(dim=-1).pow(2).mean().sqrt())


def path_by_path(inputs: Inputs) -> TreeAttention:
    """Every node as the last token of a text of its own: prefix, ancestors, itself; NumPy in float64, one by one."""
    cache, group = inputs.cache, inputs.q.shape[1] // inputs.cache.k.shape[2]
    scales = [1.0 if s is None else s.double().cpu().numpy()[:, None] for s in (cache.k_scale, cache.v_scale)]
    q = inputs.q.double().cpu().numpy()
    window, softcap, sinks = (inputs.options.get(name) for name in ("window", "softcap", "sinks"))
    sums = np.full(q.shape[:2], -np.inf)
    out = np.zeros((*q.shape[:2], cache.v.shape[3]))
    row = 0
    for request, tree in enumerate(inputs.trees.lists()):
        length, first = int(cache.lengths[request]), row
        stored = [
            cache.rows(part.float(), request, length + (len(tree) if inputs.k is None else 0)).double().cpu().numpy()
            * s
            for part, s in zip((cache.k, cache.v), scales, strict=True)
        ]
        for node in range(len(tree)):
            path = [node]
            while tree[path[0]] >= 0:
                path.insert(0, tree[path[0]])
            keys, values = (
                np.concatenate([part[:length], part[[length + n for n in path]]])
                if own is None
                else np.concatenate([part[:length], own[[first + n for n in path]].double().cpu().numpy()])
                for part, own in zip(stored, (inputs.k, inputs.v), strict=True)
            )
            keys, values = (part[-window:] if window else part for part in (keys, values))
            for head in range(q.shape[1]):
                scores = keys[:, head // group] @ q[row, head] / np.sqrt(q.shape[2])
                scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
                joined = scores if sinks is None else np.append(scores, float(sinks[head]))
                most = joined.max()
                sums[row, head] = most + np.log(np.exp(joined - most).sum())
                out[row, head] = np.exp(scores - sums[row, head]) @ values[:, head // group]
            row += 1
    return TreeAttention(torch.from_numpy(out), torch.from_numpy(sums), "torch")


def assert_within_budget(found: TreeAttention, inputs: Inputs, gold: TreeAttention | None = None) -> None:
    """Against float64: twice the error of plain torch in that dtype, and the spacing of float32, the sums' own.

    A soft cap rounds scores as large as itself: its spacing comes on top. Plain torch may be right by luck where rows
    have few keys: half a spacing of the dtype for the weights and half for the result are allowed in any case, of the
    row itself.
    """
    gold = gold or tree_attention_reference(*inputs.double().arguments, **inputs.options)
    plain = tree_attention_reference(*inputs.arguments, **inputs.options)
    spacing = FLOAT32_SPACING * (1 + 4 * (inputs.options.get("softcap") or 0))
    assert found.out.dtype == inputs.q.dtype
    right = gold.out.double().cpu()
    own = torch.finfo(inputs.q.dtype).eps * right.norm(dim=-1)
    errors = (found.out.cpu().double() - right).norm(dim=-1)
    typical = right.norm(dim=-1).pow(2).mean().sqrt() if right.numel() else 0.0
    assert (errors <= torch.maximum(own, typical * (2 * worst_row(plain.out.cpu(), right) + spacing))).all()
    exact = gold.lse.double().cpu()
    allowed = 2 * (plain.lse.cpu() - exact).abs().max() + 4 * spacing * exact.abs().clamp(min=1).max()
    assert (found.lse.cpu() - exact).abs().max() <= allowed
