"""How finely prefixes may be cut, and what pieces cost by a model of the chip; known without reading the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from treeopt.kernels.chip import Chip
from treeopt.kernels.config import LATENT, AttentionConfig, HeadShape, resident

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
