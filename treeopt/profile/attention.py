"""Tree attention as a step runs it: the Triton kernel on a GPU, torch's attention with a mask on a processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.attention import Attention, GroupedAttention
from treeopt.errors import InputError
from treeopt.extras import require
from treeopt.profile.flash import flash_attention
from treeopt.profile.points import CONTIGUOUS, FLASH, LATENT, PAGES_16, KernelPoint
from treeopt.profile.pool import TensorPool
from treeopt.profile.workload import CheckedCall, Workload

PAGE_SIZE: Final = 64
_PAGES: Final = {PAGES_16: 16, CONTIGUOUS: 0}
_SHORT: Final = 16
LATENT_DIMS: Final = (512, 64)  # of the latent, and of the key's part that is turned: what latent rows are of


@dataclass(frozen=True, kw_only=True)
class AttentionSizes:
    """B requests, N nodes each over a prefix of L, and the heads.

    The first `value_dim` of a key are its value; 0 where values are apart.
    """

    requests: int
    nodes: int
    prefix: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0

    @property
    def checked(self) -> list[int]:
        """The nodes whose rows are checked, of every request: the root, one in the middle, the last."""
        return sorted({0, self.nodes // 2, self.nodes - 1})

    @property
    def short(self) -> int:
        """Tokens of the prefix over which all rows are checked: so few that a missing one shows in sixteen bits."""
        return min(self.prefix, _SHORT)

    @classmethod
    def of(cls, point: KernelPoint) -> AttentionSizes:
        """Those of a point."""
        nodes, latent = point.size("queries"), point.operator == LATENT
        return cls(
            requests=point.size("requests"),
            nodes=nodes,
            prefix=point.size("keys") - nodes,
            heads=point.size("heads"),
            kv_heads=1 if latent else point.size("kv_heads"),
            head_dim=sum(LATENT_DIMS) if latent else point.size("head_dim"),
            value_dim=LATENT_DIMS[0] if latent else 0,
        )


def attention_workload(point: KernelPoint, pool: TensorPool, sets: int) -> Workload:
    """Binary trees (branches at every level, as drafted trees have) over prefixes of random keys and values."""
    sizes = AttentionSizes.of(point)
    if point.operator == FLASH:
        return flash_workload(sizes, pool, sets)
    if pool.device == "cpu":
        return masked_workload(sizes, pool, sets)
    return kernel_workload(sizes, pool, sets, page_size=_PAGES.get(point.operator, PAGE_SIZE))


def kernel_takes(shape: Attention, dtype: Dtype) -> bool:
    """Whether the Triton kernel has a configuration for these heads."""
    config = require("treeopt.kernels.config", extra="gpu")
    if isinstance(shape, GroupedAttention):
        dims = (shape.head_dim, shape.head_dim)
    else:
        dims = (shape.kv_values, shape.kv_lora_rank)
    sizes, bytes_ = config.HeadShape(*dims), int(dtype.bytes_per_value)
    try:
        config.attention_config(shape=sizes, element_bytes=bytes_, rows=1)
    except InputError:
        return False
    return True


def binary_parents(nodes: int) -> list[int]:
    """The parents of a binary tree, level by level; -1 for the root."""
    return [(node - 1) // 2 if node else -1 for node in range(nodes)]


def step_mask(torch: Any, nodes: int, prefix: int) -> Any:
    """`[N, L + N]` what the nodes of a binary tree see: the prefix, their ancestors, themselves."""
    tree = torch.eye(nodes, dtype=torch.bool)
    for node, parent in enumerate(binary_parents(nodes)):
        if parent >= 0:
            tree[node] |= tree[parent]
    return torch.cat([tree.new_ones(nodes, prefix), tree], dim=1)


def masked_workload(s: AttentionSizes, pool: TensorPool, sets: int) -> Workload:
    """torch's scaled dot-product attention with the step's mask, as models of Hugging Face call it."""
    masks = [step_mask(pool.torch, s.nodes, prefix).to(pool.device) for prefix in (s.prefix, s.short)]
    attend = pool.torch.nn.functional.scaled_dot_product_attention
    calls = [partial(attend, attn_mask=mask, enable_gqa=s.heads != s.kv_heads) for mask in masks]
    return contiguous_workload(s, pool, sets, calls[0], masks[0], attend_short=calls[1])


def contiguous_workload(
    s: AttentionSizes,
    pool: TensorPool,
    sets: int,
    attend: Callable[[Any, Any, Any], Any],
    mask: Any,
    *,
    attend_short: Callable[[Any, Any, Any], Any] | None = None,
) -> Workload:
    """`attend(q, k, v)` of `[B, heads, tokens, D]`, the tree's keys behind the prefix's; right is what `mask` says.

    `attend_short` is the same over the last `short` tokens of the prefix.
    """
    keys = s.prefix + s.nodes
    shapes = ((s.requests, s.heads, s.nodes, s.head_dim), *[(s.requests, s.kv_heads, keys, s.head_dim)] * 2)
    pool.reserve(*shapes, sets=sets)
    inputs = [(pool.take(*shapes[0]), *_keys_values(s, pool, shapes[1])) for _ in range(sets)]

    def check(attend: Callable[[Any, Any, Any], Any], prefix: int, nodes: list[int]) -> CheckedCall:
        q, k, v = inputs[0]
        k, v = (part[:, :, s.prefix - prefix :] for part in (k, v))
        seen = mask[nodes][:, s.prefix - prefix :]
        exact = [_exact(q[b, :, nodes], k[b], v[b], seen, pool) for b in range(s.requests)]
        return CheckedCall(attend(q, k, v)[:, :, nodes], pool.torch.stack(exact))

    return Workload(
        calls=tuple(partial(attend, *parts) for parts in inputs),
        check=partial(check, attend, s.prefix, s.checked),
        terms=keys + s.head_dim,
        check_small=attend_short and partial(check, attend_short, s.short, list(range(s.nodes))),
    )


def _keys_values(s: AttentionSizes, pool: TensorPool, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Keys and values of one shape; the values of latent attention are the first part of the keys."""
    keys = pool.take(*shape)
    return keys, keys[..., : s.value_dim] if s.value_dim else pool.take(*shape)


