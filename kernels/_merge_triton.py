# mypy: ignore-errors
"""The merge of the pieces of a request's prefix: an average weighted by each piece's share of the softmax sum."""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
UNSEEN = tl.constexpr(-1.0e30)


@triton.jit
def merge_kernel(
    parts,  # values [items, KV heads, max_rows, V0 + V1], normalised, and their log-sum-exp in base 2
    out,  # (pointer, node, head)
    lse,
    spans,  # [B, 2] first item and number of items
    offsets,
    max_rows,
    GROUP: tl.constexpr,
    V0: tl.constexpr,
    V1: tl.constexpr,
    ROWS: tl.constexpr,
    PIECES: tl.constexpr,  # read at once
):
    """One program per (rows, KV head, request); requests of one piece are already done."""
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, pieces = tl.load(spans + request * 2), tl.load(spans + request * 2 + 1)
    first_node = tl.load(offsets + request)
    nodes = tl.load(offsets + request + 1) - first_node
    if pieces <= 1 or tile * ROWS >= nodes * GROUP:
        return
    rows = tile * ROWS + tl.arange(0, ROWS)
    real = rows < nodes * GROUP
    best = tl.full([ROWS], UNSEEN, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc0 = tl.zeros([ROWS, V0], tl.float32)
    acc1 = tl.zeros([ROWS, V1], tl.float32) if V1 > 0 else acc0
    lanes = tl.arange(0, PIECES)
    for piece in range(0, pieces, PIECES):
        index = ((first + piece + lanes).to(tl.int64) * tl.num_programs(1) + head)[:, None] * max_rows + rows[None, :]
        there = (piece + lanes < pieces)[:, None] & real[None, :]
        sums = tl.load(parts[1] + index, mask=there, other=UNSEEN)
        new_best = tl.maximum(best, tl.max(sums, 0))
        weights = tl.exp2(sums - new_best[None, :])
        weights = tl.where(there, weights, 0.0)
        shrink = tl.exp2(best - new_best)
        total = total * shrink + tl.sum(weights, 0)
        values = parts[0] + index[:, :, None] * (V0 + V1)
        part0 = tl.load(values + tl.arange(0, V0)[None, None, :], mask=there[:, :, None], other=0.0)
        acc0 = acc0 * shrink[:, None] + tl.sum(part0 * weights[:, :, None], 0)
        if V1 > 0:
            part1 = tl.load(values + (V0 + tl.arange(0, V1))[None, None, :], mask=there[:, :, None], other=0.0)
            acc1 = acc1 * shrink[:, None] + tl.sum(part1 * weights[:, :, None], 0)
        best = new_best
    total = tl.where(real, total, 1.0)
    node = (first_node + rows // GROUP).to(tl.int64)
    query = head * GROUP + rows % GROUP
    where = out[0] + (node * out[1] + query * out[2])[:, None]
    kind = out[0].dtype.element_ty
    tl.store(where + tl.arange(0, V0)[None, :], (acc0 / total[:, None]).to(kind), mask=real[:, None])
    if V1 > 0:
        tl.store(where + (V0 + tl.arange(0, V1))[None, :], (acc1 / total[:, None]).to(kind), mask=real[:, None])
    tl.store(lse + node * GROUP * tl.num_programs(1) + query, (best + tl.log2(total)) * LN2, mask=real)
