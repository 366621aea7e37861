# mypy: ignore-errors
"""KV compaction in Triton: bytes of accepted rows move to their new slots, in place."""

import triton
import triton.language as tl

SLICES = tl.constexpr(8)


@triton.jit
def _slot_bytes(table_ptr, line, positions, mask, page_bytes, token_bytes, PAGE_SIZE: tl.constexpr):
    """Byte offsets of cache positions inside one strip."""
    pages, slots = line, positions.to(tl.int64)
    if PAGE_SIZE > 0:
        pages = tl.load(table_ptr + positions // PAGE_SIZE, mask=mask, other=0).to(tl.int64)
        slots = (positions % PAGE_SIZE).to(tl.int64)
    return pages * page_bytes + slots * token_bytes


@triton.jit
def _move(address, sources, targets, moves, width, block, BYTES, UNIT: tl.constexpr, WORD: tl.constexpr):
    """Move `BYTES` columns of all rows: every load before the barrier, every store behind it.

    All sizes are multiples of UNIT bytes, which move as words of the type WORD.
    """
    words: tl.constexpr = UNIT // (WORD.primitive_bitwidth // 8)
    base = tl.multiple_of((address // UNIT * UNIT).to(tl.pointer_type(WORD)), UNIT)
    columns = block * (BYTES // UNIT * words) + tl.arange(0, BYTES // UNIT * words)
    mask = moves[:, None] & (columns < width // UNIT * words)[None, :]
    rows = tl.load(base + (sources // UNIT * words)[:, None] + columns[None, :], mask=mask, other=0)
    # Rows of other warps may be the targets of this one's: nothing is stored until all of them are read.
    tl.debug_barrier()
    tl.store(base + (targets // UNIT * words)[:, None] + columns[None, :], rows, mask=mask)


@triton.jit(do_not_specialize=["path_length"])
def compaction_kernel(
    strips_ptr,  # [strips, 4] int64: address, bytes per page, per token, and of the strip
    accepted_ptr,  # [B, path_length] nodes of the accepted path, -1 behind its end
    lengths_ptr,
    table_ptr,
    stride_tb,
    path_length,
    PAGE_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,  # rows that move at once
    BLOCK_BYTES: tl.constexpr,
):
    """One program per (byte block, strip, request); a strip is what a token has in one piece of memory."""
    block, strip, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    address = tl.load(strips_ptr + strip * 4)
    page_bytes = tl.load(strips_ptr + strip * 4 + 1)
    token_bytes = tl.load(strips_ptr + strip * 4 + 2)
    width = tl.load(strips_ptr + strip * 4 + 3)
    if block * BLOCK_BYTES >= width:
        return
    prefix = tl.load(lengths_ptr + request)
    line = request.to(tl.int64)
    pages = table_ptr + line * stride_tb
    aligned = (address % 16 == 0) & (page_bytes % 16 == 0) & (token_bytes % 16 == 0) & (width % 16 == 0)
    # Paths ascend, so a later batch of rows has sources behind every target of the batches before it.
    for first in range(0, path_length, BLOCK_ROWS):
        place = first + tl.arange(0, BLOCK_ROWS)
        node = tl.load(accepted_ptr + line * path_length + place, mask=place < path_length, other=-1)
        moves = (node >= 0) & (node != place)
        if tl.max(moves.to(tl.int32), 0) > 0:
            sources = _slot_bytes(pages, line, prefix + node, moves, page_bytes, token_bytes, PAGE_SIZE)
            targets = _slot_bytes(pages, line, prefix + place, moves, page_bytes, token_bytes, PAGE_SIZE)
            if aligned:
                _move(address, sources, targets, moves, width, block, BLOCK_BYTES, 16, tl.int32)
            else:  # single bytes take a register each: fewer at once
                for part in range(block * SLICES, (block + 1) * SLICES):
                    _move(address, sources, targets, moves, width, part, BLOCK_BYTES // SLICES, 1, tl.uint8)
