"""Why a plan's tree has the size it has: every node's gain against its price, and what would flip the answer.

The nodes come best first, so every prefix is the best of its size among the tree's own nodes. A node raises tokens/s
where it gains more tokens per step than E x (price / step time), both before it joins: the rest of the step has to wait
for it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from treeopt.acceptance.model import PathModel, path_probabilities
from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Note, Span
from treeopt.cost.step_cost import StepCost
from treeopt.cost.terms import ExpertVisits, Term
from treeopt.draft_family import ANY_TREE, OFF
from treeopt.draft_words import NODES, DraftWords
from treeopt.errors import InputError
from treeopt.files.typed import Count, Whole
from treeopt.plan.plan import Plan
from treeopt.planner.engine_room import EngineRoom, engine_room
from treeopt.planner.inputs import Inputs
from treeopt.planner.reasons import cliff
from treeopt.planner.sensitivity import TermedCost, cost_sensitivity, step_terms
from treeopt.planner.wording import price_warnings, words_in
from treeopt.solve.bucket import Bucket
from treeopt.solve.draft_starts import rivals_at
from treeopt.solve.options import CostSensitivity, Option
from treeopt.solve.price import price
from treeopt.solve.problem import Limits, Point, Problem
from treeopt.solve.report import best_chain
from treeopt.solve.weights import OverWeights
from treeopt.tree import DraftTree, RankPath

# The nodes that follow the tree's own are priced up to this size, or so many of them.
_SIZES: Final = 64
_NEXT: Final = 8


class Growth(NamedTuple):
    """What one node adds to one term of the step."""

    term: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Addition:
    """One more node per request: what it adds to the acceptance length, and the step with it.

    `gain` is the acceptance length with it less that without it, each size at its own draft starts: f itself where
    acceptance does not depend on them. `needed_gain` is the gain from which on it raises tokens/s; `chosen` says if
    the plan's tree has it. `growth` are the terms that grow, the largest first, `experts` those that a layer's tokens
    visit (None without experts).
    """

    WRITTEN: ClassVar[tuple[str, ...]] = (
        *(
            "path",
            "chosen",
            "f",
            "gain",
            "needed_gain",
            "pays",
            "price_s",
            "nodes",
            "depth",
            "acceptance_length",
            "step_time_s",
        ),
        *("tokens_per_s", "growth", "experts"),
    )
    path: tuple[int, ...]
    chosen: bool
    f: float
    gain: float
    needed_gain: float
    price_s: float
    option: Option
    growth: tuple[Growth, ...]
    experts: ExpertVisits | None

    @property
    def pays(self) -> bool:
        """Whether it alone raises tokens/s."""
        return self.gain > self.needed_gain

    @property
    def nodes(self) -> int:
        """N with it."""
        return self.option.nodes

    @property
    def depth(self) -> int:
        """D with it."""
        return self.option.depth

    @property
    def acceptance_length(self) -> float:
        """E with it."""
        return self.option.acceptance_length.value

    @property
    def step_time_s(self) -> float:
        """The step with it."""
        return self.option.step_time_s

    @property
    def tokens_per_s(self) -> float:
        """Of the whole batch with it."""
        return self.option.tokens_per_s.value


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A bucket's tree at one batch size and context.

    `additions` are its nodes, best first, then those that would come next. `best_here` is the best choice for this
    batch size and context alone, whatever an engine loads; `sensitivity` is None where the step time does not come in
    terms, `cliff` where the step is not beside a jump of its time. `expected` is what the plan gives over its weights
    of batch sizes, which chose its draft where one serves all; None without weights. `engine` says how much the engine
    may add before another draft is as fast; None for step times that the user gave. `words` count drafts as the plan's
    engine does; `notes` are what its prices are warned of.
    """

    FORMAT: ClassVar[str] = "treeopt.explain/2"
    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("batch", "context", "bucket_batch", "bucket_context", "speculate", "choice", "plain", "best_here", "peak"),
        *("plain_experts", "additions", "cliff", "expected", "engine", "sensitivity"),
    )
    batch: Count
    context: Whole
    bucket: Bucket
    choice: Option
    plain: Option
    plain_experts: ExpertVisits | None
    best_here: Option
    additions: tuple[Addition, ...]
    sensitivity: CostSensitivity | None
    cliff: str | None = None
    expected: OverWeights | None = None
    engine: EngineRoom | None = None
    words: DraftWords = NODES
    notes: tuple[Note, ...] = ()

    @property
    def bucket_batch(self) -> Span:
        """The batch sizes that share the plan's tree."""
        return self.bucket.batch

    @property
    def bucket_context(self) -> Span:
        """The contexts that share it."""
        return self.bucket.context

    @property
    def speculate(self) -> bool:
        """Whether the plan speculates there."""
        return self.bucket.speculate

    @property
    def stop(self) -> Addition | None:
        """The first node that the tree does not have, if any follows."""
        return next((a for a in self.additions if not a.chosen), None)

    @property
    def peak(self) -> Option:
        """The fastest of plain decoding and all sizes listed."""
        return max((self.plain, *(a.option for a in self.additions)), key=lambda option: option.tokens_per_s.value)


@runtime_checkable
class _Routed(Protocol):
    def visits(self, batch: int, nodes: int) -> ExpertVisits | None:
        """Distinct experts that a layer's tokens are expected to visit."""


