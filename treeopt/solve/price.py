"""What a draft gives at a batch size and context, where its own drafts start: the one place where a draft is priced."""

from __future__ import annotations

import numpy as np

from treeopt.acceptance.dynamic_tree import dynamic_tree_widths
from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Estimate
from treeopt.arrays import IntArray
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Draft
from treeopt.solve.options import Option, depth_of, nodes_of
from treeopt.solve.problem import Point
from treeopt.tree import DraftTree


def price(draft: Draft, traffic: Traffic, cost: StepCost, point: Point) -> Option:
    """E, step time and tokens/s of any draft, without intervals.

    Worked: E = 2.5 in steps of 10 ms at 8 requests gives 8 x 2.5 / 0.010 s = 2,000 tokens/s.
    """
    return option(draft, traffic.tokens(draft), step_time_s(draft, cost, point), point.batch)


def option(draft: Draft, tokens: float, time_s: float, batch: int) -> Option:
    """A draft with its E and step time."""
    return Option(
        draft=draft,
        acceptance_length=Estimate(value=tokens),
        step_time_s=time_s,
        tokens_per_s=Estimate.priced(batch * tokens / time_s),
    )


def step_time_s(draft: Draft, cost: StepCost, point: Point) -> float:
    """Seconds of one step with a draft."""
    batch, context = point
    widths = widths_of(draft, max(depth_of(draft), 1))
    return float(cost.step_time_s(batch, nodes_of(draft), depth_of(draft), widths, context))


def widths_of(draft: Draft, levels: int) -> IntArray:
    """`[levels]` nodes that the drafter expands per depth: those with children, all beams of a dynamic tree."""
    if not isinstance(draft, DraftTree):
        return dynamic_tree_widths(draft.num_steps, draft.topk, levels=levels)
    widths = np.zeros(levels, dtype=np.int64)
    widths[: draft.depth] = draft.expanded_widths
    return widths
