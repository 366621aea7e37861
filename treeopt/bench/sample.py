"""What the passes of one way measured: tokens by document and step times by block, with paired redraws of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.intervals import REPLICATES, bootstrap_tokens, interval_of
from treeopt.acceptance.replay import Replay
from treeopt.answer import Estimate
from treeopt.arrays import FloatArray
from treeopt.bench.runs import DecodingSetup, Run
from treeopt.errors import InputError

_BLOCKS: Final = 16  # a pass is cut into so many, if every way has enough steps for it
_STEPS_PER_BLOCK: Final = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSample:
    """What one way measured at one batch size.

    Args:
        batch: B.
        replay: tokens and steps per document, over the same positions of the texts for all ways.
        block_times_s: `[blocks]` median times of full steps; block i of all ways was measured at the same time.
        context: mean committed length in the full steps.
        full_steps: how many there were.
    """

    batch: int
    replay: Replay
    block_times_s: FloatArray
    context: float
    full_steps: int

    @property
    def tokens_per_step(self) -> float:
        """E."""
        return self.replay.tokens_per_step

    @property
    def step_time_s(self) -> float:
        """The median of the blocks."""
        return float(np.median(self.block_times_s))

    @property
    def tokens_per_s(self) -> float:
        """Of the whole batch, while it is full: B E / step time."""
        return self.batch * self.tokens_per_step / self.step_time_s

    @property
    def documents(self) -> int:
        """Prompts of which a step counted."""
        return int(np.count_nonzero(self.replay.steps))

    @property
    def redrawn(self) -> int:
        """Documents or blocks, whichever are fewer: what an interval rests on."""
        return min(self.documents, len(self.block_times_s))

    def estimate(self, value: float, drawn: FloatArray) -> Estimate:
        """A number with the interval of its redraws."""
        interval = interval_of(drawn, self.redrawn)
        return (
            Estimate(value=value) if interval is None else Estimate(value=value, low=interval.low, high=interval.high)
        )


class RunRedraws(NamedTuple):
    """`[replicates]` E and step time of redrawn documents and blocks; rows of ways measured together are paired."""

    tokens: FloatArray
    step_time_s: FloatArray


def take_samples(passes: Sequence[Sequence[Run]], subject: DecodingSetup, *, batch: int) -> list[RunSample]:
    """One sample per way, from `[repeats][ways]` passes.

    Raises:
        InputError: no step ran with the whole batch and the whole tree, or the texts are shorter than the trees.
    """
    depth = max(way.tree.depth for way in passes[0])
    times_s = np.concatenate([_block_times(ways) for ways in passes], axis=1)
    samples = []
    for i, way_times_s in enumerate(times_s):
        own = [ways[i] for ways in passes]
        full = [step for way in own for step in way.steps if step.full]
        replay = _replay(own, subject, depth)
        if not full or not len(way_times_s) or not replay.steps.any():
            raise InputError(
                f"batch {batch}: the texts end before a step is measured with {len(own[0].tree)} nodes",
                hint=f"ask for more than {2 * depth + 2} new tokens, or for a smaller batch",
            )
        context = float(np.mean([step.context for step in full]))
        samples.append(
            RunSample(batch=batch, replay=replay, block_times_s=way_times_s, context=context, full_steps=len(full))
        )
    return samples


def draw_all(samples: Sequence[RunSample], *, seed: int) -> list[RunRedraws]:
    """Redraws of samples that were measured together."""
    tokens = bootstrap_tokens([sample.replay for sample in samples], seed=(seed, 0))
    blocks = len(samples[0].block_times_s)
    chosen = np.random.default_rng((seed, 1)).integers(0, blocks, (REPLICATES, blocks))
    return [
        RunRedraws(tokens[:, i], np.median(sample.block_times_s[chosen], axis=1)) for i, sample in enumerate(samples)
    ]


def _replay(passes: Sequence[Run], subject: DecodingSetup, depth: int) -> Replay:
    """Steps count that start more than `depth` tokens before the text's end.

    Whether a step counts then depends on where it starts, not on what it accepts, and no counted tree was pruned: the
    end of a text causes no bias, as in `treeopt.acceptance.replay`.
    """
    tokens, steps = np.zeros((2, len(subject.prompts)), dtype=np.int64)
    for way in passes:
        for step in way.steps:
            for request, written, emitted in step.entries:
                if written + depth < len(way.written[request]):
                    tokens[subject.document(request)] += emitted
                    steps[subject.document(request)] += 1
    return Replay(phases=len(passes), tokens=tokens, steps=steps, position_tokens=tokens, positions=steps)


def _block_times(ways: Sequence[Run]) -> FloatArray:
    """`[ways, blocks]` median times of full steps by their place in the texts, for places where all ways have some."""
    fewest = min(sum(step.full for step in way.steps) for way in ways)
    blocks = min(max(fewest // _STEPS_PER_BLOCK, 1), _BLOCKS)
    ends = [max((step.progress for step in way.steps if step.full), default=0) + 1 for way in ways]
    end = max(ends)
    times_s = np.full((len(ways), blocks), np.nan)
    for i, way in enumerate(ways):
        full = [step for step in way.steps if step.full]
        place = np.array([step.progress * blocks // end for step in full], dtype=np.int64)
        seconds = np.array([step.time_s for step in full])
        for block in np.unique(place):
            times_s[i, block] = np.median(seconds[place == block])
    return times_s[:, ~np.isnan(times_s).any(axis=0)]
