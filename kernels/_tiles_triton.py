# mypy: ignore-errors
"""Tiles of keys, values and results: where their rows lie, and how they are read and written.

A head dimension that is no power of two comes in two parts (96 = 64 + 32); the second part is 0 where one is enough.
"""

import triton
import triton.language as tl


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
def _decode_e4m3(x, DTYPE: tl.constexpr):
    """Values of e4m3 bytes, for chips without an instruction: half precision with the exponent moved by 8."""
    bits = x.to(tl.uint16)
    magnitude = bits & 0x7F
    half = (((bits & 0x80) << 8) | (magnitude << 7)).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where(magnitude == 0x7F, float("nan"), half).to(DTYPE)


@triton.jit
def _widen(x, DTYPE: tl.constexpr, FP8: tl.constexpr):
    """Cached values as the products take them; their scale is applied elsewhere."""
    wide = x
    if FP8 == "bits":
        wide = _decode_e4m3(x, DTYPE)
    elif FP8 == "native":
        wide = x.to(tl.float16).to(DTYPE)
    return wide


@triton.jit
def _load_cached_part(cache, place, pos, mask, BLOCK, PAGE_SIZE, DIM_0, DIM_1, MASKED, DTYPE, FP8):
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
    part_0, part_1 = _load_rows(ptr + head.to(tl.int64) * stride_h, offs, mask, DIM_0, DIM_1, MASKED)
    return _widen(part_0, DTYPE, FP8), _widen(part_1, DTYPE, FP8)


@triton.jit
def _load_cached(
    k_cache, v_cache, place, pos, mask, BLOCK, PAGE_SIZE, V_IN_K, DIM_0, DIM_1, VALUE_0, VALUE_1, MASKED, DTYPE, FP8
):
    """Keys and values of cache positions pos .. pos + BLOCK - 1; one read where the values are a part of the keys."""
    k_0, k_1 = _load_cached_part(k_cache, place, pos, mask, BLOCK, PAGE_SIZE, DIM_0, DIM_1, MASKED, DTYPE, FP8)
    v_0, v_1 = k_0, k_1
    if not V_IN_K:
        v_0, v_1 = _load_cached_part(v_cache, place, pos, mask, BLOCK, PAGE_SIZE, VALUE_0, VALUE_1, MASKED, DTYPE, FP8)
    return k_0, k_1, v_0, v_1


@triton.jit
def _load_nodes_part(nodes, first, head, mask, BLOCK, DIM_0, DIM_1):
    """Rows of the tree nodes first .. first + BLOCK - 1, 0 where `mask` is not set."""
    ptr, stride_n, stride_h = nodes
    offs = (first + tl.arange(0, BLOCK)).to(tl.int64) * stride_n + head.to(tl.int64) * stride_h
    return _load_rows(ptr, offs, mask, DIM_0, DIM_1, True)


@triton.jit
def _load_nodes(tree_k, tree_v, first, head, mask, BLOCK, V_IN_K, DIM_0, DIM_1, VALUE_0, VALUE_1):
    """Keys and values of tree nodes from tensors of their own."""
    k_0, k_1 = _load_nodes_part(tree_k, first, head, mask, BLOCK, DIM_0, DIM_1)
    v_0, v_1 = k_0, k_1
    if not V_IN_K:
        v_0, v_1 = _load_nodes_part(tree_v, first, head, mask, BLOCK, VALUE_0, VALUE_1)
    return k_0, k_1, v_0, v_1


@triton.jit
def _load_tma(desc, place, pos, capacity, PAGE_SIZE, HEAD_DIM, DTYPE, FP8):
    """Rows of cache positions pos .. of one page, fetched by the tensor memory accelerator."""
    table_ptr, request, head = place
    row = request * capacity + pos
    if PAGE_SIZE > 0:
        row = tl.load(table_ptr + pos // PAGE_SIZE) * PAGE_SIZE + pos % PAGE_SIZE
    return _widen(desc.load([row, head * HEAD_DIM]), DTYPE, FP8)


@triton.jit
def _store_rows(ptr, offs, mask, acc_0, acc_1, DIM_0, DIM_1):
    row_ptrs = ptr + offs[:, None]
    tl.store(row_ptrs + tl.arange(0, DIM_0)[None, :], acc_0.to(ptr.dtype.element_ty), mask=mask[:, None])
    if DIM_1 > 0:
        ptrs_1 = row_ptrs + (DIM_0 + tl.arange(0, DIM_1))[None, :]
        tl.store(ptrs_1, acc_1.to(ptr.dtype.element_ty), mask=mask[:, None])


@triton.jit
def _clear_padding(out, lse_ptr, head, first, stop, step, NUM_KV_HEADS, GROUP_SIZE, GROUP_POW2, DIM_0, DIM_1):
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
        tl.store(lse_ptr + node * GROUP_SIZE * NUM_KV_HEADS + offs_h, nothing, mask=mask)
