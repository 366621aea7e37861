"""Rows of all-reduces."""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.cost.fit.layout import RowFamily, RowLayout, ids
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Mask, Sample, fixed
from treeopt.cost.kernels.all_reduce import all_reduce_point, all_reduce_work
from treeopt.cost.kernels.family import Family

_MOST_MESSAGE_BYTES: Final = 1 << 25
# Two bytes per element: messages are summed in 16 bit.
_ELEMENT_BYTES: Final = 2.0


def _layout(name: str, column: str, dtype: str) -> RowLayout:
    return RowLayout(
        name=name,
        family=Family.ALL_REDUCE,
        needs=("num_gpus", column, *(["allreduce_dtype"] if dtype == "allreduce_dtype" else [])),
        sizes={"tp": "num_gpus", "message_bytes": column},
        scale={"message_bytes": _ELEMENT_BYTES},
        dtype=dtype,
    )


def _kept(rows: Rows) -> Mask:
    return np.ones(len(rows), dtype=np.bool_)


def _sample(rows: Rows, skew: float) -> Sample:
    message_bytes, tp = rows.sizes.T
    return Sample(
        work=fixed(all_reduce_work(message_bytes, tp)),
        points=all_reduce_point(tp),
        sweep=np.log(message_bytes),
        time_s=rows.time_s,
        shape=ids(tp),
        judged=message_bytes <= _MOST_MESSAGE_BYTES,
    )


ALL_REDUCE_ROWS: Final = RowFamily(
    layouts=(
        _layout("all-reduce", "elements_bf16", "bf16"),
        _layout("all-reduce table", "message_size", "allreduce_dtype"),
    ),
    reaches=((0.3,),),
    kept=_kept,
    sample=_sample,
    swept=True,
)
