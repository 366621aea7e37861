# mypy: ignore-errors
"""What a step needs on the device before its first layer: ancestor bits and the list of work, both without a sync."""

import triton
import triton.language as tl


@triton.jit
def ancestors_kernel(
    parents,
    offsets,
    bits,  # [T, WORDS]
    depths,
    WORDS: tl.constexpr,
    WORDS_POW2: tl.constexpr,
    NODES: tl.constexpr,  # nodes per program
):
    """All nodes of a block walk to the root at once, and note whom they pass."""
    request, block = tl.program_id(0), tl.program_id(1)
    first = tl.load(offsets + request)
    nodes = tl.load(offsets + request + 1) - first
    node = block * NODES + tl.arange(0, NODES)
    word = tl.arange(0, WORDS_POW2)
    at = tl.where(node < nodes, node, -1)
    passed = tl.zeros([NODES, WORDS_POW2], tl.int64)
    depth = tl.full([NODES], -1, tl.int32)
    one = tl.full([NODES], 1, tl.int64)
    while tl.max(at, 0) >= 0:
        walking = at >= 0
        bit = tl.where(walking, one << (at % 64).to(tl.int64), 0)
        passed |= tl.where((at // 64)[:, None] == word[None, :], bit[:, None], 0)
        depth += walking.to(tl.int32)
        parent = tl.load(parents + first + at, mask=walking, other=-1)
        at = tl.where(parent < at, parent, -1)  # a parent behind its child must not walk in circles
    row = (first + node).to(tl.int64)
    there = node < nodes
    tl.store(bits + row[:, None] * WORDS + word[None, :], passed, mask=there[:, None] & (word < WORDS)[None, :])
    tl.store(depths + row, depth, mask=there)


@triton.jit
def _pieces(tokens, chunk, real):
    """Pieces of every request: one at least, so that an empty prefix still has its tree."""
    return tl.where(real, tl.maximum((tokens + chunk - 1) // chunk, 1), 0)


@triton.jit
def schedule_kernel(
    lengths,
    offsets,
    work,  # [items, 8]
    spans,  # [B, 2]
    requests,
    items,
    slots,  # items that run at once
    min_chunk,
    overhead,  # of one more piece, in tokens
    SPLITS: tl.constexpr,
    KEYS: tl.constexpr,
    REQUESTS: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """One program chooses the chunk with the least bound on the finishing time, then lists the pieces."""
    lane = tl.arange(0, REQUESTS)
    real = lane < requests
    tokens = tl.load(lengths + lane, mask=real, other=0)
    first_node = tl.load(offsets + lane, mask=real, other=0)
    nodes = tl.load(offsets + lane + 1, mask=real, other=0) - first_node
    longest = tl.max(tokens, 0)
    total = tl.sum(tokens.to(tl.int64), 0)

    chunk = tl.maximum((longest + KEYS - 1) // KEYS * KEYS, KEYS)
    least = tl.full([], 1 << 62, tl.int64)
    for splits in range(1, SPLITS + 1):
        size = tl.maximum((longest + splits - 1) // splits, min_chunk)
        size = tl.maximum((size + KEYS - 1) // KEYS * KEYS, KEYS)
        count = tl.sum(_pieces(tokens, size, real), 0)
        piece = size.to(tl.int64) + (overhead if splits > 1 else 0)
        in_waves = (count + slots - 1) // slots * piece
        in_turn = (total + count * (piece - size)) // slots + piece  # Graham's bound for list scheduling
        bound = tl.minimum(in_waves, in_turn)
        better = (bound < least) & (count <= items)
        least = tl.where(better, bound, least)
        chunk = tl.where(better, size, chunk)

    pieces = _pieces(tokens, chunk, real)
    first = tl.cumsum(pieces, 0) - pieces
    tl.store(spans + lane * 2, first, mask=real)
    tl.store(spans + lane * 2 + 1, pieces, mask=real)
    for piece in range(tl.max(pieces, 0)):
        there = piece < pieces
        row = work + (first + piece) * 8
        tl.store(row, lane, mask=there)
        tl.store(row + 1, piece * chunk, mask=there)
        tl.store(row + 2, tl.minimum((piece + 1) * chunk, tokens), mask=there)
        tl.store(row + 3, (piece == pieces - 1).to(tl.int32), mask=there)
        tl.store(row + 4, first_node, mask=there)
        tl.store(row + 5, nodes, mask=there)
        tl.store(row + 6, pieces, mask=there)
    used = tl.sum(pieces, 0)
    padding = tl.load(offsets + requests)  # rows from here on belong to no tree
    for begin in range(0, items, ITEMS):  # the rest of the grid has no rows
        row = begin + tl.arange(0, ITEMS)
        tl.store(work + row * 8 + 5, 0, mask=(row >= used) & (row < items))
        tl.store(work + row * 8 + 7, padding, mask=row < items)
