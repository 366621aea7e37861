"""Steps in which some requests draft nothing, or less than they may: the mean price over what a step then verifies.

Engines that look guesses up (n-grams, suffixes) verify one token of a request without a match. A step of B requests
verifies the sum of B independent lengths; kernels that see all tokens at once are priced for that sum, attention goes
request by request, and what an engine adds where anything was drafted counts as often as anything is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.draft_lengths import DraftLengths
from treeopt.arrays import FloatArray
from treeopt.cost.engine import EngineSteps
from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.terms import Term

# Of more tokens the mean stands for all: their spread is below 1 % there.
_MOST_TOKENS: Final = 1 << 15
_NEVER: Final = 1e-12


class TokenLaw(NamedTuple):
    """`tokens [n]` that a step verifies, rising, and how likely each number is."""

    tokens: FloatArray
    shares: FloatArray


@lru_cache(maxsize=1 << 14)
def token_law(lengths: DraftLengths, batch: int, nodes: int) -> TokenLaw:
    """What a step of B requests verifies, each up to N tokens.

    Worked: two requests that draft one token in half of the steps verify 2, 3 or 4 with 1/4, 1/2 and 1/4.
    """
    one = lengths.verified(nodes)
    if batch * nodes > _MOST_TOKENS:
        return TokenLaw(np.array([batch * float(one @ np.arange(1, nodes + 1))]), np.ones(1))
    size = batch * (nodes - 1) + 1
    shares = np.fft.irfft(np.fft.rfft(one, 2 * size) ** batch, 2 * size)[:size]
    shares = np.where(shares > _NEVER, shares, 0.0)
    kept = np.flatnonzero(shares)
    return TokenLaw(batch + kept.astype(np.float64), shares[kept] / shares.sum())


def mean_target_s(
    target: ForwardPass,
    engine: EngineSteps,
    lengths: DraftLengths,
    batches: Sequence[int],
    nodes: int,
    contexts: Sequence[int],
) -> Mapping[Term, FloatArray]:
    """`[B, N, L]` mean seconds, or what broadcasts to it, of the terms that only what is verified changes."""
    laws = [[token_law(lengths, batch, n) for n in range(1, nodes + 1)] for batch in batches]
    padded = engine.padded

    def over(time_s: Callable[[FloatArray], FloatArray]) -> FloatArray:
        return _means(laws, [time_s] * len(batches))

    return {
        Term.LAYERS: over(lambda tokens: target.layers_s(padded(tokens))),
        Term.EXPERTS: _means(laws, [_experts_s(target, padded, batch) for batch in batches]),
        Term.ATTENTION: _attention_s(target, lengths, batches, nodes, contexts),
        Term.LM_HEAD: over(lambda tokens: target.lm_head_s(padded(tokens))),
        Term.ELEMENTWISE: over(lambda tokens: target.elementwise_s(padded(tokens))),
        Term.ALL_REDUCE: over(lambda tokens: target.all_reduce_s(padded(tokens)) + target.gather_s(padded(tokens))),
        Term.SAMPLING: over(target.sampling_s),
    }


def mean_engine_s(engine: EngineSteps, lengths: DraftLengths, batches: Sequence[int], nodes: int) -> FloatArray:
    """`[B, N]` mean seconds beyond the kernels, passes of the drafter not counted."""
    found = np.empty((len(batches), nodes))
    for row, batch in zip(found, batches, strict=True):
        for n in range(1, nodes + 1):
            tokens, shares = token_law(lengths, batch, n)
            row[n - 1] = shares @ engine.tokens_s(tokens, looked_up=batch * (n > 1), drafted=tokens > batch)
    return found


def _means(laws: list[list[TokenLaw]], times_s: Sequence[Callable[[FloatArray], FloatArray]]) -> FloatArray:
    """`[B, N, 1]`: the tokens of a row's laws are priced together."""
    found = np.empty((len(laws), len(laws[0]), 1))
    for row, own, time_s in zip(found, laws, times_s, strict=True):
        tokens = np.unique(np.concatenate([law.tokens for law in own]))
        seconds = time_s(tokens)
        row[:, 0] = [law.shares @ seconds[np.searchsorted(tokens, law.tokens)] for law in own]
    return found


def _experts_s(
    target: ForwardPass, padded: Callable[[FloatArray], FloatArray], batch: int
) -> Callable[[FloatArray], FloatArray]:
    requests = np.array([[float(batch)]])

    def time_s(tokens: FloatArray) -> FloatArray:
        nodes = (tokens / batch)[None]
        return np.asarray(target.experts_of_requests_s(requests, nodes, padded(tokens)[None])[0])

    return time_s


def _attention_s(
    target: ForwardPass, lengths: DraftLengths, batches: Sequence[int], nodes: int, contexts: Sequence[int]
) -> FloatArray:
    """`[B, N, L]`: each request takes its share of a step in which all verify as many tokens as it does."""
    B, N, L = np.ix_(np.array(batches, np.float64), np.arange(1.0, nodes + 1), np.array(contexts, np.float64))
    alike_s = np.maximum.accumulate(target.attention_s(B, N, L + N), axis=1)
    shares = np.zeros((nodes, nodes))
    for n in range(1, nodes + 1):
        shares[n - 1, :n] = lengths.verified(n)
    return np.asarray(np.einsum("nk,bkl->bnl", shares, alike_s))
