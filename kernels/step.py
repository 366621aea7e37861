"""What all layers of one verification step share: who sees whom in the tree, and how the prefixes are cut up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from treeopt.kernels.cache import Cache, SharedPrefixes, flat
from treeopt.kernels.chip import chip_of
from treeopt.kernels.config import AttentionConfig, HeadShape, attention_config
from treeopt.kernels.pieces import WorkList
from treeopt.kernels.schedule import schedule
from treeopt.kernels.slicing import Slicing, slicing
from treeopt.kernels.tensors import Impl, Taken, Tensor, check_tensor, choose, jitted, on_device, torch, wrong
from treeopt.kernels.trees import NodeTrees

NODES_AT_ONCE: Final = 64
WHOLE_TILES: Final = 64  # tokens: pages of a multiple hold whole tiles of every line


class Ancestors(NamedTuple):
    """`bits` `[T, words]` int64: bit j % 64 of word j // 64 says that the node sees node j; `depths` `[T]` int32."""

    bits: Tensor
    depths: Tensor
    impl: Taken


class Layout(NamedTuple):
    """What a step was prepared for; layers of another layout need a step of their own."""

    group: int  # query heads per KV head
    kv_heads: int
    shape: HeadShape
    dtype: Any
    kv_dtype: Any
    window: int  # tokens that a node sees, itself included; 0 is all


@dataclass(frozen=True, kw_only=True, eq=False)
class LaunchPlan:
    """What the attention kernel is launched with.

    Fields:
        config: its tiles.
        cut: how prefixes may be cut.
        schedule: how they are cut.
        partials: values `[rows, KV heads, Dv]` and log-sum-exp `[rows, KV heads]` of pieces, float32; layers run one
            after the other, so that they share them.
        tiles: row tiles of the grid.
        workers: programs that merge.
    """

    config: AttentionConfig
    cut: Slicing
    schedule: WorkList
    partials: tuple[Tensor, Tensor]
    tiles: int
    workers: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One verification step on the device, made by `prepare_step`, used by every layer with the same head shape."""

    trees: NodeTrees
    ancestors: Ancestors
    layout: Layout
    lengths: Tensor  # of the prefixes that were cut
    capacity: int
    shared: SharedPrefixes | None
    plan: LaunchPlan | None  # None where plain torch runs

    def check(self, lengths: Tensor) -> None:
        """Check that the prefixes still have the lengths that were cut; waits for the device.

        Raises:
            InputError: other lengths: the step is of an earlier batch, or of another cache.
        """
        if self.shared is not None:
            self.shared.check(lengths.tolist())
        if self.plan is None:
            return
        work, spans = self.plan.schedule.work.tolist(), self.plan.schedule.spans.tolist()
        for request, length in enumerate(lengths.tolist()):
            item, pieces = spans[request][:2]
            if pieces and work[item][9] != length:
                raise wrong(
                    "trees",
                    f"the step was prepared for a prefix of {work[item][9]} tokens of request {request}",
                    hint=f"the cache has {length}: prepare a step after every change of the lengths",
                )


def ancestors(trees: NodeTrees, *, impl: Impl = "auto") -> Ancestors:
    """Ancestor bits and depths of all nodes; a node's position is its request's L plus its depth.

    Raises:
        InputError: see `choose`.
    """
    if choose(impl, trees.parents) == "torch":
        return ancestors_reference(trees)
    nodes, words = trees.parents.shape[0], trees.words
    bits = torch.empty((nodes, words), dtype=torch.int64, device=trees.parents.device)
    depths = torch.empty((nodes,), dtype=torch.int32, device=trees.parents.device)
    with on_device(bits):
        jitted("_step_triton").ancestors_kernel[(trees.requests, -(-trees.max_nodes // NODES_AT_ONCE), words)](
            trees.parents, trees.offsets, bits, depths, words, BLOCK=NODES_AT_ONCE
        )
    return Ancestors(bits, depths, "triton")


def ancestors_reference(trees: NodeTrees) -> Ancestors:
    """`ancestors` in plain torch: every node takes over its parent's bits."""
    device = trees.parents.device
    seen, depths = [], []
    for tree in trees.lists():
        mask = torch.eye(len(tree), 64 * trees.words, dtype=torch.bool)
        depth = [0] * len(tree)
        for node, parent in enumerate(tree):
            if parent >= 0:
                mask[node] |= mask[parent]
                depth[node] = depth[parent] + 1
        seen.append(mask)
        depths += depth
    padding = trees.parents.shape[0] - len(depths)
    seen.append(torch.zeros(padding, 64 * trees.words, dtype=torch.bool))
    depths += [0] * padding
    shifts = torch.arange(64, dtype=torch.int64)
    mask = torch.cat(seen).view(-1, trees.words, 64).long()
    bits = (mask << shifts).sum(-1)
    return Ancestors(bits.to(device), torch.tensor(depths, dtype=torch.int32, device=device), "torch")