def _exact(q: Any, k: Any, v: Any, seen: Any, pool: TensorPool) -> Any:
    """`[heads, n, D]` in float64, of one request: all at once would take more memory than the inputs."""
    group = q.shape[0] // k.shape[0]
    k, v = (part.double().repeat_interleave(group, dim=0) for part in (k, v))
    scores = (q.double() @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(~seen, -pool.torch.inf)
    return scores.softmax(-1) @ v


def kernel_workload(
    s: AttentionSizes,
    pool: TensorPool,
    sets: int,
    *,
    impl: Literal["triton", "torch"] = "triton",
    page_size: int = PAGE_SIZE,
) -> Workload:
    """The kernel on pages in random order, the tree's keys beside them, one prepared step for all sets.

    A `page_size` of 0 is one stretch per request.
    """
    attention, caches, steps, trees = (
        require(f"treeopt.kernels.{name}", extra="gpu") for name in ("attention", "cache", "step", "trees")
    )
    torch, pages = pool.torch, -(-max(s.prefix, 1) // max(page_size, 1))
    forest = trees.NodeTrees.from_parents([binary_parents(s.nodes)] * s.requests, device=pool.device)
    lengths = torch.full((s.requests,), s.prefix, dtype=torch.int32, device=pool.device)
    stored = (s.requests * pages, page_size, s.kv_heads, s.head_dim)
    if not page_size:
        stored = (s.requests, pages, s.kv_heads, s.head_dim)
    rows = s.requests * s.nodes
    shapes = ((rows, s.heads, s.head_dim), *[(rows, s.kv_heads, s.head_dim)] * 2)
    pool.reserve(stored, stored, *shapes, sets=sets)

    def inputs() -> tuple[Any, ...]:
        cached = dict(zip("kv", _keys_values(s, pool, stored), strict=True))
        nodes = (pool.take(*shapes[0]), *_keys_values(s, pool, shapes[1]))
        if not page_size:
            return (*nodes, caches.ContiguousCache(**cached, lengths=lengths))
        order = torch.randperm(s.requests * pages, generator=pool.generator, device=pool.device)
        return (*nodes, caches.PagedCache(**cached, table=order.view(s.requests, pages).int(), lengths=lengths))

    prepared = [inputs() for _ in range(sets)]
    q, k, v, cache = prepared[0]
    step = steps.prepare_step(q, cache, forest, impl=impl)

    def attend(*arguments: Any, step: Any = step) -> Any:
        return attention.tree_attention(*arguments, step, impl=impl).out

    def check(cache: Any, step: Any, nodes: list[int]) -> CheckedCall:
        result = attend(q, k, v, cache, step=step).unflatten(0, (s.requests, s.nodes))[:, nodes]
        prefix = int(cache.lengths[0])
        seen = step_mask(torch, s.nodes, prefix).to(pool.device)[nodes]
        exact = []
        for request in range(s.requests):
            own = slice(request * s.nodes, (request + 1) * s.nodes)
            keys, values = (
                torch.cat([cache.rows(stored, request, prefix), part[own]]).transpose(0, 1)
                for stored, part in ((cache.k, k), (cache.v, v))
            )
            exact.append(_exact(q[own][nodes].transpose(0, 1), keys, values, seen, pool).transpose(0, 1))
        return CheckedCall(result, torch.stack(exact))

    def check_small() -> CheckedCall:
        short = replace(cache, lengths=torch.full_like(lengths, s.short))
        return check(short, steps.prepare_step(q, short, forest, impl=impl), list(range(s.nodes)))

    calls = tuple(partial(attend, *arguments) for arguments in prepared)
    return Workload(
        calls=calls,
        check=partial(check, cache, step, s.checked),
        terms=s.prefix + s.nodes + s.head_dim,
        check_small=check_small,
    )


def flash_workload(s: AttentionSizes, pool: TensorPool, sets: int) -> Workload:
    """A chain of N tokens at the end of pages of 64, through the flash attention of the engine that is installed."""
    flash = flash_attention()
    if flash is None:
        raise InputError("no engine's flash attention is installed", hint="install vllm or sgl_kernel")
    torch, keys = pool.torch, s.prefix + s.nodes
    pages = -(-keys // PAGE_SIZE)
    stored = (s.requests * pages, PAGE_SIZE, s.kv_heads, s.head_dim)
    shapes = ((s.requests, s.nodes, s.heads, s.head_dim), stored, stored)
    pool.reserve(*shapes, sets=sets)
    lengths = torch.full((s.requests,), keys, dtype=torch.int32, device=pool.device)

    def table() -> Any:
        order = torch.randperm(s.requests * pages, generator=pool.generator, device=pool.device)
        return order.view(s.requests, pages).int()

    inputs = [(*(pool.take(*shape) for shape in shapes), table(), lengths) for _ in range(sets)]

    def check() -> CheckedCall:
        q, k, v, pages, _ = inputs[0]
        seen = torch.ones(s.nodes, keys, dtype=torch.bool, device=pool.device).tril(s.prefix)[s.checked]
        exact = []
        for request in range(s.requests):
            rows, values = (part[pages[request].long()].flatten(0, 1)[:keys].transpose(0, 1) for part in (k, v))
            exact.append(_exact(q[request, s.checked].transpose(0, 1), rows, values, seen, pool).transpose(0, 1))
        return CheckedCall(flash.call(*inputs[0])[:, s.checked], torch.stack(exact))

    return Workload(calls=tuple(partial(flash.call, *parts) for parts in inputs), check=check, terms=keys + s.head_dim)


def schedule_workload(point: KernelPoint, pool: TensorPool, sets: int, *, impl: str = "triton") -> Workload:
    """What the attention of all layers of a step shares: ancestors, depths, pieces; right is what torch finds."""
    caches, steps, trees = (require(f"treeopt.kernels.{name}", extra="gpu") for name in ("cache", "step", "trees"))
    s, torch = AttentionSizes.of(point), pool.torch
    pages = -(-s.prefix // PAGE_SIZE)
    stored = (s.requests * pages, PAGE_SIZE, s.kv_heads, s.head_dim)
    queries = (s.requests * s.nodes, s.heads, s.head_dim)
    pool.reserve(stored, queries, sets=1)
    k, q = pool.take(*stored), pool.take(*queries)
    table = torch.arange(s.requests * pages, device=pool.device, dtype=torch.int32).view(s.requests, pages)
    lengths = torch.full((s.requests,), s.prefix, dtype=torch.int32, device=pool.device)
    forest = trees.NodeTrees.from_parents([binary_parents(s.nodes)] * s.requests, device=pool.device)
    call = partial(steps.prepare_step, q, caches.PagedCache(k=k, v=k, table=table, lengths=lengths), forest, impl=impl)

    def check() -> CheckedCall:
        seen = step_mask(torch, s.nodes, 0).sum(1) - 1
        return CheckedCall(call().ancestors.depths.float(), seen.to(pool.device).repeat(s.requests).double())

    return Workload(calls=(call,), check=check, terms=0)
