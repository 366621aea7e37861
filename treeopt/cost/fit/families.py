"""The families of kernels that rows can be of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from treeopt.cost.fit.all_reduce import ALL_REDUCE_ROWS
from treeopt.cost.fit.attention import ATTENTION_ROWS
from treeopt.cost.fit.experts import EXPERT_ROWS
from treeopt.cost.fit.gemm import GEMM_ROWS
from treeopt.cost.fit.latent_attention import LATENT_ROWS
from treeopt.cost.fit.layout import RowFamily
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Sample
from treeopt.cost.fit.scales import SCALE_ROWS
from treeopt.cost.fit.stream import STREAM_ROWS
from treeopt.cost.kernels.family import Family

FAMILIES: Final[Mapping[Family, RowFamily]] = {
    Family.ATTENTION: ATTENTION_ROWS,
    Family.LATENT: LATENT_ROWS,
    Family.EXPERTS: EXPERT_ROWS,
    Family.ALL_REDUCE: ALL_REDUCE_ROWS,
    Family.GEMM: GEMM_ROWS,
    Family.STREAM: STREAM_ROWS,
    Family.SCALES: SCALE_ROWS,
}


def sample_of(rows: Rows, skew: float = 0.0) -> Sample:
    """The rows of any family as a sample; `skew` is the popularity exponent of skewed routing."""
    return FAMILIES[rows.family].sample(rows, skew)
