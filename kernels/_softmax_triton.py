# mypy: ignore-errors
"""The online softmax, in base 2, and the mask of a tree."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _dot(a, b, PRECISION, UPCAST):
    if UPCAST:  # Triton's interpreter multiplies the raw bits of bfloat16
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _scores(q_0, q_1, k_0, k_1, qk_scale, SOFTCAP: tl.constexpr, HEAD_DIM_1, PRECISION, UPCAST):
    """Scores times log2(e); with a soft cap, cap x tanh(score / cap)."""
    qk = _dot(q_0, tl.trans(k_0), PRECISION, UPCAST)
    if HEAD_DIM_1 > 0:
        qk += _dot(q_1, tl.trans(k_1), PRECISION, UPCAST)
    if SOFTCAP > 0:  # tanh(x) = 1 - 2 / (e^2x + 1); e^2x may be infinite
        capped = 1.0 - 2.0 / (tl.exp2(qk * (qk_scale * (2.0 * LOG2_E / SOFTCAP))) + 1.0)
        qk = capped * (SOFTCAP * LOG2_E)
    else:
        qk = qk * qk_scale
    return qk


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
