"""What all layers of one verification step share: who sees whom in the tree, and how the prefixes are cut up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from treeopt.kernels.cache import Cache
from treeopt.kernels.config import HOPPER, AttentionConfig, HeadShape, attention_config
from treeopt.kernels.tensors import Impl, Taken, Tensor, choose, jitted, on_device, torch, wrong
from treeopt.kernels.trees import NodeTrees

# A piece of n rows writes 4 n D bytes of partial results, and the merge reads them again; a token's K and V take
# 4 D bytes. Eight tokens per row keep the partials below a quarter of the traffic. From RIDGE_ROWS rows on arithmetic
# is what costs, which grows with the rows as the partials do, so that a longer chunk would only idle processors.
TOKENS_PER_ROW: Final = 8
RIDGE_ROWS: Final = 256
START_TOKENS: Final = 64  # what starting a program costs, in tokens that it could have read
MAX_SPLITS: Final = 64
INTERPRETED_PROCESSORS: Final = 4
WORK_FIELDS: Final = 8  # request, start, stop, is the last piece, first node, nodes, pieces, nodes of all trees


class Ancestors(NamedTuple):
    """`bits` `[T, words]` int64: bit j % 64 of word j // 64 says that the node sees node j; `depths` `[T]` int32."""

    bits: Tensor
    depths: Tensor
    impl: Taken


class Schedule(NamedTuple):
    """`work` `[items, 8]` and `spans` `[B, 2]` (first item, items), both int32: which program reads what."""

    work: Tensor
    spans: Tensor
    impl: Taken


@dataclass(frozen=True, kw_only=True)
class Slicing:
    """How prefixes may be cut, known without reading the device.

    Fields:
        items: pieces in all, the grid's size.
        slots: pieces that run at once.
        min_chunk: fewest tokens of a piece.
        overhead: what one more piece costs, in tokens.
        splits: most pieces of a request.
        keys: chunks are multiples of this.
    """

    items: int
    slots: int
    min_chunk: int
    overhead: int
    splits: int
    keys: int


