"""How the prefixes of a batch are cut into pieces that end soonest, by a model of the chip, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from treeopt.kernels.cache import SharedPrefixes
from treeopt.kernels.chip import Chip
from treeopt.kernels.config import LATENT, AttentionConfig, HeadShape, resident
from treeopt.kernels.tensors import Impl, Taken, Tensor, choose, jitted, on_device, torch
from treeopt.kernels.trees import NodeTrees

MIN_PIECE: Final = 128  # tokens; shorter ones are dearer to start and merge than to read
SPLITS: Final = (*range(1, 33), *(n << k for k in range(2, 6) for n in range(9, 17)))  # of the longest prefix
# What one program draws from memory: 48 KB on their way at 0.8 us of latency are 60 GB/s, 34 bytes per clock (Little's
# law); the link from L2 to a multiprocessor takes 64.
SM_BYTES_PER_CLOCK: Final = 34
# What a tile whose softmax and products alternate reaches of the dense rate: a model, no measurement.
EFFICIENCY: Final = 0.46
START_CLOCKS: Final = 512
MERGE_CLOCKS: Final = 900
UNIT: Final = 1024  # costs are counted in 1/1024 clocks
WORK_FIELDS: Final = 16
SPAN_FIELDS: Final = 8
COUNTERS: Final = 4
MERGE_ELEMENTS: Final = 4096  # partial values that the merge reads at once
MERGE_PIECES: Final = 8


@dataclass(frozen=True, kw_only=True)
class Slicing:
    """How prefixes may be cut and what pieces cost, known without reading the device.

    Fields:
        items: pieces in all at most, the grid's size.
        processors: multiprocessors.
        min_piece: fewest tokens of a piece.
        block_n: pieces are multiples of this, and begin at them.
        block_m: rows per tile.
        group: query heads per KV head.
        kv_heads: KV heads.
        window: tokens that a node sees, itself included; 0 is all.
        token_cost: of a token to one multiprocessor, per row tile, in 1/1024 clocks: what takes longer of reading it
            from L2 and multiplying it.
        dram_cost: of a token to the chip's memory.
        row_cost: of a row of partial results, written and read again.
        start_cost: of one more piece.
        merge_cost: of merging anything at all.
        merge_rows: rows that the merge takes at once.
    """

    items: int
    processors: int
    min_piece: int
    block_n: int
    block_m: int
    group: int
    kv_heads: int
    window: int
    token_cost: int
    dram_cost: int
    row_cost: int
    start_cost: int
    merge_cost: int
    merge_rows: int

    def partial_rows(self, rows: int, shared_rows: int, requests: int) -> int:
        """The most rows of partial results: of split requests' pieces, `rows` each, and of shared ones'."""
        extra = self.items - requests
        own = min(self.items, 2 * extra) if not shared_rows else self.items
        return own * rows + self.items * shared_rows

    def workers(self, nodes: int, requests: int) -> int:
        """Programs that merge: at most half of the multiprocessors, so that pieces find room whoever starts first."""
        if self.items == requests:
            return 0
        return max(1, min(self.processors // 2, self.most_tasks(nodes, requests) * self.kv_heads))

    def most_tasks(self, nodes: int, requests: int) -> int:
        """Tasks of the merge, if every prefix is cut."""
        return -(-nodes * self.group // self.merge_rows) + requests


class WorkList(NamedTuple):
    """Which program reads what, all int32.

    `work [items, 16]`: request, first token, end, whether its tree follows, first node, nodes, whether partial results
    are left, their first row, nodes of all trees, length of the prefix. `spans [entries, 8]`: first item, items, entry
    of the shared part or -1, first node, nodes. `tasks [.., 2]`: entry and first row of what is merged. `counters [4]`:
    programs that arrived, workers that merged, programs that leave partial results, tasks.
    """

    work: Tensor
    spans: Tensor
    tasks: Tensor
    counters: Tensor
    impl: Taken


class Entries(NamedTuple):
    """What is cut, request after request, then every shared part: int32 tensors, or None where they say nothing new."""

    begin: Tensor | None
    end: Tensor
    first: Tensor
    last: Tensor
    request: Tensor | None
    group: Tensor | None


def slicing(
    *,
    config: AttentionConfig,
    chip: Chip,
    shape: HeadShape,
    element_bytes: int,
    kv_bytes: int,
    requests: int,
    rows: int,
    group: int,
    kv_heads: int,
    capacity: int,
    window: int = 0,
) -> Slicing:
    """How prefixes may be cut, from static shapes only, so that a captured graph holds for all lengths.

    Args:
        config: the attention kernel's line of the table.
        chip: what the GPU has.
        shape: head dimensions.
        element_bytes: of a query.
        kv_bytes: of a cached value.
        requests: B, with every shared part one more.
        rows: largest N x query heads per KV head.
        group: query heads per KV head.
        kv_heads: KV heads.
        capacity: the most tokens that a prefix may have.
        window: tokens that a node sees; 0 is all.
    """
    dims, tiles = shape.keys + shape.values, -(-rows // config.block_m)
    read = kv_bytes * (shape.keys if shape in LATENT else dims)
    rate = EFFICIENCY * chip.flops_per_clock / (1 if element_bytes == 2 else 6)  # three TF32 products at half the rate
    tokens = min(capacity, window + config.block_n) if window else capacity
    splits = max(1, min(SPLITS[-1], -(-tokens // MIN_PIECE)))
    programs = chip.processors * resident(config, shape=shape, element_bytes=element_bytes, chip=chip)
    extra = 2 * max(1, programs // (kv_heads * tiles))
    partial = 4 * shape.values
    return Slicing(
        items=min(requests * splits, requests + extra),
        processors=chip.processors,
        min_piece=MIN_PIECE,
        block_n=config.block_n,
        block_m=config.block_m,
        group=group,
        kv_heads=kv_heads,
        window=window,
        token_cost=round(UNIT * max(read / SM_BYTES_PER_CLOCK, 2 * config.block_m * dims / rate)),
        dram_cost=round(UNIT * read / chip.dram_bytes_per_clock),
        row_cost=round(UNIT * 2 * partial / chip.dram_bytes_per_clock),
        start_cost=UNIT * START_CLOCKS,
        merge_cost=UNIT * MERGE_CLOCKS,
        merge_rows=merge_rows(shape.values),
    )


def merge_rows(dim: int) -> int:
    """Rows that the merge takes at once, of values of `dim` elements: 4 of 128."""
    return max(1, MERGE_ELEMENTS // (MERGE_PIECES * (1 << (dim - 1).bit_length())))


def entries_of(trees: NodeTrees, lengths: Tensor, shared: SharedPrefixes | None, block_n: int) -> Entries:
    """What is cut: all prefixes, or what each has of its own and the shared parts behind them, in whole tiles."""
    first, last = trees.offsets[:-1], trees.offsets[1:]
    if shared is None:
        return Entries(None, lengths, first, last, None, None)
    every = torch.arange(trees.requests, device=lengths.device, dtype=torch.int32)
    of = torch.bucketize(every, shared.offsets[1:], right=True)
    tokens, opens = shared.tokens // block_n * block_n, shared.offsets[:-1]
    begin = tokens[of]
    return Entries(
        begin=torch.cat([begin, torch.zeros_like(tokens)]),
        end=torch.cat([lengths, tokens]),
        first=torch.cat([first, first[opens.long()]]),
        last=torch.cat([last, trees.offsets[shared.offsets[1:].long()]]),
        request=torch.cat([every, opens]),
        group=torch.where(begin > 0, of + trees.requests, -1).int(),
    )


def schedule(
    trees: NodeTrees, lengths: Tensor, cut: Slicing, *, shared: SharedPrefixes | None = None, impl: Impl = "auto"
) -> WorkList:
    """Cut the prefixes of all requests into pieces of one size that ends soonest, on the device.

    The cost of a size is what takes longer: the busiest multiprocessor or the chip's memory, partial results included.
    The bound on the busiest one is the better of two: whole waves of full pieces, and Graham's (SIAM J. Appl. Math. 17,
    1969) for pieces that start as programs end.

    Raises:
        InputError: see `choose`.
    """
    entries = entries_of(trees, lengths, shared, cut.block_n)
    if choose(impl, lengths) == "torch":
        return schedule_reference(trees, entries, cut)
    count, device = entries.end.shape[0], lengths.device
    made = [
        torch.empty(shape, dtype=torch.int32, device=device)
        for shape in (
            (cut.items, WORK_FIELDS),
            (count, SPAN_FIELDS),
            (cut.most_tasks(trees.parents.shape[0], trees.requests), 2),
            (COUNTERS,),
        )
    ]
    with on_device(lengths):
        jitted("_step_triton").schedule_kernel[(1,)](
            entries.begin,
            entries.end,
            entries.first,
            entries.last,
            entries.request,
            entries.group,
            trees.offsets,
            *made,
            count,
            trees.requests,
            cut.items,
            cut.window,
            cut.block_n,
            cut.block_m,
            cut.group,
            cut.kv_heads,
            cut.processors,
            cut.min_piece,
            cut.token_cost,
            cut.dram_cost,
            cut.row_cost,
            cut.start_cost,
            cut.merge_cost,
            cut.merge_rows,
            BLOCK=32,
            PIECES=8,
        )
    work, spans, tasks, counters = made
    return WorkList(work, spans, tasks, counters, "triton")


def schedule_reference(trees: NodeTrees, entries: Entries, cut: Slicing) -> WorkList:
    """`schedule` in plain torch; waits for the device."""
    requests, device = trees.requests, entries.end.device
    cuts = _cuts(entries, requests, cut)
    size = _best_size(cuts, cut)
    work: list[list[int]] = []
    spans: list[list[int]] = []
    tasks: list[list[int]] = []
    kept = leaving = 0
    padding = int(trees.offsets[-1])
    for at, one in enumerate(cuts):
        pieces, split = one.pieces(size), one.splits(size)
        spans.append([len(work), pieces, one.group, one.first, one.nodes, 0, 0, 0])
        for piece in range(pieces):
            start, stop = piece * size, min((piece + 1) * size, one.tokens)
            fields = [one.request, one.begin + start, one.begin + stop, int(one.is_request and piece == pieces - 1)]
            fields += [one.first, one.nodes, int(split), kept + piece * one.rows, padding, one.begin + one.tokens]
            work.append(fields + [0] * (WORK_FIELDS - len(fields)))
        if split:
            kept, leaving = kept + pieces * one.rows, leaving + pieces * one.tiles
            tasks += [[at, row] for row in range(0, one.rows, cut.merge_rows) if one.is_request]
    unused = [0] * 8 + [padding] + [0] * (WORK_FIELDS - 9)
    work += [unused] * (cut.items - len(work))
    counters = [0, 0, leaving * cut.kv_heads, len(tasks)]
    tasks += [[0, 0]] * (cut.most_tasks(trees.parents.shape[0], trees.requests) - len(tasks))
    made = [torch.tensor(rows, dtype=torch.int32, device=device) for rows in (work, spans, tasks, counters)]
    return WorkList(made[0], made[1], made[2], made[3], "torch")


class _Cut(NamedTuple):
    """One prefix, or one shared part of several."""

    request: int
    is_request: bool
    begin: int
    tokens: int
    first: int
    nodes: int
    rows: int
    tiles: int
    group: int

    def pieces(self, size: int) -> int:
        return max(-(-self.tokens // size), int(self.is_request)) if self.nodes else 0

    def splits(self, size: int) -> bool:
        return self.pieces(size) > 1 or (self.pieces(size) == 1 and (self.group >= 0 or not self.is_request))


def _cuts(entries: Entries, requests: int, cut: Slicing) -> list[_Cut]:
    columns: list[Any] = [None if part is None else part.tolist() for part in entries]
    begin, end, first, last, request, group = columns
    found = []
    for at, stop in enumerate(end):
        start = begin[at] if begin else max(stop + 1 - cut.window, 0) if cut.window else 0
        start = start // cut.block_n * cut.block_n
        nodes = last[at] - first[at]
        found.append(
            _Cut(
                request=request[at] if request else at,
                is_request=at < requests,
                begin=start,
                tokens=stop - start,
                first=first[at],
                nodes=nodes,
                rows=nodes * cut.group,
                tiles=-(-nodes * cut.group // cut.block_m),
                group=group[at] if group and at < requests else -1,
            )
        )
    return found


def _best_size(cuts: Sequence[_Cut], cut: Slicing) -> int:
    longest = max(one.tokens for one in cuts)
    costs: dict[int, int] = {}
    for splits in SPLITS:
        size = max(-(-longest // splits), cut.min_piece)
        size = -(-size // cut.block_n) * cut.block_n
        # A request without nodes keeps its item: memory for partial results is for pieces beyond one per request.
        if sum(max(one.pieces(size), int(one.is_request)) for one in cuts) <= cut.items:
            costs[size] = piece_cost(cuts, size, longest, cut)
    least = min(costs.values())  # one piece per request always fits
    return max(size for size, cost in costs.items() if cost == least)


def piece_cost(cuts: Sequence[_Cut], size: int, longest: int, cut: Slicing) -> int:
    """What pieces of `size` tokens cost, in 1/1024 clocks."""
    programs = cut.kv_heads * sum(one.pieces(size) * one.tiles for one in cuts)
    partial_rows = cut.kv_heads * sum(one.pieces(size) * one.rows for one in cuts if one.splits(size))
    tile_tokens = cut.kv_heads * sum(one.tokens * one.tiles for one in cuts)
    tokens = cut.kv_heads * sum(one.tokens for one in cuts if one.nodes)
    piece = min(size, longest) * cut.token_cost + cut.start_cost
    in_waves = -(-programs // cut.processors) * piece
    in_turn = (tile_tokens * cut.token_cost + programs * cut.start_cost) // cut.processors + piece
    memory = tokens * cut.dram_cost + partial_rows * cut.row_cost
    return max(min(in_waves, in_turn), memory) + (cut.merge_cost if partial_rows else 0)
