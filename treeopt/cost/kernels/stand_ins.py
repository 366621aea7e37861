"""Which rows price a number format that has none, and how far off that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.family import Family, FitError

# What attention, messages and copies are measured in, the best first: whoever decodes in 32 bit measures nothing else.
WIDE_FORMATS: Final = (Dtype.BF16, Dtype.FP16, Dtype.FP32)
# The formats whose rows price a served one, the best first. The formats with 8 bits never stand for one another:
# one engine's experts take 4 to 10 times as long with a scale per tensor as with one per block.
STAND_INS: Final[Mapping[Dtype, tuple[Dtype, ...]]] = {
    Dtype.BF16: (Dtype.BF16, Dtype.FP16),
    Dtype.FP16: (Dtype.FP16, Dtype.BF16),
    Dtype.FP8_STATIC: (Dtype.FP8_STATIC, Dtype.FP8),
}
# How far what stands in for a format without rows is off where rows exist too (benchmarks/stand_ins.py).
STAND_IN_ERROR: Final[Mapping[tuple[Family, Dtype], FitError]] = {
    (Family.GEMM, Dtype.INT4): FitError(median=0.32, p90=0.58),
    (Family.GEMM, Dtype.NVFP4): FitError(median=0.43, p90=0.80),
    (Family.GEMM, Dtype.FP8_BLOCK): FitError(median=0.53, p90=0.95),
    (Family.EXPERTS, Dtype.INT4): FitError(median=0.16, p90=0.42),
    (Family.EXPERTS, Dtype.FP8): FitError(median=0.25, p90=0.79),
    (Family.EXPERTS, Dtype.FP8_BLOCK): FitError(median=0.16, p90=0.45),
    (Family.EXPERTS, Dtype.MXFP4): FitError(median=0.30, p90=0.62),
    (Family.EXPERTS, Dtype.MXFP4_MXFP8): FitError(median=0.25, p90=0.52),
    (Family.EXPERTS, Dtype.NVFP4): FitError(median=0.23, p90=0.56),
}


def stand_ins(dtype: Dtype) -> tuple[Dtype, ...]:
    """The formats whose rows price weights of a format, the best first."""
    return STAND_INS.get(dtype, (dtype,))


def kv_stand_ins(kv_dtype: Dtype | None) -> tuple[Dtype, ...]:
    """The same of a cache; None is one in 16 bit."""
    return WIDE_FORMATS if kv_dtype is None or kv_dtype in WIDE_FORMATS else (kv_dtype, *WIDE_FORMATS)
