# mypy: ignore-errors
"""The merge of the pieces of a prefix, by the last programs of the attention's own launch.

Their number is at most half of the multiprocessors: however programs are started, pieces find room beside those that
wait for them.
"""

import triton
import triton.language as tl

from treeopt.kernels._tiles_triton import _store_rows

LN2 = tl.constexpr(0.6931471805599453)
UNSEEN = tl.constexpr(-1.0e30)


@triton.jit
def _arrive(counters_ptr):
    """Says that this program's partial results are there for everyone."""
    tl.debug_barrier()  # one thread counts for all: the others have stored by then
    tl.atomic_add(counters_ptr, 1, sem="release")


@triton.jit
def _wait(counters_ptr, programs):
    arrived = tl.atomic_add(counters_ptr, 0, sem="acquire")
    while arrived < programs:
        arrived = tl.atomic_add(counters_ptr, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def _leave(counters_ptr, workers):
    """The last worker sets the counters to where the next launch finds them."""
    tl.debug_barrier()
    if tl.atomic_add(counters_ptr + 1, 1, sem="acq_rel") == workers - 1:
        tl.atomic_xchg(counters_ptr, 0, sem="relaxed")
        tl.atomic_xchg(counters_ptr + 1, 0, sem="relaxed")


@triton.jit
def _merge_pieces(
    partial,
    work_ptr,
    first_item,
    pieces,
    head,
    row,
    first_node,
    mask_m,
    state,
    NUM_KV_HEADS,
    GROUP_SIZE,
    PIECES,
    DIM_0,
    DIM_1,
):
    """Pieces first_item .. of one list into the running state of the rows."""
    partial_ptr, partial_lse_ptr = partial
    running_max, running_sum, acc_0, acc_1 = state
    offs_p = tl.arange(0, PIECES)
    for start in range(0, pieces, PIECES):
        there = start + offs_p < pieces
        item_ptrs = work_ptr + (first_item + start + offs_p) * 16
        base = tl.load(item_ptrs + 7, mask=there, other=0)
        skipped = (first_node - tl.load(item_ptrs + 4, mask=there, other=0)) * GROUP_SIZE  # rows of other requests
        at = ((base + skipped).to(tl.int64)[:, None] + row[None, :]) * NUM_KV_HEADS + head
        mask = there[:, None] & mask_m[None, :]
        sums = tl.load(partial_lse_ptr + at, mask=mask, other=UNSEEN, cache_modifier=".cg")
        new_max = tl.maximum(running_max, tl.max(sums, 0))
        weights = tl.where(mask, tl.exp2(sums - new_max[None, :]), 0.0)
        alpha = tl.exp2(running_max - new_max)
        running_sum = running_sum * alpha + tl.sum(weights, 0)
        ptrs = partial_ptr + at[:, :, None] * (DIM_0 + DIM_1)
        mask, weights = mask[:, :, None], weights[:, :, None]
        part = tl.load(ptrs + tl.arange(0, DIM_0)[None, None, :], mask=mask, other=0.0, cache_modifier=".cg")
        acc_0 = acc_0 * alpha[:, None] + tl.sum(part * weights, 0)
        if DIM_1 > 0:
            part = tl.load(
                ptrs + (DIM_0 + tl.arange(0, DIM_1))[None, None, :], mask=mask, other=0.0, cache_modifier=".cg"
            )
            acc_1 = acc_1 * alpha[:, None] + tl.sum(part * weights, 0)
        running_max = new_max
    return running_max, running_sum, acc_0, acc_1


@triton.jit
def _merge_task(
    task, tasks_ptr, spans_ptr, work_ptr, partial, out, lse_ptr, NUM_KV_HEADS, GROUP_SIZE, PIECES, ROWS, DIM_0, DIM_1
):
    """An average of the pieces of some rows, weighted by each piece's share of the softmax sum."""
    out_ptr, stride_om, stride_oh = out
    head = task % NUM_KV_HEADS
    task_ptr = tasks_ptr + task // NUM_KV_HEADS * 2
    span = spans_ptr + tl.load(task_ptr) * 8
    row = tl.load(task_ptr + 1) + tl.arange(0, ROWS)
    shared, first_node = tl.load(span + 2), tl.load(span + 3)
    mask_m = row < tl.load(span + 4) * GROUP_SIZE
    acc_0 = tl.zeros([ROWS, DIM_0], tl.float32)
    acc_1 = tl.zeros([ROWS, DIM_1], tl.float32) if DIM_1 > 0 else acc_0
    state = (tl.full([ROWS], UNSEEN, tl.float32), tl.zeros([ROWS], tl.float32), acc_0, acc_1)
    first_item, pieces = tl.load(span), tl.load(span + 1)
    shared_span = spans_ptr + tl.maximum(shared, 0) * 8
    shared_item, shared_pieces = tl.load(shared_span), tl.where(shared >= 0, tl.load(shared_span + 1), 0)
    state = _merge_pieces(
        partial,
        work_ptr,
        first_item,
        pieces,
        head,
        row,
        first_node,
        mask_m,
        state,
        NUM_KV_HEADS,
        GROUP_SIZE,
        PIECES,
        DIM_0,
        DIM_1,
    )
    state = _merge_pieces(
        partial,
        work_ptr,
        shared_item,
        shared_pieces,
        head,
        row,
        first_node,
        mask_m,
        state,
        NUM_KV_HEADS,
        GROUP_SIZE,
        PIECES,
        DIM_0,
        DIM_1,
    )
    running_max, running_sum, acc_0, acc_1 = state
    running_sum = tl.where(mask_m, running_sum, 1.0)
    node = (first_node + row // GROUP_SIZE).to(tl.int64)
    query_head = (head * GROUP_SIZE + row % GROUP_SIZE).to(tl.int64)
    acc_0, acc_1 = acc_0 / running_sum[:, None], acc_1 / running_sum[:, None]
    _store_rows(out_ptr, node * stride_om + query_head * stride_oh, mask_m, acc_0, acc_1, DIM_0, DIM_1)
    lse = (running_max + tl.log2(running_sum)) * LN2
    tl.store(lse_ptr + node * GROUP_SIZE * NUM_KV_HEADS + query_head, lse, mask=mask_m)


@triton.jit
def _merge(
    counters_ptr,
    tasks_ptr,
    spans_ptr,
    work_ptr,
    partial,
    out,
    lse_ptr,
    worker,
    workers,
    NUM_KV_HEADS,
    GROUP_SIZE,
    PIECES,
    ROWS,
    DIM_0,
    DIM_1,
):
    """Every `workers`-th task from `worker` on, after all pieces; nothing where nothing was cut."""
    programs = tl.load(counters_ptr + 2)
    if programs > 0:
        tasks = tl.load(counters_ptr + 3) * NUM_KV_HEADS
        _wait(counters_ptr, programs)
        for task in range(worker, tasks, workers):
            _merge_task(
                task,
                tasks_ptr,
                spans_ptr,
                work_ptr,
                partial,
                out,
                lse_ptr,
                NUM_KV_HEADS,
                GROUP_SIZE,
                PIECES,
                ROWS,
                DIM_0,
                DIM_1,
            )
        _leave(counters_ptr, workers)