def explain(plan: Plan, inputs: Inputs, *, batch: int, context: int | None = None) -> Explanation:
    """Price the plan's tree for a batch size node by node, from the plan's own evidence.

    `context` defaults to the longest of the bucket's.

    Raises:
        InputError: the plan was not made for that batch size or context.
    """
    bucket = plan.bucket_for(batch, context)
    point = Point(batch, bucket.context.max if context is None else context)
    traffic, cost = inputs.evidence, inputs.cost
    problem = Problem(
        batches=(batch,),
        context=point.context,
        limits=plan.limits,
        objective=plan.objective,
        budget_tokens=plan.budget_tokens,
        time_limit=plan.time_limit,
        family=inputs.measured or ANY_TREE,
    )
    choice, plain = (price(draft, traffic, cost, point) for draft in (bucket.tree, OFF))
    if not np.isfinite(plain.step_time_s):
        raise InputError(
            f"plain decoding was not measured at batch {batch}: there is nothing to explain a gain over",
            hint="measure a run without speculation (K = 0)",
        )
    rivals = rivals_at(problem, point, traffic, cost)
    best, chain = rivals.fastest(cost), best_chain(rivals.prices, 0) or plain
    other = best if best.draft != bucket.draft or bucket.runner_up is None else bucket.runner_up
    runner_up = None if other.draft == bucket.draft else price(other.draft, traffic, cost, point)
    return Explanation(
        batch=batch,
        context=point.context,
        bucket=bucket,
        choice=choice,
        plain=plain,
        plain_experts=_visits(cost, batch, 1),
        best_here=best,
        additions=tuple(_additions(bucket.tree, traffic, plan.limits, cost, point)),
        sensitivity=cost_sensitivity(_alone(bucket, point, choice, plain, chain, runner_up), problem, traffic, cost),
        cliff=cliff(cost, batch * bucket.nodes),
        expected=plan.expected,
        words=words_in(plan),
        notes=price_warnings(plan),
        engine=None
        if inputs.price_error is None
        else engine_room(choice, plain, runner_up or bucket.runner_up, batch, inputs.kernels),
    )


def _alone(
    bucket: Bucket, point: Point, choice: Option, plain: Option, chain: Option, runner_up: Option | None
) -> Bucket:
    """The bucket for one batch size and context; the best draft there is the runner-up if it is another one."""
    return replace(
        bucket,
        batch=Span(point.batch, point.batch),
        context=Span(point.context, point.context),
        dynamic=None,
        acceptance_length=choice.acceptance_length,
        tokens_per_s=choice.tokens_per_s,
        step_time_s=choice.step_time_s,
        plain=plain,
        best_chain=chain,
        runner_up=runner_up,
    )


def _additions(tree: DraftTree, traffic: Traffic, limits: Limits, cost: StepCost, point: Point) -> Iterator[Addition]:
    """Node by node: f is that at the whole tree's draft starts, each size is priced at its own."""
    ranks = traffic.model_under(tree)
    own = traffic.path_probabilities(tree)
    order = 1 + np.argsort(-own[1:], kind="stable")
    nodes = [(tree.nodes[i], float(own[i])) for i in order.tolist()]
    nodes += _following(tree, ranks, limits, max(_SIZES - len(tree), _NEXT))
    paths: list[RankPath] = []
    before = price(OFF, traffic, cost, point)
    for path, f in nodes:
        smaller = DraftTree(tuple(paths))
        paths.append(path)
        larger = DraftTree(tuple(paths))
        priced = price(larger, traffic, cost, point)
        if not np.isfinite(priced.step_time_s):
            return  # a table of chains has no time for what would follow
        price_s = priced.step_time_s - before.step_time_s
        yield Addition(
            path=path,
            chosen=len(larger) <= len(tree),
            f=f,
            gain=priced.acceptance_length.value - before.acceptance_length.value,
            needed_gain=before.acceptance_length.value * price_s / before.step_time_s,
            price_s=price_s,
            option=priced,
            growth=_growth(smaller, larger, cost, point),
            experts=_visits(cost, point.batch, len(larger)),
        )
        before = priced


def _following(tree: DraftTree, ranks: PathModel, limits: Limits, count: int) -> list[tuple[RankPath, float]]:
    """The likeliest nodes that the tree could grow next within all caps but that on nodes, with their f."""
    known = set(tree.nodes)
    children = Counter(path[:-1] for path in tree.paths)
    found: list[tuple[RankPath, float]] = []
    waiting: list[tuple[float, int, RankPath]] = []

    def offer(path: RankPath, f: float) -> None:
        if len(path) >= limits.depth_for(ranks):
            return
        row = f * ranks.conditional(np.array(path, dtype=np.int64).reshape(1, len(path)))[0, : limits.max_ranks]
        for rank in np.flatnonzero(row > 0.0).tolist():
            if (*path, rank) not in known:
                heapq.heappush(waiting, (-float(row[rank]), len(path) + 1, (*path, rank)))

    for path, f in zip(tree.nodes, path_probabilities(ranks, tree).tolist(), strict=True):
        offer(path, f)
    while waiting and len(found) < count:
        loss, _, path = heapq.heappop(waiting)
        if limits.max_children is not None and children[path[:-1]] >= limits.max_children:
            continue
        children[path[:-1]] += 1
        found.append((path, -loss))
        offer(path, -loss)
    return found


def _growth(smaller: DraftTree, larger: DraftTree, cost: StepCost, point: Point) -> tuple[Growth, ...]:
    if not isinstance(cost, TermedCost):
        return ()
    less, more = step_terms(cost, smaller, point), step_terms(cost, larger, point)
    grown = [Growth(term.value, more.of(term) - less.of(term)) for term in Term]
    return tuple(sorted((g for g in grown if g.seconds != 0.0), key=lambda g: -abs(g.seconds)))


def _visits(cost: StepCost, batch: int, nodes: int) -> ExpertVisits | None:
    return cost.visits(batch, nodes) if isinstance(cost, _Routed) else None
