"""Block verification: how much of a chain is accepted is decided for all of it together.

Source: Sun, Mendlovic, Leviathan et al., "Block Verification Accelerates Speculative Decoding", arXiv:2403.10444,
algorithm 2; vLLM's `rejection_sample_method: block`. With s_0 = 1 and s_i = min(s_(i-1) p(x_i) / q(x_i), 1) along
drafts x_i drawn from q, at least i tokens are accepted with probability s_i; token by token it would be the product of
min(p / q, 1), which is never more.
"""

from __future__ import annotations

import numpy as np

from treeopt.arrays import FloatArray, IntArray
from treeopt.decode.batch import NOTHING, at
from treeopt.decode.draws import Draws
from treeopt.decode.rejection import normalised
from treeopt.decode.verdicts import AcceptedPaths, StepToVerify, needed


def block(evidence: StepToVerify, draws: Draws) -> AcceptedPaths:
    """Accept a prefix of the chain of first children; a tree's other nodes are not looked at, so none is accepted."""
    trees, B = evidence.trees, len(evidence.trees)
    p, q = needed(evidence.p, "p"), needed(evidence.q, "q")
    path = np.full((B, trees.depth + 1), NOTHING)
    path[:, 0] = 0
    node, everyone = np.zeros(B, dtype=np.int64), np.ones(B, dtype=np.bool_)
    accepted, share, drafting = np.zeros(B, dtype=np.int64), np.ones(B), everyone
    law = _left(at(p, node), at(q, node), share, _child(evidence, node) >= 0)
    for depth in range(1, trees.depth + 1):
        child = _child(evidence, node)
        drafting = drafting & (child >= 0)
        if not drafting.any():
            break
        token = np.where(drafting, at(evidence.tokens, np.maximum(child, 0)), 0)
        ratio = _of(at(p, node), token) / np.where(drafting, _of(at(q, node), token), 1.0)
        share = np.where(drafting, np.minimum(share * ratio, 1.0), share)
        node = np.where(drafting, child, node)
        path[drafting, depth] = node[drafting]
        goes_on = drafting & (_child(evidence, node) >= 0)
        left = _left(at(p, node), at(q, node), share, goes_on)
        taken = draws.accept(_chance(left, share, goes_on), drafting)
        accepted = np.where(taken, depth, accepted)
        law = np.where(taken[:, None], left, law)
    path[np.arange(trees.depth + 1) > accepted[:, None]] = NOTHING
    return AcceptedPaths(path, draws.choose(normalised(law), everyone))


def _child(evidence: StepToVerify, node: IntArray) -> IntArray:
    """`[B]` the first child of each node, -1 where there is none or nothing was drafted for it."""
    if not evidence.trees.children.shape[2]:
        return np.full(len(node), NOTHING)
    first = at(evidence.trees.children, node)[:, 0]
    return np.where((first >= 0) & (at(evidence.tokens, np.maximum(first, 0)) >= 0), first, NOTHING)


def _left(p: FloatArray, q: FloatArray, share: FloatArray, goes_on: np.ndarray) -> FloatArray:
    """`[B, V]` the law, without its sum, of the token behind a node: p at the chain's end, else what q leaves of it."""
    left = np.where(goes_on[:, None], np.maximum(share[:, None] * p - q, 0.0), p)
    alike = ~left.any(axis=1) & (share >= 1.0)  # p is q up to rounding: a later node is taken, or all the same
    return np.where(alike[:, None], p, left)


def _chance(left: FloatArray, share: FloatArray, goes_on: np.ndarray) -> FloatArray:
    """`[B]` probability that a node is taken if no later one is: all of what is left there, of that and 1 - s."""
    mass = left.sum(axis=1)
    total = mass + 1.0 - share
    of_inner = np.divide(mass, total, out=np.ones_like(mass), where=total > 0)
    return np.where(goes_on, np.minimum(of_inner, 1.0), share)


def _of(law: FloatArray, token: IntArray) -> FloatArray:
    return np.asarray(np.take_along_axis(law, token[:, None], axis=1)[:, 0])
