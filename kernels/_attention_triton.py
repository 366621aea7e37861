# mypy: ignore-errors
"""Tree attention in Triton: one program per (row tile, KV head, piece of one request's prefix)."""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
UNSEEN = tl.constexpr(-1.0e30)  # finite: -inf minus -inf would be NaN in rows that see nothing yet


@triton.jit
def _rows(ptr, offsets, mask, D0: tl.constexpr, D1: tl.constexpr, MASKED: tl.constexpr):
    """`[n, D0]` and `[n, D1]` of the n vectors at `offsets`, 0 where masked; D1 = 0 repeats the first part."""
    vectors = ptr + offsets[:, None]
    first = vectors + tl.arange(0, D0)[None, :]
    part0 = tl.load(first, mask=mask[:, None], other=0.0) if MASKED else tl.load(first)
    part1 = part0
    if D1 > 0:
        second = vectors + (D0 + tl.arange(0, D1))[None, :]
        part1 = tl.load(second, mask=mask[:, None], other=0.0) if MASKED else tl.load(second)
    return part0, part1


@triton.jit
def _cache_rows(tensor, place, pos, stop, N, PAGE, D0, D1, MASKED):
    """Rows of cache positions pos .. pos + N - 1; MASKED leaves out those from `stop` on."""
    ptr, page_stride, token_stride, head_stride = tensor
    table, request, head = place
    keys = pos + tl.arange(0, N)
    inside = keys < stop
    if PAGE == 0:  # contiguous: one page per request
        pages, slots = request, keys
    else:
        pages = tl.load(table + keys // PAGE, mask=inside, other=0) if MASKED else tl.load(table + keys // PAGE)
        slots = keys % PAGE
    offsets = pages.to(tl.int64) * page_stride + slots.to(tl.int64) * token_stride
    return _rows(ptr + head * head_stride, offsets, inside, D0, D1, MASKED)


@triton.jit
def _cached(k, v, place, pos, stop, N, PAGE, V_IN_K, QK0, QK1, V0, V1, MASKED):
    """Keys and values of cache positions; one read where the values are a part of the keys."""
    ks = _cache_rows(k, place, pos, stop, N, PAGE, QK0, QK1, MASKED)
    vs = ks if V_IN_K else _cache_rows(v, place, pos, stop, N, PAGE, V0, V1, MASKED)
    return ks, vs


@triton.jit
def _tree_rows(tensor, first_node, nodes, head, first, N, D0, D1):
    """Rows of the tree nodes first .. first + N - 1, 0 behind the last node."""
    ptr, node_stride, head_stride = tensor
    lanes = first + tl.arange(0, N)
    offsets = (first_node + lanes).to(tl.int64) * node_stride + head * head_stride
    return _rows(ptr, offsets, lanes < nodes, D0, D1, True)


@triton.jit
def _descriptor_rows(desc, place, pos, capacity, PAGE, D0):
    """Rows of cache positions pos .. of one page, fetched by the tensor memory accelerator."""
    table, request, head = place
    row = request * capacity + pos if PAGE == 0 else tl.load(table + pos // PAGE) * PAGE + pos % PAGE
    return desc.load([row, head * D0])


@triton.jit
def _dot(a, b, PRECISION, UPCAST):
    if UPCAST:  # Triton's interpreter multiplies the raw bits of bfloat16
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _softmax_step(q, k, v, state, scale, seen, MASKED, QK1, V1, PRECISION, UPCAST):
    """The online softmax, in base 2, over one more tile of keys."""
    best, total, acc0, acc1 = state
    scores = _dot(q[0], tl.trans(k[0]), PRECISION, UPCAST)
    if QK1 > 0:
        scores += _dot(q[1], tl.trans(k[1]), PRECISION, UPCAST)
    scores *= scale
    if MASKED:
        scores = tl.where(seen, scores, UNSEEN)
    new_best = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - new_best[:, None])
    shrink = tl.exp2(best - new_best)
    total = total * shrink + tl.sum(weights, 1)
    weights = weights.to(v[0].dtype)
    acc0 = acc0 * shrink[:, None] + _dot(weights, v[0], PRECISION, UPCAST)
    if V1 > 0:
        acc1 = acc1 * shrink[:, None] + _dot(weights, v[1], PRECISION, UPCAST)
    return new_best, total, acc0, acc1


@triton.jit
def _store(ptr, offsets, mask, acc0, acc1, V0, V1):
    vectors = ptr + offsets[:, None]
    tl.store(vectors + tl.arange(0, V0)[None, :], acc0.to(ptr.dtype.element_ty), mask=mask[:, None])
    if V1 > 0:
        tl.store(vectors + (V0 + tl.arange(0, V1))[None, :], acc1.to(ptr.dtype.element_ty), mask=mask[:, None])


@triton.jit
def _sees(words, bit):
    return (words >> bit) & 1 == 1


@triton.jit
def _work(work, item):
    row = work + item * 8
    return (
        tl.load(row),
        tl.load(row + 1),
        tl.load(row + 2),
        tl.load(row + 3),
        tl.load(row + 4),
        tl.load(row + 5),
        tl.load(row + 6),
    )


@triton.jit
def attention_kernel(
    q,  # tensors with their strides: (pointer, node, head)
    tree_k,
    tree_v,
    out,
    k,  # (pointer, page, token, head)
    v,
    k_desc,  # for USE_TMA; Triton launches no descriptors inside tuples
    v_desc,
    table,  # (pointer, row)
    capacity,  # tokens per request of a contiguous cache
    work,
    bits,
    lse,
    parts,  # (values, log-sum-exp) of pieces that are merged later
    max_rows,
    scale,  # of the scores, times log2(e)
    GROUP: tl.constexpr,  # query heads per KV head
    WORDS: tl.constexpr,  # 64-bit words of ancestors per node
    PAGE: tl.constexpr,  # tokens per page, 0 = contiguous
    TREE_IN_CACHE: tl.constexpr,  # the tree's keys follow the prefix in the cache
    V_IN_K: tl.constexpr,  # V is the first part of K (latent attention)
    USE_TMA: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,  # cache positions per step
    TAIL: tl.constexpr,  # keys per masked step
    QK0: tl.constexpr,
    QK1: tl.constexpr,
    V0: tl.constexpr,
    V1: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Rows are node x group: one program reads K and V once for all query heads that share them."""
    tile, head, item = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request, start, stop, is_last, first_node, nodes, pieces = _work(work, item)
    if tile * ROWS >= nodes * GROUP:
        return
    rows = tile * ROWS + tl.arange(0, ROWS)
    real = rows < nodes * GROUP
    node = (first_node + rows // GROUP).to(tl.int64)
    query = head * GROUP + rows % GROUP
    qs = _rows(q[0], node * q[1] + query * q[2], real, QK0, QK1, True)
    place = (table[0] + request.to(tl.int64) * table[1], request, head)
    acc0 = tl.zeros([ROWS, V0], tl.float32)
    acc1 = tl.zeros([ROWS, V1], tl.float32) if V1 > 0 else acc0
    state = (tl.full([ROWS], UNSEEN, tl.float32), tl.zeros([ROWS], tl.float32), acc0, acc1)

    whole = start + (stop - start) // KEYS * KEYS
    for pos in tl.range(start, whole, KEYS):  # every row sees these keys: no mask
        if USE_TMA:
            ks = (_descriptor_rows(k_desc, place, pos, capacity, PAGE, QK0), None)
            vs = (_descriptor_rows(v_desc, place, pos, capacity, PAGE, V0), None)
        else:
            ks, vs = _cached(k, v, place, pos, stop, KEYS, PAGE, V_IN_K, QK0, QK1, V0, V1, False)
        state = _softmax_step(qs, ks, vs, state, scale, None, False, QK1, V1, PRECISION, UPCAST)
    lanes = tl.arange(0, TAIL)
    for pos in tl.range(whole, stop, TAIL, num_stages=2):
        ks, vs = _cached(k, v, place, pos, stop, TAIL, PAGE, V_IN_K, QK0, QK1, V0, V1, True)
        seen = (pos + lanes < stop)[None, :]
        state = _softmax_step(qs, ks, vs, state, scale, seen, True, QK1, V1, PRECISION, UPCAST)
    # Parents come first, so no row sees a node behind its own: later tiles of keys are left out.
    behind = tl.minimum(nodes, (tile * ROWS + ROWS - 1) // GROUP + 1)
    for first in tl.range(0, is_last * behind, TAIL, num_stages=2):
        if TREE_IN_CACHE:
            ks, vs = _cached(k, v, place, stop + first, stop + nodes, TAIL, PAGE, V_IN_K, QK0, QK1, V0, V1, True)
        else:
            ks = _tree_rows(tree_k, first_node, nodes, head, first, TAIL, QK0, QK1)
            vs = ks if V_IN_K else _tree_rows(tree_v, first_node, nodes, head, first, TAIL, V0, V1)
        words = tl.load(bits + node * WORDS + first // 64, mask=real, other=0)
        seen = _sees(words[:, None], (first % 64 + lanes)[None, :])
        state = _softmax_step(qs, ks, vs, state, scale, seen, True, QK1, V1, PRECISION, UPCAST)

    best, total, acc0, acc1 = state
    acc0, acc1 = acc0 / total[:, None], acc1 / total[:, None]
    log2_sum = best + tl.log2(total)
    if pieces == 1:
        _store(out[0], node * out[1] + query * out[2], real, acc0, acc1, V0, V1)
        tl.store(lse + node * GROUP * tl.num_programs(1) + query, log2_sum * LN2, mask=real)
    else:
        row = (item.to(tl.int64) * tl.num_programs(1) + head) * max_rows + rows
        _store(parts[0], row * (V0 + V1), real, acc0, acc1, V0, V1)
        tl.store(parts[1] + row, log2_sum, mask=real)
