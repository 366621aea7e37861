"""Where a plan's steps lie on the hardware's roofline: memory bounds small ones, arithmetic large ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from treeopt.cost.step import ModelStep
from treeopt.files.typed import Count, Positive
from treeopt.plan.plan import Plan

_STEPS: Final = 24
_PAST_THE_RIDGE: Final = 2.0


class WeightsAt(NamedTuple):
    """Tokens of a step, and those per second that get through the target's weights in it."""

    tokens: Count
    tokens_per_s: Positive


class StepAt(NamedTuple):
    """A step of the plan (`nodes` of each request; 1 is plain decoding) on the roofline."""

    batch: Count
    nodes: Count
    at: WeightsAt


@dataclass(frozen=True, kw_only=True)
class WeightsRoofline:
    """The GEMMs of a target's weights, experts and logits included: `curve` as the step is priced, `steps` the plan's.

    `memory_s` is what streaming all weights once takes at the profile's bandwidth, `token_s` what one token's
    arithmetic takes at its peak; both null where experts are read as they are visited, so that no straight roof holds.
    Where the two lines of `tokens / memory_s` and `1 / token_s` meet is the ridge.
    """

    memory_s: Positive | None
    token_s: Positive | None
    curve: tuple[WeightsAt, ...]
    steps: tuple[StepAt, ...]

    @property
    def ridge_tokens(self) -> float | None:
        """Tokens per step at which both take as long."""
        return None if self.memory_s is None or self.token_s is None else self.memory_s / self.token_s


def roofline_of(plan: Plan, cost: ModelStep) -> WeightsRoofline:
    """The roofline of the plan's target; `plan` is for one range of contexts."""
    most = max(b.verified_tokens for b in plan.buckets)
    last = max(most, round(_PAST_THE_RIDGE * cost.ridge_tokens))
    sizes = np.unique(np.geomspace(1, last, _STEPS).round().astype(int)).tolist()
    steps = [*((b.batch.max, 1) for b in plan.buckets), *((b.batch.max, b.nodes) for b in plan.buckets if b.speculate)]
    through = _through(cost, sizes + [batch * nodes for batch, nodes in steps])
    memory_s = token_s = None
    if cost.model.experts is None:
        shape = cost.model.shard(cost.tp)
        formats = cost.formats
        parts = ((shape.layer_parameters, formats.layers), (shape.lm_head.weights, formats.wide))
        forms = [(n * d.bytes_per_value, n, cost.times.gemm_form(d)) for n, d in parts]
        memory_s = sum(size / form.bandwidth_bytes_per_s for size, _, form in forms)
        token_s = sum(2 * n / form.peak_flops for _, n, form in forms)
    return WeightsRoofline(
        memory_s=memory_s,
        token_s=token_s,
        curve=through[: len(sizes)],
        steps=tuple(StepAt(*step, at) for step, at in zip(steps, through[len(sizes) :], strict=True)),
    )


def _through(cost: ModelStep, tokens: Sequence[int]) -> tuple[WeightsAt, ...]:
    seconds = cost.weights_s(np.array(tokens, dtype=np.float64))
    return tuple(WeightsAt(t, t / s) for t, s in zip(tokens, seconds.tolist(), strict=True))
