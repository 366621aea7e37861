"""Rows of the kernels that find the scales of activations, beyond those that only apply them."""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.cost.fit.layout import KEPT_TOKENS, MOST_TOKENS, RowFamily, RowLayout, ids
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Mask, Sample, fixed
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.gemm import scales_point, scales_work

_LEAST_INPUTS: Final = 512


def _kept(rows: Rows) -> Mask:
    tokens = rows.column("tokens")
    used = (tokens <= MOST_TOKENS) & ((tokens <= 8) | (tokens % 16 == 0)) | np.isin(tokens, KEPT_TOKENS)
    return np.asarray(used & (rows.column("inputs") >= _LEAST_INPUTS))


def _sample(rows: Rows, skew: float) -> Sample:
    tokens, inputs = rows.sizes.T
    return Sample(
        work=fixed(scales_work(tokens, inputs)),
        points=scales_point(inputs),
        sweep=np.log(tokens),
        time_s=rows.time_s,
        shape=ids(inputs),
        judged=tokens <= MOST_TOKENS,
    )


SCALE_ROWS: Final = RowFamily(
    layouts=(
        RowLayout(
            name="activation scales",
            family=Family.SCALES,
            needs=("m", "k", "quant_dtype"),
            sizes={"tokens": "m", "inputs": "k"},
            dtype="quant_dtype",
        ),
    ),
    reaches=((0.3,), (1.0,)),
    kept=_kept,
    sample=_sample,
)
