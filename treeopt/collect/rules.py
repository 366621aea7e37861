"""What a step accepts, given the tokens that are emitted.

A trace follows a continuation that the target wrote, so the token is known and the event is drawn given it. Under
greedy decoding and under target sampling (sample the target's token, accept the node that holds it) nothing is left
to draw: the event is the token's rank among the guesses. Recursive rejection draws the siblings, block verification
how far a chain is accepted.
"""

from __future__ import annotations

import numpy as np

from treeopt.arrays import FloatArray, IntArray

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


def accepted_prefixes(shares: FloatArray, *, rng: np.random.Generator) -> IntArray:
    """`[n]` how many drafts block verification accepts of chains whose text is what it emits.

    Run forwards (`treeopt.decode.block`), drafts x_1 .. x_i are drawn with probability q(x_1 .. x_i) and at least i of
    them accepted with probability s_i = min(s_(i-1) p(x_i) / q(x_i), 1); what is emitted has the target's law. So by
    Bayes, given that the text is x,

        P(at least i accepted) = q(x_1 .. x_i) s_i / p(x_1 .. x_i) = min(1, R_1, .., R_i),   R_i = prod of q / p so far

    Worked: q / p of 0.5 and then 4 are 0.5, 0.5; token by token it would be the same, but 4 and then 0.5 are 1, 1 in
    place of 1, 0.5. Neither depends on how long the chain is, so one draw serves every length.

    Args:
        shares: `[n, D]` q / p of the text's token at each depth, each given the tokens before it; 0 beyond its end.
    """
    at_least = np.minimum.accumulate(np.cumprod(shares, axis=1), axis=1)
    return np.asarray(np.count_nonzero(rng.random((len(shares), 1)) < at_least, axis=1))


def _draw(weight: FloatArray, rng: np.random.Generator) -> int:
    cumulative = np.cumsum(weight)
    drawn = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
    return int(min(drawn, np.flatnonzero(weight)[-1]))  # the product may round up to the sum
