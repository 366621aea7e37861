"""Rows of kernels that only move bytes."""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.cost.fit.layout import RowFamily
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Mask, Sample, fixed
from treeopt.cost.kernels.stream import stream_work


def _kept(rows: Rows) -> Mask:
    return np.ones(len(rows), dtype=np.bool_)


def _sample(rows: Rows, skew: float) -> Sample:
    (traffic_bytes,) = rows.sizes.T
    return Sample(
        work=fixed(stream_work(traffic_bytes)),
        points=np.zeros((len(rows), 1)),
        sweep=np.log(traffic_bytes),
        time_s=rows.time_s,
        shape=np.zeros(len(rows), dtype=np.intp),
        judged=np.ones(len(rows), dtype=np.bool_),
    )


STREAM_ROWS: Final = RowFamily(layouts=(), reaches=((1.0,),), kept=_kept, sample=_sample, swept=True)
