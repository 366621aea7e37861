"""A world in which a step takes exactly what a price list says: a toy whose passes move a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from costs import FakeCost
from decode.models import noisy, toy

from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.acceptance.trace import Trace
from treeopt.acceptance.traffic import Part, Traffic
from treeopt.answer import Estimate
from treeopt.bench.result import BenchCell, MeasuredStep, Residual
from treeopt.bench.runs import DecodingSetup, Method, RunPlan
from treeopt.cost.step_cost import StepCost
from treeopt.decode.decoder import Decoding
from treeopt.decode.toy import ToyTransformer
from treeopt.solve.price import option
from treeopt.tree import DraftTree

STEP_S, TOKEN_S = 0.01, 0.0005


def price_list(scale: float = 1.0) -> FakeCost:
    """A step of B x N tokens takes `scale (STEP_S + TOKEN_S B N)`."""
    return FakeCost(step_s=scale * STEP_S, token_s=scale * TOKEN_S, ridge_tokens=100.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class TimedToy(ToyTransformer):
    """Moves the clock by a step's price in every pass of the target; drafting is free."""

    clock: Clock

    def forward(self, step: Any, cache: Any, *, at: Any = None) -> Any:
        self.clock.now_s += STEP_S + TOKEN_S * step.tokens.size
        return super().forward(step, cache, at=at)


def subject_of(prompts: list[tuple[int, ...]], *, seed: int = 7, tokens: int = 24, scale: float = 0.5) -> DecodingSetup:
    """A toy that decodes under a fake clock, drafted for by itself under noise."""
    plain = toy(seed)
    target = TimedToy(plain.shape, seed=seed)
    target.clock = Clock()
    return DecodingSetup(
        target=target,
        drafter=lambda: noisy(plain, scale=scale),
        decoding=Decoding(max_new_tokens=tokens),
        prompts=tuple(prompts),
        clock=target.clock,
    )


def lanes(trees: Sequence[DraftTree], batch: int) -> list[RunPlan]:
    return [RunPlan(tree, batch) for tree in trees]


def random_prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(0, 16, rng.integers(2, 9)).tolist()) for _ in range(count)]


@dataclass(frozen=True, kw_only=True)
class World:
    """Traffic and prices; `treeopt.planner.inputs.Inputs` as far as predictions need it."""

    evidence: Traffic
    cost: FakeCost


def world_of(trace: Trace, cost: FakeCost | None = None) -> World:
    counts: PathCounts = trace.count()
    profile = RankProfile(
        name="toy", evidence=counts, conditions=Conditions(), sha256="0" * 64, documents=trace.documents
    )
    part = Part(name="toy", weight=1.0, profile=profile, trace=trace)
    return World(evidence=Traffic(parts=(part,)), cost=cost or price_list())


def cells_of(
    cost: StepCost, batches: Sequence[int], chains: Sequence[int], *, scale: float = 1.5, context: int = 300
) -> list[BenchCell]:
    """Chains that took `scale` times what the price list says, and emitted 1.5 tokens."""
    return [_cell(cost, batch, DraftTree.chain(depth), scale, context) for batch in batches for depth in chains]


def _cell(cost: StepCost, batch: int, tree: DraftTree, scale: float, context: int) -> BenchCell:
    widths = np.ones((1, max(tree.depth, 1)), dtype=np.int64)
    shape = (np.array([size]) for size in (batch, len(tree), tree.depth))
    predicted_s = float(cost.step_time_s(*shape, widths, context)[0])
    none, tokens = Estimate(value=0.0), Estimate(value=1.5 if tree.depth else 1.0)
    rate = batch * tokens.value / predicted_s
    return BenchCell(
        batch=batch,
        context=context,
        way=Method(names=(f"chain:{tree.depth}",), tree=tree),
        predicted=option(tree, tokens.value, predicted_s, batch),
        measured=MeasuredStep(tokens, Estimate(value=scale * predicted_s), Estimate(value=rate / scale), 20),
        residual=Residual(acceptance=none, cost=none, total=none),
    )
