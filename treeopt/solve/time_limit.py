"""The time that a request waits for one token: its mean, and its 99th percentile over requests.

A step of T seconds gives every request of the batch E tokens on average, so the mean time per token is T / E. A
request of R tokens needs a random number of steps: the accepted lengths of its steps are drawn again and again until R
tokens are there, P(accepted >= d) being the sum of f at depth d. The percentile is that of steps x T / R, exact for
independent steps. Within one document steps are alike (see `treeopt.acceptance.intervals`), so real requests spread
wider: where a trace has documents, what they got is told beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.model import exact_lengths, expected_tokens
from treeopt.acceptance.replay import Replay
from treeopt.arrays import FloatArray, IntArray, quantiles
from treeopt.errors import InputError
from treeopt.tree import DraftTree

OUTPUT_TOKENS: Final = 256
MAX_OUTPUT_TOKENS: Final = 1 << 16
_QUANTILE: Final = 0.99
# A 99th percentile of fewer documents is a guess.
_MIN_DOCUMENTS: Final = 100
# Limits are met within rounding: a limit copied from a plan, which has six digits, must be met by that plan.
_ROUNDING: Final = 1e-5


class TimePerToken(NamedTuple):
    """Seconds per token of one request: the mean, and what 99 % of requests stay within if steps are independent.

    `documents_p99_s` is what 99 % of a trace's documents stay within, None without enough documents.
    """

    mean_s: float
    p99_s: float
    documents_p99_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """How long a request may wait per token; None sets no limit. `output_tokens` is R, the length of the requests.

    Raises:
        InputError: a limit that is not above 0, or fewer than one token.
    """

    max_mean_s: float | None = None
    max_p99_s: float | None = None
    output_tokens: int = OUTPUT_TOKENS

    def __post_init__(self) -> None:
        for limit in (self.max_mean_s, self.max_p99_s):
            if limit is not None and not 0.0 < limit < np.inf:  # NaN too
                raise InputError(
                    f"a limit of {limit * 1e3:g} ms per token", hint="give --max-tpot-ms and --max-p99-tpot-ms above 0"
                )
        if not 1 <= self.output_tokens <= MAX_OUTPUT_TOKENS:
            raise InputError(
                f"requests of {self.output_tokens} tokens", hint=f"give 1 to {MAX_OUTPUT_TOKENS} output tokens"
            )

    @property
    def limits(self) -> bool:
        """Whether there is a limit."""
        return self.max_mean_s is not None or self.max_p99_s is not None

    def headroom(self, tokens: FloatArray, time_s: FloatArray, steps: FloatArray | IntArray) -> FloatArray:
        """`[...]` limit over time per token, that of the tighter limit: 1 and more is within (or rounds to it), inf
        without a limit.

        Args:
            tokens: `[...]` E.
            time_s: `[...]` step time.
            steps: `[...]` steps that 99 % of requests need (`steps_needed`); not read without a limit on them.
        """
        headroom = np.full(np.shape(time_s), np.inf)
        if self.max_mean_s is not None:
            headroom = np.minimum(headroom, self.max_mean_s * tokens / time_s)
        if self.max_p99_s is not None:
            headroom = np.minimum(headroom, self.max_p99_s * self.output_tokens / (steps * time_s))
        return headroom * (1.0 + _ROUNDING)

    def most_headroom(self, tokens: FloatArray, time_s: FloatArray) -> FloatArray:
        """`[...]` what the headroom of no tree exceeds that has at most that E and takes at least that long.

        n steps give n tokens at least and R with 99 % probability: n E >= 0.99 R + 0.01 n, n >= 0.99 R / (E - 0.01).
        """
        return self.headroom(tokens, time_s, _QUANTILE * self.output_tokens / (tokens - (1.0 - _QUANTILE)))

    def within(self, time: TimePerToken) -> bool:
        """Whether a time per token stays within the limits."""
        pairs = ((time.mean_s, self.max_mean_s), (time.p99_s, self.max_p99_s))
        return all(limit is None or seconds <= limit * (1.0 + _ROUNDING) for seconds, limit in pairs)


NO_LIMIT: Final = TimeLimit()


def steps_needed(lengths: FloatArray, tokens: int) -> IntArray:
    """`[C]` the fewest steps that give `tokens` tokens with probability 0.99, exact for independent steps.

    Args:
        lengths: `[C, D + 1]` probability that a step accepts exactly 0, 1, ... D tokens; it yields one more.
        tokens: R.
    """
    steps = np.zeros(len(lengths), dtype=np.int64)
    running = np.arange(len(lengths))
    short = np.zeros((len(lengths), tokens))  # probability of having 0, 1, ... tokens - 1 so far
    short[:, 0] = 1.0
    for step in range(1, tokens + 1):
        grown = np.zeros_like(short)
        for accepted in range(min(lengths.shape[1], tokens - 1)):
            grown[:, accepted + 1 :] += lengths[running, accepted, None] * short[:, : tokens - accepted - 1]
        left = grown.sum(axis=1) > 1.0 - _QUANTILE + 1e-12
        steps[running] = step
        running, short = running[left], grown[left]
        if not len(running):
            break
    return steps


def most_steps(tokens: FloatArray, depth: IntArray, output_tokens: int) -> FloatArray:
    """`[...]` steps that suffice for `output_tokens` tokens with probability 0.99, whatever the accepted lengths.

    A step yields 1 to D + 1 tokens and E on average, so n steps fall short of R with probability
    exp(-2 (n E - R)^2 / (n D^2)) at most. Source: Hoeffding 1963, theorem 2.
    """
    slack = depth * np.sqrt(np.log(1.0 / (1.0 - _QUANTILE)) / 2.0)
    root = (slack + np.sqrt(slack**2 + 4.0 * tokens * output_tokens)) / (2.0 * tokens)
    return np.asarray(np.minimum(np.ceil(root**2), output_tokens))


def time_per_token(tree: DraftTree, f: FloatArray, step_time_s: float, output_tokens: int) -> TimePerToken:
    """Both times of a tree with path probabilities `f`, whose step takes `step_time_s`."""
    steps = int(steps_needed(exact_lengths(tree, f)[None], output_tokens)[0])
    return TimePerToken(mean_s=step_time_s / expected_tokens(f), p99_s=steps * step_time_s / output_tokens)


def documents_p99(replay: Replay) -> float | None:
    """The steps per token that 99 % of a replayed trace's documents stay within; None for too few documents."""
    used = replay.steps > 0
    if np.count_nonzero(used) < _MIN_DOCUMENTS:
        return None
    return quantiles(replay.steps[used] / replay.tokens[used], [_QUANTILE])[0]
