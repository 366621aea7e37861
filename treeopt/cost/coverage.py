"""How many distinct experts a step's tokens visit when some experts are more popular than others."""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.arrays import FloatArray

_HALVINGS: Final = 60


def visited_experts(tokens: FloatArray, count: int, per_token: int, skew: float = 0.0) -> FloatArray:
    """`[...]` expected distinct experts of `tokens` independent choices of `per_token` among `count`.

    The r-th most popular expert is chosen with a probability that falls as `r^-skew`, capped at 1 so that the
    probabilities sum to `per_token`. `skew` 0 is balanced: E (1 - (1 - k/E)^T), balls in bins.
    Source: MoESD, arXiv 2505.19645 (balanced); the power law is a model of popularity, fitted here.
    """
    if skew == 0.0:
        balanced: FloatArray = count * (1.0 - (1.0 - per_token / count) ** tokens)
        return balanced
    chosen = popularity(count, per_token, skew)
    visited: FloatArray = np.sum(1.0 - (1.0 - chosen) ** np.asarray(tokens)[..., None], axis=-1)
    return visited


def popularity(count: int, per_token: int, skew: float) -> FloatArray:
    """`[count]` probability that a token visits each expert, falling; they sum to `per_token`."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    low, high = 0.0, count / weights[-1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if np.minimum(1.0, middle * weights).sum() < per_token:
            low = middle
        else:
            high = middle
    chosen: FloatArray = np.minimum(1.0, high * weights)
    return chosen
