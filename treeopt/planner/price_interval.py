"""How far a promise may be off: the error of the price and that of the acceptance, in one interval.

Both errors are taken as independent and of factors, so their logarithms add in quadrature. The price's stands in
`treeopt.cost.served.published`; the acceptance's 95 % interval is narrowed to 80 %, as of a normal law.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from treeopt.answer import PRICE_LEVEL, Estimate
from treeopt.cost.served.published import PriceError
from treeopt.cost.step import ModelStep
from treeopt.planner.engine_room import engine_adds_s
from treeopt.solve.bucket import Bucket, Verdict
from treeopt.solve.options import Option, PaysIf

_TO_80: Final = 1.2816 / 1.9600  # normal quantiles of 80 % and 95 %


def with_price_error(bucket: Bucket, error: PriceError, kernels: ModelStep) -> Bucket:
    """The bucket with intervals at tokens/s and speedups, and what the engine may add for it to pay.

    A speedup of 1.50 whose speculative steps may take 0.82 to 1.30 times their price lies between 1.15 and 1.83.
    """
    if bucket.plain is None:
        return bucket
    chain = bucket.best_chain
    gain = chain.tokens_per_s.value / bucket.plain.tokens_per_s.value
    chosen = bucket.choice if bucket.speculate else chain
    judged = replace(
        bucket,
        speedup=_of(bucket.speedup, bucket.acceptance_length, error.ratio) if bucket.speculate else _one(),
        tokens_per_s=_rate(bucket.choice, error),
        plain=with_rate(bucket.plain, error),
        best_chain=with_rate(chain, error),
        runner_up=None if bucket.runner_up is None else with_rate(bucket.runner_up, error),
        chain_speedup=_of(Estimate.priced(gain), chain.acceptance_length, error.ratio) if chain.depth else None,
    )
    if judged.verdict is not Verdict.NOT_KNOWN or not chosen.depth:
        return judged
    return replace(judged, pays_if=PaysIf(extra_ms_below=_room_ms(bucket, chosen, kernels)))


def _one() -> Estimate:
    return Estimate(value=1.0, low=1.0, high=1.0, level=PRICE_LEVEL)


def with_rate(option: Option, error: PriceError) -> Option:
    """A draft with the interval of its tokens/s."""
    return replace(option, tokens_per_s=_rate(option, error))


def speedup_over(option: Option, plain: Option, error: PriceError | None) -> Estimate:
    """A draft's tokens/s over those of plain decoding, with the interval of the steps' ratio and of E.

    Without an error there is no interval; plain decoding is 1 times itself.
    """
    if option.depth == 0:
        return _one()
    gain = Estimate.priced(option.tokens_per_s.value / plain.tokens_per_s.value)
    return gain if error is None else _of(gain, option.acceptance_length, error.ratio)


def _rate(option: Option, error: PriceError) -> Estimate:
    """Tokens/s with the errors of the plain step, of the ratio where something is drafted, and of E."""
    low, high = error.plain
    if option.depth:
        low, high = -math.hypot(low, error.ratio[0]), math.hypot(high, error.ratio[1])
    return _of(option.tokens_per_s, option.acceptance_length, (low, high))


def _of(promised: Estimate | None, length: Estimate, time: tuple[float, float]) -> Estimate:
    """A rate with the interval of a time in its denominator and of E above it."""
    assert promised is not None
    below = above = 0.0
    if length.low is not None and length.high is not None:
        below, above = (_TO_80 * abs(math.log(end / length.value)) for end in (max(length.low, 1e-9), length.high))
    return Estimate(
        value=promised.value,
        low=promised.value * math.exp(-math.hypot(time[1], below)),
        high=promised.value * math.exp(math.hypot(time[0], above)),
        level=PRICE_LEVEL,
    )


def _room_ms(bucket: Bucket, option: Option, kernels: ModelStep) -> float:
    """Milliseconds that the engine may add to a speculative step, beyond a plain one's, before plain decoding wins.

    E plain steps of time are what a speculative step may take: of 2.5 tokens and 8 ms 20 ms; priced at 17 ms, of which
    the engine's share is 1.5 ms, the engine may add 4.5 ms.
    """
    assert bucket.plain is not None
    room_s = option.acceptance_length.value * bucket.plain.step_time_s - option.step_time_s
    return 1e3 * (room_s + engine_adds_s(option, bucket.batch.max, kernels))
