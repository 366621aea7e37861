"""Rows of GEMMs."""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.cost.fit.layout import KEPT_TOKENS, KEPT_WHOLE, MOST_TOKENS, RowFamily, RowLayout, ids
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Mask, Sample
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.gemm import gemm_point, gemm_work
from treeopt.cost.kernels.roofline import Tiling, Work

# Weights under 16 MB (in 16 bit) may sit in the L2 cache while a benchmark repeats them.
_COLD_WEIGHTS: Final = 8_000_000
_LEAST_WEIGHTS: Final = 1_000_000
_SKIPPED_TOKENS: Final = (9, 11, 13, 15)
_SIZES: Final = {"tokens": "m", "outputs": "n", "inputs": "k"}


def _layout(name: str, *needs: str, dtype: str) -> RowLayout:
    return RowLayout(name=name, family=Family.GEMM, needs=("m", "n", "k", *needs), sizes=_SIZES, dtype=dtype)


def _kept(rows: Rows) -> Mask:
    tokens = rows.column("tokens")
    fine = (tokens <= MOST_TOKENS + 1) & ~np.isin(tokens, _SKIPPED_TOKENS)
    keep = fine | np.isin(tokens, KEPT_TOKENS)
    large = rows.column("outputs") * rows.column("inputs") >= _LEAST_WEIGHTS
    return np.asarray((len(rows) <= KEPT_WHOLE) | keep & large)


def _sample(rows: Rows, skew: float) -> Sample:
    tokens, outputs, inputs = rows.sizes.T
    judged = (outputs * inputs >= _COLD_WEIGHTS) & (tokens <= MOST_TOKENS)

    def work(tiling: Tiling | None) -> Work:
        return gemm_work(tokens, outputs, inputs, rows.dtype.bytes_per_value, tiling)

    shape = ids(outputs, inputs)
    return Sample(
        work=work,
        points=gemm_point(outputs, inputs),
        sweep=np.log(tokens),
        time_s=rows.time_s,
        shape=shape,
        judged=judged if len(np.unique(shape[judged])) >= 3 else tokens <= MOST_TOKENS,
    )


GEMM_ROWS: Final = RowFamily(
    layouts=(
        _layout("vidur GEMM", "op", "tp", dtype="fp16"),
        _layout("GEMM with formats", "gemm_dtype", dtype="gemm_dtype"),
        _layout("GEMM", "latency_us", dtype="bf16"),
    ),
    # The outputs of a GEMM set its tiles: only nearly equal ones say much; the inputs only set how long each tile runs.
    reaches=tuple((outputs, inputs) for outputs in (0.05, 0.15, 0.3) for inputs in (0.15, 0.3, 0.6)),
    kept=_kept,
    sample=_sample,
)
