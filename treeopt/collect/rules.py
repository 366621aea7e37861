"""Which sibling a step accepts, given the token that it emits.

A trace follows a continuation that the target wrote, so the token is known and the event is drawn given it. Under
greedy decoding and under target sampling (sample the target's token, accept the node that holds it) nothing is left
to draw: the event is the token's rank among the guesses. Recursive rejection draws the siblings.
"""

from __future__ import annotations

import numpy as np

from treeopt.arrays import FloatArray

NONE_ACCEPTED = -1


def accepted_sibling(p: FloatArray, q: FloatArray, token: int, *, siblings: int, rng: np.random.Generator) -> int:
    """Which sibling recursive rejection without replacement accepts when it emits `token`; -1: none of them.

    The rule (Sequoia, arXiv:2402.12374, algorithm 2; SpecInfer, arXiv:2305.09781, algorithm 2, with distinct
    siblings): draw s from q; accept it with probability min(1, p(s) / q(s)); else go on with the residual
    p <- norm(max(p - q, 0)) and with q <- norm(q without s). Whatever is drawn before, the token that is emitted in
    the end has the law of the current p. So by Bayes, given that it will be x,

        P(s = x and accepted)     = min(q(x), p(x)) / p(x) = min(1, q(x) / p(x))
        P(s = y | none accepted)  ∝ q(y) (1 - min(1, p(y) / q(y))) = max(q(y) - p(y), 0),   whatever x is

    which is drawn here as it stands. The first k draws do not depend on how many follow: an index below k is accepted
    by a node with k children, so one recorded event serves every tree.

    Args:
        p: `[V]` the target's distribution; `token` was drawn from it.
        q: `[V]` the drafter's distribution; it may list fewer tokens than there are siblings.
        siblings: how many draws to follow.
    """
    p, q = p / p.sum(), q.copy()
    for index in range(siblings):
        total = q.sum()
        if total <= 0:  # every token that the drafter lists was drawn
            return NONE_ACCEPTED
        q /= total
        surplus = np.maximum(q - p, 0.0)
        if rng.random() * p[token] < q[token] or not surplus.any():  # no surplus: p and q differ by rounding only
            return index
        drawn = _draw(surplus, rng)
        residual = np.maximum(p - q, 0.0)
        p = residual / residual.sum()
        q[drawn] = 0.0
    return NONE_ACCEPTED


def _draw(weight: FloatArray, rng: np.random.Generator) -> int:
    cumulative = np.cumsum(weight)
    drawn = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
    return int(min(drawn, np.flatnonzero(weight)[-1]))  # the product may round up to the sum
