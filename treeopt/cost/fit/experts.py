"""Rows of layers of experts."""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.cost.fit.layout import KEPT_TOKENS, MOST_TOKENS, RowFamily, RowLayout, ids
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.sample import Mask, Sample, fixed
from treeopt.cost.kernels.experts import experts_point, experts_work
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.roofline import Work


def _kept(rows: Rows) -> Mask:
    skewed = rows.column("skewed")  # two kinds of routing: balanced, and the most skewed one
    most = np.isin(skewed, (0.0, skewed.max(initial=0.0)))
    return np.asarray(most & (rows.column("tokens") <= KEPT_TOKENS[-1]))


def _sample(rows: Rows, skew: float) -> Sample:
    tokens, hidden, intermediate, count, per_token, skewed = rows.sizes.T
    return Sample(
        work=fixed(_work(rows, skew)),
        points=experts_point(hidden, intermediate, count, per_token, skewed),
        sweep=np.log(tokens),
        time_s=rows.time_s,
        shape=ids(hidden, intermediate, count, per_token),
        judged=tokens <= MOST_TOKENS,
    )


def _work(rows: Rows, skew: float) -> Work:
    tokens = rows.column("tokens")
    parts = np.empty((3, len(rows)))
    for layer in np.unique(rows.sizes[:, 1:], axis=0):
        at = (rows.sizes[:, 1:] == layer).all(axis=1)
        *sizes, is_skewed = map(int, layer.tolist())
        hidden, width, count, chosen = sizes
        parts[:, at] = experts_work(
            tokens[at], hidden, width, count, chosen, skew if is_skewed else 0.0, rows.dtype.bytes_per_value
        )
    return Work(*parts)


EXPERT_ROWS: Final = RowFamily(
    layouts=(
        RowLayout(
            name="experts",
            family=Family.EXPERTS,
            needs=("num_experts", "topk", "moe_tp_size"),
            sizes={
                "tokens": "num_tokens",
                "hidden": "hidden_size",
                "intermediate": "inter_size",
                "experts": "num_experts",
                "per_token": "topk",
                "skewed": "distribution",
            },
            over={"intermediate": "moe_tp_size"},
            dtype="moe_dtype",
            only={"moe_ep_size": ("1",)},
        ),
    ),
    reaches=tuple((0.5 * scale, 0.5 * scale, 0.5 * scale, 0.5 * scale, 0.5) for scale in (0.3, 1.0, 3.0)),
    kept=_kept,
    sample=_sample,
)