class Layout(NamedTuple):
    """What a step was prepared for; layers of another layout need a step of their own."""

    group: int  # query heads per KV head
    kv_heads: int
    shape: HeadShape
    dtype: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One verification step on the device, made by `prepare_step`, used by every layer with the same head shape."""

    trees: NodeTrees
    ancestors: Ancestors
    schedule: Schedule | None  # None where plain torch runs
    config: AttentionConfig | None
    layout: Layout
    lengths: Tensor  # of the prefixes that were cut
    capacity: int

    def check(self, lengths: Tensor) -> None:
        """Check that the prefixes still have the lengths that were cut; waits for the device.

        Raises:
            InputError: other lengths: the step is of an earlier batch, or of another cache.
        """
        if self.schedule is None:
            return
        last = self.schedule.work[self.schedule.spans.sum(1).long() - 1]
        for request, (length, cut) in enumerate(zip(lengths.tolist(), last[:, 2].tolist(), strict=True)):
            if length != cut:
                raise wrong(
                    "trees",
                    f"the step was prepared for a prefix of {cut} tokens of request {request}",
                    hint=f"the cache has {length}: prepare a step after every change of the lengths",
                )


def ancestors(trees: NodeTrees, *, impl: Impl = "auto") -> Ancestors:
    """Ancestor bits and depths of all nodes; a node's position is its request's L plus its depth.

    Raises:
        InputError: see `choose`.
    """
    if choose(impl, trees.parents) == "torch":
        return ancestors_reference(trees)
    kernels = jitted("_step_triton")
    nodes, words = trees.parents.shape[0], trees.words
    bits = torch.empty((nodes, words), dtype=torch.int64, device=trees.parents.device)
    depths = torch.empty((nodes,), dtype=torch.int32, device=trees.parents.device)
    words_pow2 = 1 << (words - 1).bit_length()
    block = max(16, min(64, 1 << (trees.max_nodes - 1).bit_length()))
    grid = (trees.requests, -(-trees.max_nodes // block))
    with on_device(bits):
        kernels.ancestors_kernel[grid](
            trees.parents, trees.offsets, bits, depths, WORDS=words, WORDS_POW2=words_pow2, NODES=block
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


def slicing(
    *, config: AttentionConfig, requests: int, rows: int, kv_heads: int, capacity: int, processors: int
) -> Slicing:
    """How prefixes may be cut, from static shapes only, so that a captured graph holds for all lengths.

    Args:
        config: the attention kernel's line of the table.
        requests: B.
        rows: largest N x query heads per KV head.
        kv_heads: KV heads.
        capacity: the most tokens that a prefix may have.
        processors: multiprocessors of the GPU.
    """
    tiles = -(-rows // config.block_m)
    slots = max(1, processors * config.programs // (kv_heads * tiles))
    min_chunk = TOKENS_PER_ROW * min(rows, RIDGE_ROWS)
    splits = max(1, min(MAX_SPLITS, -(-capacity // min_chunk), 2 * slots))
    return Slicing(
        items=min(requests * splits, requests + 2 * slots),
        slots=slots,
        min_chunk=min_chunk,
        overhead=START_TOKENS + 2 * min(rows, config.block_m),
        splits=splits,
        keys=config.block_n,
    )


def schedule(trees: NodeTrees, lengths: Tensor, cut: Slicing, *, impl: Impl = "auto") -> Schedule:
    """Cut the prefixes of all requests into pieces of one size that ends soonest, on the device.

    The bound on the end is the better of two: whole waves of full pieces, and Graham's (SIAM J. Appl. Math. 17, 1969)
    for pieces that start as programs end.

    Raises:
        InputError: see `choose`.
    """
    if choose(impl, lengths) == "torch":
        return schedule_reference(trees, lengths, cut)
    requests = trees.requests
    work = torch.empty((cut.items, WORK_FIELDS), dtype=torch.int32, device=lengths.device)
    spans = torch.empty((requests, 2), dtype=torch.int32, device=lengths.device)
    with on_device(lengths):
        jitted("_step_triton").schedule_kernel[(1,)](
            lengths,
            trees.offsets,
            work,
            spans,
            requests,
            cut.items,
            cut.slots,
            cut.min_chunk,
            cut.overhead,
            SPLITS=cut.splits,
            KEYS=cut.keys,
            REQUESTS=max(16, 1 << (requests - 1).bit_length()),
            ITEMS=128,
        )
    return Schedule(work, spans, "triton")


def schedule_reference(trees: NodeTrees, lengths: Tensor, cut: Slicing) -> Schedule:
    """`schedule` in plain torch; waits for the device."""
    tokens, offsets = lengths.tolist(), trees.offsets.tolist()
    chunk = _best_chunk(tokens, cut)
    work: list[list[int]] = []
    spans: list[list[int]] = []
    for request, length in enumerate(tokens):
        pieces = max(1, -(-length // chunk))
        first, nodes = offsets[request], offsets[request + 1] - offsets[request]
        spans.append([len(work), pieces])
        for piece in range(pieces):
            stop = min((piece + 1) * chunk, length)
            work.append([request, piece * chunk, stop, int(piece == pieces - 1), first, nodes, pieces, offsets[-1]])
    work += [[0] * (WORK_FIELDS - 1) + [offsets[-1]]] * (cut.items - len(work))
    as_tensor = [torch.tensor(rows, dtype=torch.int32, device=lengths.device) for rows in (work, spans)]
    return Schedule(as_tensor[0], as_tensor[1], "torch")


def _best_chunk(tokens: list[int], cut: Slicing) -> int:
    best: tuple[int, int] | None = None
    for splits in range(1, cut.splits + 1):
        size = max(-(-max(tokens) // splits), cut.min_chunk, 1)
        size = -(-size // cut.keys) * cut.keys
        count = sum(max(1, -(-length // size)) for length in tokens)
        overhead = cut.overhead if splits > 1 else 0
        in_waves = -(-count // cut.slots) * (size + overhead)
        in_turn = (sum(tokens) + count * overhead) // cut.slots + size + overhead
        if count <= cut.items and (best is None or min(in_waves, in_turn) < best[0]):
            best = (min(in_waves, in_turn), size)
    assert best is not None  # one piece per request always fits
    return best[1]


def prepare_step(
    q: Tensor, cache: Cache, trees: NodeTrees, *, impl: Impl = "auto", processors: int | None = None
) -> Step:
    """Build what all layers of a step share: two small kernels, no wait for the device.

    Args:
        q: `[T, query heads, D]` queries of any layer; only their shape and dtype matter.
        cache: any layer's cache.
        trees: the trees to verify.
        impl: what the attention will run on.
        processors: multiprocessors to fill; the device's own if None.

    Raises:
        InputError: a head shape that no configuration is for, heads that do not share out, see also `choose`.
    """
    layout = layout_of(q, cache)
    taken = choose(impl, q)
    found = ancestors(trees, impl=taken)
    made = partial(Step, trees=trees, ancestors=found, layout=layout, lengths=cache.lengths, capacity=cache.capacity)
    if taken == "torch":
        return made(schedule=None, config=None)
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise wrong("q", f"its dtype is {q.dtype}", hint="the kernels take bfloat16, float16 and float32")
    rows = trees.max_nodes * layout.group
    config = attention_config(shape=layout.shape, element_bytes=q.element_size(), rows=rows, chip=_chip(q.device))
    cut = slicing(
        config=config,
        requests=trees.requests,
        rows=rows,
        kv_heads=layout.kv_heads,
        capacity=cache.capacity,
        processors=processors or _processors(q.device),
    )
    plan = schedule(trees, cache.lengths, cut, impl="triton")
    return made(schedule=plan, config=config)


def layout_of(q: Tensor, cache: Cache) -> Layout:
    """The layout of a layer's queries and cache.

    Raises:
        InputError: query heads that do not share out over the KV heads.
    """
    heads, kv_heads = int(q.shape[-2]), int(cache.k.shape[2])
    if heads == 0 or heads % kv_heads:
        raise wrong("q", f"{heads} query heads", hint=f"they have to share out over {kv_heads} KV heads")
    return Layout(heads // kv_heads, kv_heads, HeadShape(int(q.shape[-1]), int(cache.v.shape[-1])), q.dtype)


def _chip(device: object) -> int:
    """The first number of the compute capability; AMD's are other chips, and take the default."""
    if torch.device(device).type != "cuda" or torch.version.hip:
        return HOPPER
    return int(torch.cuda.get_device_capability(device)[0])


def _processors(device: object) -> int:
    if torch.device(device).type != "cuda":
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