def prepare_step(
    q: Tensor,
    cache: Cache,
    trees: NodeTrees,
    *,
    window: int | None = None,
    shared: SharedPrefixes | None = None,
    impl: Impl = "auto",
    processors: int | None = None,
) -> Step:
    """Build what all layers of a step share: two small kernels, no wait for the device.

    Args:
        q: `[T, query heads, D]` queries of any layer; only their shape and dtype matter.
        cache: any layer's cache.
        trees: the trees to verify.
        window: tokens that a node sees, itself included, in layers with a sliding window; a step for each window.
        shared: beginnings of prefixes that requests share, read once for all of them; not together with a window.
        impl: what the attention will run on.
        processors: multiprocessors to fill; the device's own if None.

    Raises:
        InputError: a head shape that no configuration is for, heads that do not share out, see also `choose`.
    """
    layout = layout_of(q, cache, window)
    taken = choose(impl, q)
    if shared is not None:
        check_tensor("shared.tokens", shared.tokens, shape=("C",), dtype=torch.int32, like=cache.lengths)
        if window is not None:
            raise wrong("shared", "it is given together with a window", hint="leave it out for layers with a window")
    made = partial(Step, trees=trees, layout=layout, lengths=cache.lengths, capacity=cache.capacity, shared=shared)
    if taken == "torch":
        return made(ancestors=ancestors(trees, impl="torch"), plan=None)
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise wrong("q", f"its dtype is {q.dtype}", hint="the kernels take bfloat16, float16 and float32")
    return made(ancestors=ancestors(trees, impl="triton"), plan=_plan(q, cache, trees, layout, shared, processors))


def _plan(
    q: Tensor, cache: Cache, trees: NodeTrees, layout: Layout, shared: SharedPrefixes | None, processors: int | None
) -> LaunchPlan:
    chip = chip_of(q.device)
    if processors is not None:
        chip = replace(chip, processors=processors)
    rows = trees.max_nodes * layout.group
    # A shared piece has the rows of all requests that share it.
    shared_rows = trees.parents.shape[0] * layout.group if shared is not None else 0
    config = attention_config(
        shape=layout.shape,
        element_bytes=q.element_size(),
        rows=max(rows, shared_rows),
        chip=chip,
        tma=chip.tma and flat(cache.k) is not None and flat(cache.v) is not None and cache.page_size % WHOLE_TILES == 0,
    )
    cut = slicing(
        config=config,
        chip=chip,
        shape=layout.shape,
        element_bytes=q.element_size(),
        kv_bytes=cache.k.element_size(),
        requests=trees.requests + (shared.tokens.shape[0] if shared is not None else 0),
        rows=rows,
        group=layout.group,
        kv_heads=layout.kv_heads,
        capacity=cache.capacity,
        window=layout.window,
    )
    kept = cut.partial_rows(rows, shared_rows, trees.requests)
    values = torch.empty((kept, layout.kv_heads, layout.shape.values), dtype=torch.float32, device=q.device)
    return LaunchPlan(
        config=config,
        cut=cut,
        schedule=schedule(trees, cache.lengths, cut, shared=shared, impl="triton"),
        partials=(values, torch.empty(values.shape[:2], dtype=torch.float32, device=q.device)),
        tiles=-(-max(rows, shared_rows) // config.block_m),
        workers=cut.workers(trees.parents.shape[0], trees.requests),
    )


def layout_of(q: Tensor, cache: Cache, window: int | None = None) -> Layout:
    """The layout of a layer's queries and cache.

    Raises:
        InputError: query heads that do not share out over the KV heads, or a window of no tokens.
    """
    heads, kv_heads = int(q.shape[-2]), int(cache.k.shape[2])
    if heads == 0 or heads % kv_heads:
        raise wrong("q", f"{heads} query heads", hint=f"they have to share out over {kv_heads} KV heads")
    if window is not None and window < 1:
        raise wrong("window", f"it is {window}", hint="a node sees itself at least: give 1 or more, or None for all")
    shape = HeadShape(int(q.shape[-1]), int(cache.v.shape[-1]))
    return Layout(heads // kv_heads, kv_heads, shape, q.dtype, cache.k.dtype, window or 0)
