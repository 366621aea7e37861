# mypy: ignore-errors
"""Tree attention in Triton: one program per (row tile, KV head, piece of one request's prefix).

Rows are node x query head of the group, so that one program reads K and V once for all query heads that share them.
A head dimension that is no power of two comes in two parts (96 = 64 + 32); the second part is 0 where one is enough.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
UNSEEN = tl.constexpr(-1.0e30)  # finite: -inf minus -inf would be NaN in rows that see nothing yet


@triton.jit
def _load_rows(ptr, offs, mask, DIM_0: tl.constexpr, DIM_1: tl.constexpr, MASKED: tl.constexpr):
    """`[n, DIM_0]` and `[n, DIM_1]` of the n vectors at `offs`, 0 where masked; DIM_1 = 0 repeats the first part."""
    row_ptrs = ptr + offs[:, None]
    ptrs_0 = row_ptrs + tl.arange(0, DIM_0)[None, :]
    part_0 = tl.load(ptrs_0, mask=mask[:, None], other=0.0) if MASKED else tl.load(ptrs_0)
    part_1 = part_0
    if DIM_1 > 0:
        ptrs_1 = row_ptrs + (DIM_0 + tl.arange(0, DIM_1))[None, :]
        part_1 = tl.load(ptrs_1, mask=mask[:, None], other=0.0) if MASKED else tl.load(ptrs_1)
    return part_0, part_1


@triton.jit
def _load_cached(cache, place, pos, mask, BLOCK, PAGE_SIZE, DIM_0, DIM_1, MASKED):
    """Rows of cache positions pos .. pos + BLOCK - 1; MASKED reads 0 where `mask` is not set."""
    ptr, stride_page, stride_n, stride_h = cache
    table_ptr, request, head = place
    offs_n = pos + tl.arange(0, BLOCK)
    if PAGE_SIZE == 0:  # contiguous: one page per request
        page, slot = request, offs_n
    else:
        page_ptrs = table_ptr + offs_n // PAGE_SIZE
        page = tl.load(page_ptrs, mask=mask, other=0) if MASKED else tl.load(page_ptrs)
        slot = offs_n % PAGE_SIZE
    offs = page.to(tl.int64) * stride_page + slot.to(tl.int64) * stride_n
    # Heads may lie outermost: their offset exceeds 32 bits where the stride itself does not.
    return _load_rows(ptr + head.to(tl.int64) * stride_h, offs, mask, DIM_0, DIM_1, MASKED)


@triton.jit
def _load_nodes(nodes, first, head, mask, BLOCK, DIM_0, DIM_1):
    """Rows of the tree nodes first .. first + BLOCK - 1, 0 where `mask` is not set."""
    ptr, stride_n, stride_h = nodes
    offs = (first + tl.arange(0, BLOCK)).to(tl.int64) * stride_n + head.to(tl.int64) * stride_h
    return _load_rows(ptr, offs, mask, DIM_0, DIM_1, True)


@triton.jit
def _load_tma(desc, place, pos, capacity, PAGE_SIZE, HEAD_DIM):
    """Rows of cache positions pos .. of one page, fetched by the tensor memory accelerator."""
    table_ptr, request, head = place
    row = request * capacity + pos
    if PAGE_SIZE > 0:
        row = tl.load(table_ptr + pos // PAGE_SIZE) * PAGE_SIZE + pos % PAGE_SIZE
    return desc.load([row, head * HEAD_DIM])


@triton.jit
def _dot(a, b, PRECISION, UPCAST):
    if UPCAST:  # Triton's interpreter multiplies the raw bits of bfloat16
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _scores(q_0, q_1, k_0, k_1, qk_scale, HEAD_DIM_1, PRECISION, UPCAST):
    """Scores in base 2."""
    qk = _dot(q_0, tl.trans(k_0), PRECISION, UPCAST)
    if HEAD_DIM_1 > 0:
        qk += _dot(q_1, tl.trans(k_1), PRECISION, UPCAST)
    return qk * qk_scale


@triton.jit
def _softmax_step(qk, v_0, v_1, running_max, running_sum, acc_0, acc_1, VALUE_DIM_1, PRECISION, UPCAST):
    """The online softmax, in base 2, over one more tile of keys."""
    new_max = tl.maximum(running_max, tl.max(qk, 1))
    p = tl.exp2(qk - new_max[:, None])
    alpha = tl.exp2(running_max - new_max)
    running_sum = running_sum * alpha + tl.sum(p, 1)
    p = p.to(v_0.dtype)
    acc_0 = acc_0 * alpha[:, None] + _dot(p, v_0, PRECISION, UPCAST)
    if VALUE_DIM_1 > 0:
        acc_1 = acc_1 * alpha[:, None] + _dot(p, v_1, PRECISION, UPCAST)
    return new_max, running_sum, acc_0, acc_1


@triton.jit
def _not_finite(v_0, v_1, VALUE_DIM_1):
    """`[n]` NaN for vectors that hold a NaN or an infinity, else 0."""
    found = tl.sum(v_0.to(tl.float32) * 0.0, 1)
    if VALUE_DIM_1 > 0:
        found += tl.sum(v_1.to(tl.float32) * 0.0, 1)
    return found


@triton.jit
def _sees(words, bit):
    return (words >> bit) & 1 == 1


@triton.jit
def _store_rows(ptr, offs, mask, acc_0, acc_1, DIM_0, DIM_1):
    row_ptrs = ptr + offs[:, None]
    tl.store(row_ptrs + tl.arange(0, DIM_0)[None, :], acc_0.to(ptr.dtype.element_ty), mask=mask[:, None])
    if DIM_1 > 0:
        ptrs_1 = row_ptrs + (DIM_0 + tl.arange(0, DIM_1))[None, :]
        tl.store(ptrs_1, acc_1.to(ptr.dtype.element_ty), mask=mask[:, None])


@triton.jit
def _load_work(work_ptr, item):
    row = work_ptr + item * 8
    return (
        tl.load(row),
        tl.load(row + 1),
        tl.load(row + 2),
        tl.load(row + 3),
        tl.load(row + 4),
        tl.load(row + 5),
        tl.load(row + 6),
        tl.load(row + 7),
    )


@triton.jit
def _clear_padding(out, lse_ptr, head, first, stop, step, GROUP_SIZE, GROUP_POW2, DIM_0, DIM_1):
    """Rows of no tree, first, first + step, ... below stop: an average over nothing is 0, its log-sum-exp -inf."""
    ptr, stride_m, stride_h = out
    offs_g = tl.arange(0, GROUP_POW2)
    mask = offs_g < GROUP_SIZE
    offs_h = (head * GROUP_SIZE + offs_g).to(tl.int64)
    zero_0 = tl.zeros([GROUP_POW2, DIM_0], tl.float32)
    zero_1 = tl.zeros([GROUP_POW2, DIM_1], tl.float32) if DIM_1 > 0 else zero_0
    nothing = tl.full([GROUP_POW2], float("-inf"), tl.float32)
    for row in range(first, stop, step):
        node = tl.full([GROUP_POW2], row, tl.int64)
        _store_rows(ptr, node * stride_m + offs_h * stride_h, mask, zero_0, zero_1, DIM_0, DIM_1)
        tl.store(lse_ptr + node * GROUP_SIZE * tl.num_programs(1) + offs_h, nothing, mask=mask)


@triton.jit(do_not_specialize=["capacity", "num_words", "num_rows", "num_tokens"])
def attention_kernel(
    q_ptr,
    stride_qm,
    stride_qh,
    tree_k_ptr,
    stride_tkn,
    stride_tkh,
    tree_v_ptr,
    stride_tvn,
    stride_tvh,
    out_ptr,
    stride_om,
    stride_oh,
    k_ptr,  # of the cache
    stride_kp,  # pages
    stride_kn,
    stride_kh,
    v_ptr,
    stride_vp,
    stride_vn,
    stride_vh,
    k_desc,  # for USE_TMA
    v_desc,
    table_ptr,
    stride_tb,
    capacity,  # tokens per request of a contiguous cache
    work_ptr,  # [items, 8]
    bits_ptr,  # [T, num_words] ancestors
    num_words,
    lse_ptr,
    partial_ptr,  # values and log-sum-exp of pieces that are merged later
    partial_lse_ptr,
    num_rows,  # of a piece's partials
    num_tokens,  # T
    sm_scale,  # of the scores, times log2(e)
    GROUP_SIZE: tl.constexpr,  # query heads per KV head
    GROUP_POW2: tl.constexpr,
    PAGE_SIZE: tl.constexpr,  # tokens per page, 0 = contiguous
    TREE_IN_CACHE: tl.constexpr,  # the tree's keys follow the prefix in the cache
    V_IN_K: tl.constexpr,  # V is the first part of K (latent attention)
    USE_TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # cache positions per step
    TAIL_N: tl.constexpr,  # keys per masked step
    HEAD_DIM_0: tl.constexpr,
    HEAD_DIM_1: tl.constexpr,
    VALUE_DIM_0: tl.constexpr,
    VALUE_DIM_1: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attention of one tile of rows over one piece of a prefix; the last piece of a request takes its tree too."""
    tile, head, item = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request, start, stop, is_last, first_node, num_nodes, pieces, padding = _load_work(work_ptr, item)
    out = (out_ptr, stride_om, stride_oh)
    if tile == 0:
        step = tl.num_programs(2)
        _clear_padding(
            out, lse_ptr, head, padding + item, num_tokens, step, GROUP_SIZE, GROUP_POW2, VALUE_DIM_0, VALUE_DIM_1
        )
    if tile * BLOCK_M >= num_nodes * GROUP_SIZE:
        return
    k_cache, v_cache = (k_ptr, stride_kp, stride_kn, stride_kh), (v_ptr, stride_vp, stride_vn, stride_vh)
    tree_k, tree_v = (tree_k_ptr, stride_tkn, stride_tkh), (tree_v_ptr, stride_tvn, stride_tvh)
    place = (table_ptr + request.to(tl.int64) * stride_tb, request, head)
    offs_m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < num_nodes * GROUP_SIZE
    node = (first_node + offs_m // GROUP_SIZE).to(tl.int64)
    query_head = (head * GROUP_SIZE + offs_m % GROUP_SIZE).to(tl.int64)
    q_0, q_1 = _load_rows(q_ptr, node * stride_qm + query_head * stride_qh, mask_m, HEAD_DIM_0, HEAD_DIM_1, True)
    running_max = tl.full([BLOCK_M], UNSEEN, tl.float32)
    running_sum = tl.zeros([BLOCK_M], tl.float32)
    acc_0 = tl.zeros([BLOCK_M, VALUE_DIM_0], tl.float32)
    acc_1 = tl.zeros([BLOCK_M, VALUE_DIM_1], tl.float32) if VALUE_DIM_1 > 0 else acc_0

    whole = start + (stop - start) // BLOCK_N * BLOCK_N
    for pos in tl.range(start, whole, BLOCK_N):  # every row sees these keys: no mask
        if USE_TMA:
            k_0 = _load_tma(k_desc, place, pos, capacity, PAGE_SIZE, HEAD_DIM_0)
            v_0 = _load_tma(v_desc, place, pos, capacity, PAGE_SIZE, VALUE_DIM_0)
            k_1, v_1 = k_0, v_0
        else:
            every = tl.full([BLOCK_N], True, tl.int1)
            k_0, k_1 = _load_cached(k_cache, place, pos, every, BLOCK_N, PAGE_SIZE, HEAD_DIM_0, HEAD_DIM_1, False)
            v_0, v_1 = k_0, k_1
            if not V_IN_K:
                v_0, v_1 = _load_cached(v_cache, place, pos, every, BLOCK_N, PAGE_SIZE, VALUE_DIM_0, VALUE_DIM_1, False)
        qk = _scores(q_0, q_1, k_0, k_1, sm_scale, HEAD_DIM_1, PRECISION, UPCAST)
        running_max, running_sum, acc_0, acc_1 = _softmax_step(
            qk, v_0, v_1, running_max, running_sum, acc_0, acc_1, VALUE_DIM_1, PRECISION, UPCAST
        )

    offs_n = tl.arange(0, TAIL_N)
    for pos in tl.range(whole, stop, TAIL_N, num_stages=2):
        mask_n = pos + offs_n < stop
        k_0, k_1 = _load_cached(k_cache, place, pos, mask_n, TAIL_N, PAGE_SIZE, HEAD_DIM_0, HEAD_DIM_1, True)
        v_0, v_1 = k_0, k_1
        if not V_IN_K:
            v_0, v_1 = _load_cached(v_cache, place, pos, mask_n, TAIL_N, PAGE_SIZE, VALUE_DIM_0, VALUE_DIM_1, True)
        qk = _scores(q_0, q_1, k_0, k_1, sm_scale, HEAD_DIM_1, PRECISION, UPCAST)
        qk = tl.where(mask_n[None, :], qk, UNSEEN)
        running_max, running_sum, acc_0, acc_1 = _softmax_step(
            qk, v_0, v_1, running_max, running_sum, acc_0, acc_1, VALUE_DIM_1, PRECISION, UPCAST
        )

    # Parents come first, so no row sees a node behind its own: later tiles of keys are left out.
    behind = tl.minimum(num_nodes, (tile * BLOCK_M + BLOCK_M - 1) // GROUP_SIZE + 1)
    for first in tl.range(0, is_last * behind, TAIL_N, num_stages=1):
        mask_n = first + offs_n < num_nodes
        pos = stop + first
        if TREE_IN_CACHE:
            k_0, k_1 = _load_cached(k_cache, place, pos, mask_n, TAIL_N, PAGE_SIZE, HEAD_DIM_0, HEAD_DIM_1, True)
            v_0, v_1 = k_0, k_1
            if not V_IN_K:
                v_0, v_1 = _load_cached(v_cache, place, pos, mask_n, TAIL_N, PAGE_SIZE, VALUE_DIM_0, VALUE_DIM_1, True)
        else:
            k_0, k_1 = _load_nodes(tree_k, first_node + first, head, mask_n, TAIL_N, HEAD_DIM_0, HEAD_DIM_1)
            v_0, v_1 = k_0, k_1
            if not V_IN_K:
                v_0, v_1 = _load_nodes(tree_v, first_node + first, head, mask_n, TAIL_N, VALUE_DIM_0, VALUE_DIM_1)
        # 0 times NaN is NaN: a value that is no number reaches through its score the rows that see it, and no other.
        broken = _not_finite(v_0, v_1, VALUE_DIM_1)
        v_0 = tl.where((broken == 0.0)[:, None], v_0, tl.zeros_like(v_0))
        if VALUE_DIM_1 > 0:
            v_1 = tl.where((broken == 0.0)[:, None], v_1, tl.zeros_like(v_1))
        words = tl.load(bits_ptr + node * num_words + first // 64, mask=mask_m, other=0)
        seen = _sees(words[:, None], (first % 64 + offs_n)[None, :])
        qk = _scores(q_0, q_1, k_0, k_1, sm_scale, HEAD_DIM_1, PRECISION, UPCAST) + broken[None, :]
        qk = tl.where(seen, qk, UNSEEN)
        running_max, running_sum, acc_0, acc_1 = _softmax_step(
            qk, v_0, v_1, running_max, running_sum, acc_0, acc_1, VALUE_DIM_1, PRECISION, UPCAST
        )

    acc_0, acc_1 = acc_0 / running_sum[:, None], acc_1 / running_sum[:, None]
    log2_sum = running_max + tl.log2(running_sum)
    if pieces == 1:
        offs_o = node * stride_om + query_head * stride_oh
        _store_rows(out_ptr, offs_o, mask_m, acc_0, acc_1, VALUE_DIM_0, VALUE_DIM_1)
        tl.store(lse_ptr + node * GROUP_SIZE * tl.num_programs(1) + query_head, log2_sum * LN2, mask=mask_m)
    else:
        row = (item.to(tl.int64) * tl.num_programs(1) + head) * num_rows + offs_m
        offs_p = row * (VALUE_DIM_0 + VALUE_DIM_1)
        _store_rows(partial_ptr, offs_p, mask_m, acc_0, acc_1, VALUE_DIM_0, VALUE_DIM_1)
        tl.store(partial_lse_ptr + row, log2_sum, mask=mask_m)
