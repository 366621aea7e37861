"""Recursive rejection: siblings are offered one by one, and after each rejection the target's law is its residual."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.decode.batch import NOTHING, at
from treeopt.decode.draws import Draws
from treeopt.decode.verdicts import AcceptedPaths, StepToVerify, needed


def reject(evidence: StepToVerify, draws: Draws, *, replacement: bool) -> AcceptedPaths:
    """Walk from the root while a child is accepted; the token behind the last one is drawn from what is left of p."""
    trees, B = evidence.trees, len(evidence.trees)
    p, q = needed(evidence.p, "p"), needed(evidence.q, "q")
    path = np.full((B, trees.depth + 1), NOTHING)
    path[:, 0] = 0
    node, token = np.zeros(B, dtype=np.int64), np.full(B, NOTHING)
    walking = np.ones(B, dtype=np.bool_)
    for depth in range(trees.depth + 1):
        residual, taken = _try_children(evidence, at(p, node), at(q, node), node, walking, draws, replacement)
        stopped = walking & (taken < 0)
        token = np.where(stopped, draws.choose(residual, stopped), token)
        walking = walking & (taken >= 0)
        if not walking.any():
            break
        node = np.where(walking, taken, node)
        path[walking, depth + 1] = node[walking]
    return AcceptedPaths(path, token)


class _Tried(NamedTuple):
    residual: FloatArray  # [B, V] the law of the token if no child is taken
    taken: IntArray  # [B] the accepted child, -1 for none


def _try_children(
    evidence: StepToVerify,
    p: FloatArray,
    q: FloatArray,
    node: IntArray,
    walking: BoolArray,
    draws: Draws,
    replacement: bool,
) -> _Tried:
    """Offer the children one by one, in the order in which they were drawn; after each rejection p is the residual."""
    kids = at(evidence.trees.children, node)
    held = np.take_along_axis(evidence.tokens, np.maximum(kids, 0), axis=1)
    taken = np.full(len(node), NOTHING)
    p, q = p.copy(), q.copy()
    for child, token in zip(kids.T, held.T, strict=True):
        trying = walking & (taken < 0) & (child >= 0) & (token >= 0)
        rows = np.flatnonzero(trying)
        if not len(rows):
            continue
        offered = token[rows]
        ratio = np.zeros(len(node))
        ratio[rows] = np.minimum(p[rows, offered] / q[rows, offered], 1.0)
        accepted = draws.accept(ratio, trying)
        residual = np.maximum(p[rows] - q[rows], 0.0)
        accepted[rows] |= ~residual.any(axis=1)  # p and q are the same up to rounding: nothing can be rejected
        taken = np.where(trying & accepted, child, taken)
        rejected = ~accepted[rows]
        p[rows[rejected]] = normalised(residual[rejected])
        if not replacement:
            q[rows[rejected], offered[rejected]] = 0.0
            q[rows[rejected]] = normalised(q[rows[rejected]])
    return _Tried(p, taken)


def normalised(weights: FloatArray) -> FloatArray:
    """`[n, V]` weights to distributions; a row without weight stays without."""
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0))
