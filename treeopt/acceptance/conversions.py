"""The one place where acceptance numbers change their form.

    conditional c_i   draft i accepted, given that drafts 1..i-1 were
    survival s_i      drafts 1..i all accepted (engines say "per-position", papers "marginal"): s_i = c_1 ... c_i
    accepted n_i      how many drafts had their first i tokens accepted: n_i = drafts x s_i
    histogram h_j     how many drafts had exactly j tokens accepted: h_j = n_j - n_{j+1}, n_0 = drafts
    cumulative t_k    the right token was among the first k guesses; rank r alone is t_{r+1} - t_r

Lengths count the bonus token unless a name says otherwise, as vLLM, SGLang and TensorRT-LLM do.
"""

from __future__ import annotations

import numpy as np

from treeopt.arrays import FloatArray


def survival_from_conditional(conditional: FloatArray) -> FloatArray:
    """`[D]` c to `[D]` s, the cumulative product."""
    survival: FloatArray = np.multiply.accumulate(conditional)
    return survival


def conditional_from_survival(survival: FloatArray) -> FloatArray:
    """`[D]` s to `[D]` c; 0 behind a position that was never reached, where nothing was measured."""
    before = np.concatenate([[1.0], survival[:-1]])
    conditional: FloatArray = np.divide(survival, before, out=np.zeros(len(survival)), where=before > 0)
    return conditional


def survival_from_accepted(accepted: FloatArray, drafts: float) -> FloatArray:
    """`[D]` n to `[D]` s."""
    return accepted / drafts


def accepted_from_survival(survival: FloatArray, drafts: float) -> FloatArray:
    """`[D]` s to `[D]` n, in whole drafts: undoes the rounding of a printed rate while drafts < 1 / its last digit."""
    return np.rint(survival * drafts)


def accepted_from_histogram(histogram: FloatArray) -> FloatArray:
    """`[D + 1]` h to `[D]` n: a draft with j tokens accepted counts for every position up to j."""
    return np.cumsum(histogram[::-1])[::-1][1:]


def ranks_from_cumulative(cumulative: FloatArray) -> FloatArray:
    """`[..., K]` t to the probability of each rank alone."""
    return np.diff(cumulative, axis=-1, prepend=0.0)


def cumulative_from_ranks(ranks: FloatArray) -> FloatArray:
    """`[..., K]` probabilities of each rank to t."""
    return np.cumsum(ranks, axis=-1)


def mean_from_survival(survival: FloatArray) -> float:
    """`[D]` s to the mean accepted length: 1 (the bonus token) + sum of s."""
    return float(1.0 + survival.sum())


def with_bonus(length: float) -> float:
    """Mean accepted drafts to mean accepted length."""
    return length + 1.0


def without_bonus(length: float) -> float:
    """Mean accepted length to mean accepted drafts."""
    return length - 1.0


def draft_tokens_from_nodes(nodes: int) -> int:
    """K of the chain that verifies N nodes: N counts the root, which is no draft."""
    return nodes - 1


def nodes_from_draft_tokens(draft_tokens: int) -> int:
    """N of a chain of K drafts, the root included."""
    return draft_tokens + 1


def fraction_from_percent(percent: float) -> float:
    """43.71 to 0.4371."""
    return percent / 100.0
