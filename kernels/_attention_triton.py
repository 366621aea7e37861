# mypy: ignore-errors
"""Tree attention in Triton: programs of a row tile, a KV head and a piece of a prefix, then those that merge pieces.

Rows are node x query head of the group, so that one program reads K and V once for all query heads that share them.
"""

import triton
import triton.language as tl

from treeopt.kernels._merge_triton import _arrive, _merge
from treeopt.kernels._softmax_triton import LOG2_E, _not_finite, _scores, _sees, _softmax_step
from treeopt.kernels._tiles_triton import _clear_padding, _load_cached, _load_nodes, _load_rows, _load_tma, _store_rows

LN2 = tl.constexpr(0.6931471805599453)
UNSEEN = tl.constexpr(-1.0e30)  # finite: -inf minus -inf would be NaN in rows that see nothing yet
WORK = tl.constexpr(16)  # 32-bit words per piece


@triton.jit(
    do_not_specialize=["capacity", "num_tokens", "num_words", "num_items", "num_tiles", "num_programs", "stride_sh"]
)
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
    k_scale_ptr,  # of FP8 values
    v_scale_ptr,
    stride_sh,  # 0: one scale for all heads
    sinks_ptr,  # [query heads] float32, or None
    table_ptr,
    stride_tb,
    bits_ptr,  # [T, num_words] ancestors
    depths_ptr,
    lse_ptr,
    work_ptr,  # [items, 16]
    spans_ptr,
    tasks_ptr,
    counters_ptr,
    partial_ptr,  # values and log-sum-exp of pieces that are merged
    partial_lse_ptr,
    capacity,  # tokens per request of a contiguous cache
    num_tokens,  # T
    num_words,
    num_items,
    num_tiles,
    num_programs,  # that read pieces; those behind them merge
    sm_scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,  # query heads per KV head
    GROUP_POW2: tl.constexpr,
    PAGE_SIZE: tl.constexpr,  # tokens per page, 0 = contiguous
    WINDOW: tl.constexpr,  # tokens that a node sees, 0 = all
    SOFTCAP: tl.constexpr,  # of scores, 0 = none
    TREE_IN_CACHE: tl.constexpr,  # the tree's keys follow the prefix in the cache
    V_IN_K: tl.constexpr,  # V is the first part of K (latent attention)
    USE_TMA: tl.constexpr,
    FP8: tl.constexpr,  # how e4m3 is read: "native", "bits", or "" where the cache has the queries' dtype
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # cache positions per step
    TAIL_N: tl.constexpr,  # keys per masked step
    HEAD_DIM_0: tl.constexpr,
    HEAD_DIM_1: tl.constexpr,
    VALUE_DIM_0: tl.constexpr,
    VALUE_DIM_1: tl.constexpr,
    MERGE_PIECES: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attention of one tile of rows over one piece of a prefix; the last piece of a request takes its tree too."""
    pid = tl.program_id(0)
    out, partial = (out_ptr, stride_om, stride_oh), (partial_ptr, partial_lse_ptr)
    if pid >= num_programs:
        _merge(
            counters_ptr,
            tasks_ptr,
            spans_ptr,
            work_ptr,
            partial,
            out,
            lse_ptr,
            pid - num_programs,
            tl.num_programs(0) - num_programs,
            NUM_KV_HEADS,
            GROUP_SIZE,
            MERGE_PIECES,
            MERGE_ROWS,
            VALUE_DIM_0,
            VALUE_DIM_1,
        )
        return
    # Tiles that read the same K and V are neighbours, and share them in L2.
    tile, head, item = pid % num_tiles, pid // num_tiles % NUM_KV_HEADS, pid // num_tiles // NUM_KV_HEADS
    work = work_ptr + item * WORK
    request, start, stop, is_last = tl.load(work), tl.load(work + 1), tl.load(work + 2), tl.load(work + 3)
    first_node, num_nodes, split = tl.load(work + 4), tl.load(work + 5), tl.load(work + 6)
    if tile == 0:
        first_row = tl.load(work + 8) + item
        _clear_padding(
            out,
            lse_ptr,
            head,
            first_row,
            num_tokens,
            num_items,
            NUM_KV_HEADS,
            GROUP_SIZE,
            GROUP_POW2,
            VALUE_DIM_0,
            VALUE_DIM_1,
        )
    if tile * BLOCK_M >= num_nodes * GROUP_SIZE:
        return
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
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
    if sinks_ptr is not None:  # a score without a value, once per row
        sinks = tl.load(sinks_ptr + query_head, mask=mask_m, other=0.0) * LOG2_E
        running_max = tl.where(is_last == 1, sinks, UNSEEN)
        running_sum += is_last.to(tl.float32)
    acc_0 = tl.zeros([BLOCK_M, VALUE_DIM_0], tl.float32)
    acc_1 = tl.zeros([BLOCK_M, VALUE_DIM_1], tl.float32) if VALUE_DIM_1 > 0 else acc_0
    tree_scale = sm_scale if SOFTCAP > 0 else sm_scale * LOG2_E
    qk_scale, v_scale = tree_scale, 1.0
    if FP8 != "":
        qk_scale *= tl.load(k_scale_ptr + head * stride_sh)
        v_scale = tl.load(v_scale_ptr + head * stride_sh)
    if TREE_IN_CACHE:
        tree_scale = qk_scale

    offs_n = tl.arange(0, TAIL_N)
    first_whole = start
    if WINDOW > 0:  # up to where the deepest row's window begins, rows differ in what they see
        depth_m = tl.load(depths_ptr + node, mask=mask_m, other=0)
        lowest = tl.load(work + 9) + depth_m - (WINDOW - 1)
        edge = start + (tl.maximum(tl.max(lowest, 0) - start, 0) + BLOCK_N - 1) // BLOCK_N * BLOCK_N
        first_whole = tl.minimum(edge, stop)
        for pos in tl.range(start, first_whole, TAIL_N, num_stages=1):
            mask_n = pos + offs_n < stop
            k_0, k_1, v_0, v_1 = _load_cached(
                k_cache,
                v_cache,
                place,
                pos,
                mask_n,
                TAIL_N,
                PAGE_SIZE,
                V_IN_K,
                HEAD_DIM_0,
                HEAD_DIM_1,
                VALUE_DIM_0,
                VALUE_DIM_1,
                True,
                DTYPE,
                FP8,
            )
            qk = _scores(q_0, q_1, k_0, k_1, qk_scale, SOFTCAP, HEAD_DIM_1, PRECISION, UPCAST)
            qk = tl.where(mask_n[None, :] & ((pos + offs_n)[None, :] >= lowest[:, None]), qk, UNSEEN)
            running_max, running_sum, acc_0, acc_1 = _softmax_step(
                qk, v_0, v_1, running_max, running_sum, acc_0, acc_1, VALUE_DIM_1, PRECISION, UPCAST
            )

    whole = first_whole + (stop - first_whole) // BLOCK_N * BLOCK_N
    for pos in tl.range(first_whole, whole, BLOCK_N):  # every row sees these keys: no mask
        if USE_TMA:
            k_0 = _load_tma(k_desc, place, pos, capacity, PAGE_SIZE, HEAD_DIM_0, DTYPE, FP8)
            v_0 = _load_tma(v_desc, place, pos, capacity, PAGE_SIZE, VALUE_DIM_0, DTYPE, FP8)
            k_1, v_1 = k_0, v_0
        else:
            every = tl.full([BLOCK_N], True, tl.int1)
            k_0, k_1, v_0, v_1 = _load_cached(
                k_cache,
                v_cache,
                place,
                pos,
                every,
                BLOCK_N,
                PAGE_SIZE,
                V_IN_K,
                HEAD_DIM_0,
                HEAD_DIM_1,
                VALUE_DIM_0,
                VALUE_DIM_1,
                False,
                DTYPE,
                FP8,
            )
        qk = _scores(q_0, q_1, k_0, k_1, qk_scale, SOFTCAP, HEAD_DIM_1, PRECISION, UPCAST)
        running_max, running_sum, acc_0, acc_1 = _softmax_step(
            qk, v_0, v_1, running_max, running_sum, acc_0, acc_1, VALUE_DIM_1, PRECISION, UPCAST
        )

    for pos in tl.range(whole, stop, TAIL_N, num_stages=2):
        mask_n = pos + offs_n < stop
        k_0, k_1, v_0, v_1 = _load_cached(
            k_cache,
            v_cache,
            place,
            pos,
            mask_n,
            TAIL_N,
            PAGE_SIZE,
            V_IN_K,
            HEAD_DIM_0,
            HEAD_DIM_1,
            VALUE_DIM_0,
            VALUE_DIM_1,
            True,
            DTYPE,
            FP8,
        )
        qk = _scores(q_0, q_1, k_0, k_1, qk_scale, SOFTCAP, HEAD_DIM_1, PRECISION, UPCAST)
        qk = tl.where(mask_n[None, :], qk, UNSEEN)
        running_max, running_sum, acc_0, acc_1 = _softmax_step(
            qk, v_0, v_1, running_max, running_sum, acc_0, acc_1, VALUE_DIM_1, PRECISION, UPCAST
        )
    if FP8 != "" and not TREE_IN_CACHE:
        acc_0, acc_1 = acc_0 * v_scale, acc_1 * v_scale

    # Parents come first, so no row sees a node behind its own: later tiles of keys are left out.
    behind = tl.minimum(num_nodes, (tile * BLOCK_M + BLOCK_M - 1) // GROUP_SIZE + 1)
    for first in tl.range(0, is_last * behind, TAIL_N, num_stages=1):
        mask_n = first + offs_n < num_nodes
        if TREE_IN_CACHE:
            k_0, k_1, v_0, v_1 = _load_cached(
                k_cache,
                v_cache,
                place,
                stop + first,
                mask_n,
                TAIL_N,
                PAGE_SIZE,
                V_IN_K,
                HEAD_DIM_0,
                HEAD_DIM_1,
                VALUE_DIM_0,
                VALUE_DIM_1,
                True,
                DTYPE,
                FP8,
            )
        else:
            k_0, k_1, v_0, v_1 = _load_nodes(
                tree_k,
                tree_v,
                first_node + first,
                head,
                mask_n,
                TAIL_N,
                V_IN_K,
                HEAD_DIM_0,
                HEAD_DIM_1,
                VALUE_DIM_0,
                VALUE_DIM_1,
            )
        # 0 times NaN is NaN: a value that is no number reaches through its score the rows that see it, and no other.
        broken = _not_finite(v_0, v_1, VALUE_DIM_1)
        v_0 = tl.where((broken == 0.0)[:, None], v_0, tl.zeros_like(v_0))
        if VALUE_DIM_1 > 0:
            v_1 = tl.where((broken == 0.0)[:, None], v_1, tl.zeros_like(v_1))
        words = tl.load(bits_ptr + node * num_words + first // 64, mask=mask_m, other=0)
        seen = _sees(words[:, None], (first % 64 + offs_n)[None, :])
        if WINDOW > 0:
            depth_n = tl.load(depths_ptr + first_node + first + offs_n, mask=mask_n, other=0)
            seen = seen & (depth_m[:, None] - depth_n[None, :] < WINDOW)
        qk = _scores(q_0, q_1, k_0, k_1, tree_scale, SOFTCAP, HEAD_DIM_1, PRECISION, UPCAST)
        qk = tl.where(seen, qk + broken[None, :], UNSEEN)
        running_max, running_sum, acc_0, acc_1 = _softmax_step(
            qk, v_0, v_1, running_max, running_sum, acc_0, acc_1, VALUE_DIM_1, PRECISION, UPCAST
        )
    if FP8 != "" and TREE_IN_CACHE:
        acc_0, acc_1 = acc_0 * v_scale, acc_1 * v_scale

    acc_0, acc_1 = acc_0 / running_sum[:, None], acc_1 / running_sum[:, None]
    log2_sum = running_max + tl.log2(running_sum)
    if split == 0:
        offs_o = node * stride_om + query_head * stride_oh
        _store_rows(out_ptr, offs_o, mask_m, acc_0, acc_1, VALUE_DIM_0, VALUE_DIM_1)
        tl.store(lse_ptr + node * GROUP_SIZE * NUM_KV_HEADS + query_head, log2_sum * LN2, mask=mask_m)
    else:
        row = (tl.load(work + 7) + offs_m).to(tl.int64) * NUM_KV_HEADS + head
        _store_rows(partial_ptr, row * (VALUE_DIM_0 + VALUE_DIM_1), mask_m, acc_0, acc_1, VALUE_DIM_0, VALUE_DIM_1)
        tl.store(partial_lse_ptr + row, log2_sum, mask=mask_m)
        _arrive(counters_ptr)
