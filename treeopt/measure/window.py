"""From the chunks of streams that run together to the time of a step and the tokens that it gives.

A server in its default settings sends one chunk per request and step, with all tokens of the step. The steady window of
streams that were started together begins with the last stream's second chunk (before it, prompts are worked on) and
ends with the first stream's last one: in it, all requests are in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from treeopt.arrays import FloatArray

MIN_STEPS: Final = 10
_BLOCKS: Final = 8
_T95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365)  # by degrees of freedom


class Chunk(NamedTuple):
    """One chunk of a stream: when it came, in seconds of a clock, and all tokens of the request up to it."""

    time_s: float
    tokens: int


class StreamWindow(NamedTuple):
    """Steps that held all requests.

    `gaps_s` are times between neighbouring chunks, in order, of all streams; `tokens` came in them.
    """

    gaps_s: FloatArray
    tokens: int

    @property
    def step_s(self) -> float:
        """Mean time of a step: chunks come in bursts at many requests, so a median would be too low."""
        return float(self.gaps_s.mean())

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of a request's step, the target's own included."""
        return self.tokens / len(self.gaps_s)


def steady_window(streams: Sequence[Sequence[Chunk]]) -> StreamWindow | None:
    """The steps in which every stream took part; None where no stream has `MIN_STEPS` of them.

    Three streams with chunks at 0, 1, 2, 3 s, at 0, 1, 2, 3 s and at 1, 2, 3, 4 s have the window from 2 to 3 s.
    """
    if not streams or any(len(s) < 2 for s in streams):
        return None
    begin, end = max(s[1].time_s for s in streams), min(s[-1].time_s for s in streams)
    inside = [[c for c in s if begin <= c.time_s <= end] for s in streams]
    if max((len(s) - 1 for s in inside), default=0) < MIN_STEPS:
        return None
    gaps = [np.diff([c.time_s for c in s]) for s in inside if len(s) > 1]
    tokens = sum(s[-1].tokens - s[0].tokens for s in inside if len(s) > 1)
    return StreamWindow(gaps_s=np.concatenate(gaps), tokens=tokens)


def joined(windows: Sequence[StreamWindow]) -> StreamWindow:
    """The steps of several windows as one."""
    return StreamWindow(np.concatenate([w.gaps_s for w in windows]), sum(w.tokens for w in windows))


def half_width(values: FloatArray) -> float:
    """Half of a 95 % interval for the mean of values that are alike with their neighbours, from means of eight blocks.

    Student's t over the blocks: 2.36 standard errors with seven degrees of freedom, 12.7 with one (batch means: Law,
    Simulation Modeling and Analysis, section 9.5).
    """
    means = np.array([block.mean() for block in np.array_split(values, min(_BLOCKS, len(values)))])
    free = len(means) - 1
    return float(_T95[free - 1] * means.std(ddof=1) / np.sqrt(len(means))) if free else 0.0
