# mypy: ignore-errors
"""What a step needs on the device before its first layer: ancestor bits and the list of work, both without a sync."""

import triton
import triton.language as tl

CANDIDATES = tl.constexpr(64)  # numbers of pieces of the longest prefix that are tried
WORK = tl.constexpr(16)  # 32-bit words per piece
SPAN = tl.constexpr(8)  # per request
NEVER = tl.constexpr(1 << 62)


@triton.jit(do_not_specialize=["num_words"])
def ancestors_kernel(
    parents_ptr,
    offsets_ptr,
    bits_ptr,  # [T, num_words]
    depths_ptr,
    num_words,
    BLOCK: tl.constexpr,  # nodes per program
):
    """All nodes of a block walk to the root at once, and note whom of one word of 64 nodes they pass."""
    request, block, word = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(offsets_ptr + request)
    num_nodes = tl.load(offsets_ptr + request + 1) - first
    node = block * BLOCK + tl.arange(0, BLOCK)
    at = tl.where(node < num_nodes, node, -1)
    passed = tl.zeros([BLOCK], tl.int64)
    depth = tl.full([BLOCK], -1, tl.int32)
    one = tl.full([BLOCK], 1, tl.int64)
    while tl.max(at, 0) >= 0:
        walking = at >= 0
        passed |= tl.where(walking & (at // 64 == word), one << (at % 64).to(tl.int64), 0)
        depth += walking.to(tl.int32)
        parent = tl.load(parents_ptr + first + at, mask=walking, other=-1)
        at = tl.where(parent < at, parent, -1)  # a parent behind its child must not walk in circles
    row = (first + node).to(tl.int64)
    mask = node < num_nodes
    tl.store(bits_ptr + row * num_words + word, passed, mask=mask)
    tl.store(depths_ptr + row, depth, mask=mask & (word == 0))


@triton.jit
def _entries(begin_ptr, end_ptr, first_ptr, last_ptr, base, num_entries, window, block_n, group_size, block_m, BLOCK):
    """A block of prefixes: where each begins, its tokens, first node, nodes, rows, and row tiles."""
    entry = base + tl.arange(0, BLOCK)
    mask = entry < num_entries
    end = tl.load(end_ptr + entry, mask=mask, other=0)
    begin = tl.where(window > 0, tl.maximum(end + 1 - window, 0), 0)
    if begin_ptr is not None:
        begin = tl.load(begin_ptr + entry, mask=mask, other=0)
    begin = begin // block_n * block_n
    first_node = tl.load(first_ptr + entry, mask=mask, other=0)
    num_nodes = tl.load(last_ptr + entry, mask=mask, other=0) - first_node
    rows = num_nodes * group_size
    return entry, begin, end - begin, first_node, num_nodes, rows, (rows + block_m - 1) // block_m


@triton.jit
def _pieces(tokens, size, least, num_nodes):
    """Pieces of every prefix: one at least for requests, so that an empty prefix still has its tree."""
    return tl.where(num_nodes > 0, tl.maximum((tokens + size - 1) // size, least), 0)


@triton.jit(
    do_not_specialize=[
        *("num_entries", "num_requests", "num_items", "window", "block_n", "block_m", "group_size", "kv_heads"),
        *("processors", "min_piece", "token_cost", "dram_cost", "row_cost", "start_cost", "merge_cost", "merge_rows"),
    ]
)
def schedule_kernel(
    begin_ptr,  # None: prefixes are read from their first token on, or from the window's
    end_ptr,
    first_ptr,
    last_ptr,
    request_ptr,  # None: entry i is request i
    group_ptr,  # None: no prefix is shared; else the entry of each request's shared part
    offsets_ptr,
    work_ptr,  # [items, 16]
    spans_ptr,  # [entries, 8]
    tasks_ptr,  # [tasks, 2]
    counters_ptr,  # arrived, merged, programs that leave partials, tasks
    num_entries,
    num_requests,
    num_items,
    window,
    block_n,
    block_m,
    group_size,
    kv_heads,
    processors,
    min_piece,
    token_cost,  # 1/1024 clocks of a processor, of a token of a row tile
    dram_cost,  # of the whole chip, of a token
    row_cost,  # of a row of partial results
    start_cost,  # of a piece
    merge_cost,
    merge_rows,  # per task
    BLOCK: tl.constexpr,  # entries at once
    PIECES: tl.constexpr,  # items at once
):
    """One program chooses the size of piece that ends soonest, then lists the pieces and what is merged."""
    longest = tl.zeros([], tl.int32)
    for base in range(0, num_entries, BLOCK):
        _, _, tokens, _, _, _, _ = _entries(
            begin_ptr, end_ptr, first_ptr, last_ptr, base, num_entries, window, block_n, group_size, block_m, BLOCK
        )
        longest = tl.maximum(longest, tl.max(tokens, 0))

    at = tl.arange(0, CANDIDATES)  # 1 to 32, then eight steps to every doubling: 36, 40, ..., 512
    splits = tl.where(at < 32, at + 1, (9 + at % 8) << tl.maximum(at // 8 - 2, 0))
    size = tl.maximum((longest + splits - 1) // splits, min_piece)
    size = tl.maximum((size + block_n - 1) // block_n * block_n, block_n)
    items = tl.zeros([CANDIDATES], tl.int64)
    programs = tl.zeros([CANDIDATES], tl.int64)
    partial_rows = tl.zeros([CANDIDATES], tl.int64)
    tile_tokens = tl.zeros([], tl.int64)
    dram_tokens = tl.zeros([], tl.int64)
    for base in range(0, num_entries, BLOCK):
        entry, begin, tokens, _, num_nodes, rows, tiles = _entries(
            begin_ptr, end_ptr, first_ptr, last_ptr, base, num_entries, window, block_n, group_size, block_m, BLOCK
        )
        least = (entry < num_requests).to(tl.int32)
        pieces = _pieces(tokens[:, None], size[None, :], least[:, None], num_nodes[:, None])
        several = (pieces > 1) | ((begin > 0) & (window == 0))[:, None] | (entry >= num_requests)[:, None]
        # A request without nodes keeps its item: memory for partial results is for pieces beyond one per request.
        idle = tl.sum(((num_nodes == 0) & (entry < num_requests)).to(tl.int32), 0)
        items += (tl.sum(pieces, 0) + idle).to(tl.int64)
        programs += tl.sum(pieces * tiles[:, None], 0).to(tl.int64)
        partial_rows += tl.sum(tl.where(several, pieces * rows[:, None], 0).to(tl.int64), 0)
        tile_tokens += tl.sum((tokens * tiles).to(tl.int64), 0)
        dram_tokens += tl.sum(tl.where(num_nodes > 0, tokens, 0).to(tl.int64), 0)
    programs *= kv_heads
    whole = tl.minimum(size, longest).to(tl.int64) * token_cost + start_cost
    in_waves = (programs + processors - 1) // processors * whole
    # Graham's bound for pieces that start as others end.
    in_turn = (tile_tokens * kv_heads * token_cost + programs * start_cost) // processors + whole
    memory = dram_tokens * kv_heads * dram_cost + partial_rows * kv_heads * row_cost
    cost = tl.maximum(tl.minimum(in_waves, in_turn), memory) + tl.where(partial_rows > 0, merge_cost, 0)
    cost = tl.where(items <= num_items, cost, NEVER)
    best = tl.min(cost, 0)
    chosen = tl.max(tl.where(cost == best, size, 0), 0)

    padding = tl.load(offsets_ptr + num_requests)  # rows from here on belong to no tree
    next_item = tl.zeros([], tl.int32)
    next_row = tl.zeros([], tl.int32)
    next_task = tl.zeros([], tl.int32)
    leaving = tl.zeros([], tl.int32)
    for base in range(0, num_entries, BLOCK):
        entry, begin, tokens, first_node, num_nodes, rows, tiles = _entries(
            begin_ptr, end_ptr, first_ptr, last_ptr, base, num_entries, window, block_n, group_size, block_m, BLOCK
        )
        mask = entry < num_entries
        is_request = entry < num_requests
        pieces = _pieces(tokens, chosen, is_request.to(tl.int32), num_nodes)
        split = (pieces > 1) | (entry >= num_requests)
        request, group = entry, tl.full([BLOCK], -1, tl.int32)
        if group_ptr is not None:
            request = tl.load(request_ptr + entry, mask=mask, other=0)
            group = tl.load(group_ptr + entry, mask=mask & is_request, other=-1)
            split = split | ((begin > 0) & is_request)
        split &= pieces > 0
        first_item = next_item + tl.cumsum(pieces, 0) - pieces
        kept = tl.where(split, pieces * rows, 0)
        first_row = next_row + tl.cumsum(kept, 0) - kept
        tasks = tl.where(split & is_request, (rows + merge_rows - 1) // merge_rows, 0)
        first_task = next_task + tl.cumsum(tasks, 0) - tasks
        span = spans_ptr + entry * SPAN
        tl.store(span, first_item, mask=mask)
        tl.store(span + 1, pieces, mask=mask)
        tl.store(span + 2, group, mask=mask)
        tl.store(span + 3, first_node, mask=mask)
        tl.store(span + 4, num_nodes, mask=mask)
        for start in range(0, tl.max(pieces, 0), PIECES):
            piece = start + tl.arange(0, PIECES)[None, :]
            there = (piece < pieces[:, None]) & mask[:, None]
            row = work_ptr + (first_item[:, None] + piece) * WORK
            stop = tl.minimum((piece + 1) * chosen, tokens[:, None])
            last = (piece == pieces[:, None] - 1) & is_request[:, None]
            zero = tl.zeros([BLOCK, PIECES], tl.int32)
            tl.store(row, request[:, None] + zero, mask=there)
            tl.store(row + 1, begin[:, None] + piece * chosen, mask=there)
            tl.store(row + 2, begin[:, None] + stop, mask=there)
            tl.store(row + 3, last.to(tl.int32), mask=there)
            tl.store(row + 4, first_node[:, None] + zero, mask=there)
            tl.store(row + 5, num_nodes[:, None] + zero, mask=there)
            tl.store(row + 6, split[:, None].to(tl.int32) + zero, mask=there)
            tl.store(row + 7, first_row[:, None] + piece * rows[:, None], mask=there)
            tl.store(row + 9, (begin + tokens)[:, None] + zero, mask=there)
        for start in range(0, tl.max(tasks, 0), PIECES):
            task = start + tl.arange(0, PIECES)[None, :]
            there = task < tasks[:, None]
            row = tasks_ptr + (first_task[:, None] + task) * 2
            tl.store(row, entry[:, None] + tl.zeros([BLOCK, PIECES], tl.int32), mask=there)
            tl.store(row + 1, task * merge_rows, mask=there)
        next_item += tl.sum(pieces, 0)
        next_row += tl.sum(kept, 0)
        next_task += tl.sum(tasks, 0)
        leaving += tl.sum(tl.where(split, pieces * tiles, 0), 0)
    for base in range(0, num_items, BLOCK * PIECES):  # the rest of the grid has no rows
        item = base + tl.arange(0, BLOCK * PIECES)
        tl.store(work_ptr + item * WORK + 5, 0, mask=(item >= next_item) & (item < num_items))
        tl.store(work_ptr + item * WORK + 8, padding, mask=item < num_items)
    tl.store(counters_ptr, 0)
    tl.store(counters_ptr + 1, 0)
    tl.store(counters_ptr + 2, leaving * kv_heads)
    tl.store(counters_ptr + 3, next_task)
