"""The search: price every best tree at every batch size, choose, and say what the alternatives would have cost.

Step time is a staircase in N, so tokens/s has many local maxima: the whole (N, D) grid is priced. For each grid point
the best tree is known exactly (`treeopt.frontier`), so for costs that do not depend on the widths per level the
maximum over the grid is the optimum over all trees. Where they do, the answer carries an upper bound
(`treeopt.bound`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from treeopt.bound import WIDTHS, narrow_bound, width_bound
from treeopt.buckets import Bucket, Sharing, share
from treeopt.capped import capped_families
from treeopt.cost.base import StepCost
from treeopt.errors import InputError, UnknownNameError
from treeopt.frontier import Family, Limits, best_families
from treeopt.grid import Options, chain_options, concatenate, tree_options
from treeopt.ranks.model import FloatArray, PathModel, expected_tokens, path_probabilities
from treeopt.tree import MAX_PREFIX, DraftTree

# Within this share of the best tokens/s the smaller tree wins: it frees memory and forgives a wrong cost model.
TIE = 0.005
MAX_BATCH = 1_000_000


class Objective(StrEnum):
    """What the best tree is best at."""

    THROUGHPUT = "throughput"
    """Tokens per second of the whole batch."""

    LENGTH = "length"
    """Expected tokens per step under the budget B x N."""


def parse_objective(text: str) -> Objective:
    """The objective of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if text not in [o.value for o in Objective]:
        raise UnknownNameError("objective", text, [o.value for o in Objective])
    return Objective(text)


@dataclass(frozen=True, kw_only=True)
class Priced:
    """One way to run a batch: a tree of `nodes` tokens per request, its E and the time of its step."""

    nodes: int
    depth: int
    expected_tokens: float
    step_time_s: float
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class RunnerUp:
    """The best other tree and the share of the objective it loses; negative if the tie rule passed over it."""

    tree: DraftTree
    option: Priced
    loss: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The answer for one bucket of batch sizes, priced at its largest batch.

    `gap` is the share by which any tree could at most beat the best one found; 0 means that one is optimal.
    `sharing_loss` is the most that any batch size of the bucket loses against its own best tree.
    """

    batch_min: int
    batch_max: int
    tree: DraftTree
    path_probabilities: FloatArray
    best: Priced
    chain: Priced
    plain: Priced
    runner_up: RunnerUp | None
    break_even_at_min: float
    sharing_loss: float
    gap: float

    @property
    def speculate(self) -> bool:
        """False where plain decoding is the answer."""
        return self.best.nodes > 1

    @property
    def speedup(self) -> float:
        """Tokens/s over plain decoding."""
        return self.best.tokens_per_s / self.plain.tokens_per_s

    @property
    def speedup_at_min(self) -> float:
        """Tokens/s over plain decoding at the bucket's smallest batch."""
        return self.best.expected_tokens / self.break_even_at_min

    @property
    def break_even_tokens(self) -> float:
        """Expected tokens that the step must exceed to pay."""
        return self.best.step_time_s / self.plain.step_time_s

    @property
    def tokens_per_step(self) -> int:
        """B x N."""
        return self.batch_max * self.best.nodes


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to optimise: the batch sizes, context, caps and aim.

    Each batch size answers for those above the previous one, and is judged at both ends of that range; the first
    answers from `first_batch` on (default: for itself).
    `budget_tokens` caps B x N; under `length` it defaults to the ridge. `max_trees` caps the buckets, `sharing_loss`
    is how much a batch size may lose by sharing its neighbour's tree.

    Raises:
        InputError: no batch, a batch below 1, a context below 0, or a budget below 1.
    """

    batches: tuple[int, ...]
    first_batch: int | None = None
    context: int = 2048
    limits: Limits = Limits()
    objective: Objective = Objective.THROUGHPUT
    budget_tokens: float | None = None
    sharing: Sharing = Sharing()

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of batch sizes, both ends included."""
        lows = [self.batches[0] if self.first_batch is None else self.first_batch, *(b + 1 for b in self.batches)]
        return tuple(zip(lows, self.batches, strict=False))

    def __post_init__(self) -> None:
        if not self.batches:
            raise InputError("no batch size", hint="give at least one, for example --batch 32")
        wrong = [b for b in self.batches if not 1 <= b <= MAX_BATCH]
        if wrong:
            raise InputError(f"batch {wrong[0]} is out of range", hint=f"a batch has 1 to {MAX_BATCH} requests")
        if list(self.batches) != sorted(set(self.batches)):
            raise InputError("batch sizes must rise", hint="list each batch size once, smallest first")
        if not 0 <= self.context <= MAX_PREFIX:
            raise InputError(f"context {self.context} is out of range", hint="give the committed tokens per request")
        if self.budget_tokens is not None and not self.budget_tokens >= 1:  # NaN too
            raise InputError(f"budget {self.budget_tokens:g} is out of range", hint="give 1 token per step or more")


def search(question: Question, ranks: PathModel, cost: StepCost) -> list[Choice]:
    """The best tree for every bucket of batch sizes.

    Exact for costs without widths; otherwise `Choice.gap` bounds what a better tree could gain.
    """
    return _Search(question, ranks, cost).choices()


def search_with_smaller(
    question: Question, ranks: PathModel, cost: StepCost, *, loss: float, most: int
) -> tuple[Choice, list[Choice]]:
    """One tree for all batch sizes, and the smaller ones that lose at most `loss` at the largest batch, smallest first.

    Of each size only the best is listed, and of more than `most` sizes evenly spaced ones.
    """
    space = _Search(replace(question, sharing=Sharing(max_trees=1)), ranks, cost)
    return space.choices()[0], space.smaller(loss, most)


def price_tree(tree: DraftTree, ranks: PathModel, cost: StepCost, *, batch: int, context: int) -> Priced:
    """E, step time and tokens/s of any tree, for comparisons."""
    widths = tree.expanded_widths if tree.depth else np.zeros(1, dtype=np.int64)
    time_s = float(cost.step_time_s(batch, len(tree), tree.depth, widths, context))
    tokens = expected_tokens(path_probabilities(ranks, tree))
    return Priced(
        nodes=len(tree),
        depth=tree.depth,
        expected_tokens=tokens,
        step_time_s=time_s,
        tokens_per_s=batch * tokens / time_s,
    )


class _Search:
    """The options, their prices and the bound on every better one, for one question."""

    def __init__(self, question: Question, ranks: PathModel, cost: StepCost) -> None:
        self.question, self.ranks, self.cost = question, ranks, cost
        self.sizes = sorted({size for ends in question.ranges for size in ends})
        self.batch = np.array(self.sizes, dtype=np.float64)[:, None]
        depth = max(ranks.depth, 1)
        families = _families(ranks, question.limits)
        trees = tree_options(families, depth)
        chains = chain_options(ranks, _capped(question.limits, ranks), families, depth)
        self.options = self.bounding = concatenate([chains, trees])
        self._price()
        self.bound = self._bound()
        by_throughput = question.objective is Objective.THROUGHPUT
        if by_throughput and ranks.product_form and (self.gap > TIE).any():
            self._narrow(depth)

    def choices(self) -> list[Choice]:
        tie = TIE if self.question.objective is Objective.THROUGHPUT else 0.0
        buckets = share(self.loss, size=self.options.nodes, tie=tie, sharing=self.question.sharing)
        return [self._choice(bucket) for bucket in buckets]

    def smaller(self, loss: float, most: int) -> list[Choice]:
        last = len(self.question.ranges) - 1
        value, nodes = self.value[-1], self.options.nodes
        largest = nodes[value.argmax()]
        near = np.flatnonzero((value >= (1.0 - loss) * value.max()) & (nodes < largest))
        best_of_size = {int(nodes[i]): int(i) for i in near[np.argsort(value[near], kind="stable")]}
        worst = self.loss.max(axis=0)
        options = [option for _, option in sorted(best_of_size.items())]
        spaced = options[:: max(-(-len(options) // most), 1)]
        return [self._choice(Bucket(0, last, option, float(worst[option]))) for option in spaced]

    @property
    def loss(self) -> FloatArray:
        """`[ranges, C]` what each option loses against the best one, at the worse end of each range."""
        loss = 1.0 - self.value / self.value.max(axis=1, keepdims=True)
        low, high = np.array([[self.sizes.index(size) for size in ends] for ends in self.question.ranges]).T
        return np.asarray(np.maximum(loss[low], loss[high]))

    @property
    def gap(self) -> FloatArray:
        """`[sizes]` the share by which a tree could at most beat the best option."""
        gap = self.bound / self.value.max(axis=1) - 1.0
        return np.asarray(np.where(gap > 1e-9, gap, 0.0))

    def _price(self) -> None:
        self.time_s = self.options.times_s(self.cost, self.sizes, self.question.context)
        if self.question.objective is Objective.LENGTH:
            self.value = np.broadcast_to(self.options.expected_tokens, self.time_s.shape).copy()
        else:
            self.value = np.asarray(self.batch * self.options.expected_tokens / self.time_s)
        self.value[self._over_budget(self.options)] = -np.inf

    def _over_budget(self, options: Options) -> npt.NDArray[np.bool_]:
        """`[batches, C]` what B x N forbids; plain decoding always may."""
        budget = self.question.budget_tokens
        if budget is None:
            budget = self.cost.ridge_tokens if self.question.objective is Objective.LENGTH else np.inf
        return np.asarray((self.batch * options.nodes > budget) & (options.nodes > 1))

    def _bound(self) -> FloatArray:
        if self.question.objective is Objective.LENGTH:
            bound = np.broadcast_to(self.bounding.upper_tokens, self._over_budget(self.bounding).shape).copy()
        else:
            bound = narrow_bound(self.bounding, self.cost, self.sizes, self.question.context)
        bound[self._over_budget(self.bounding)] = -np.inf
        return np.asarray(np.maximum(bound.max(axis=1), self.value.max(axis=1)))

    def _narrow(self, depth: int) -> None:
        """Where the gap exceeds a tie: add the best trees of limited width, and bound what lies between them."""
        limits = self.question.limits
        by_width = [best_families(self.ranks, limits, max_width=w) for w in WIDTHS]
        self.options = concatenate([self.options, *(tree_options(families, depth) for families in by_width)])
        self._price()
        allowed = ~self._over_budget(self.bounding)
        for i in np.flatnonzero(self.gap > 0.0):
            batch = self.sizes[i]
            bound = width_bound(self.bounding, by_width, self.cost, batch, self.question.context)[allowed[i]]
            self.bound[i] = min(self.bound[i], max(bound.max(initial=0.0), self.value[i].max()))

    def _choice(self, bucket: Bucket) -> Choice:
        option = bucket.option
        batch_min, batch_max = self.question.ranges[bucket.first][0], self.question.ranges[bucket.last][1]
        low, high = self.sizes.index(batch_min), self.sizes.index(batch_max)
        tree = self.options.tree(option)
        plain = self._priced(high, 0)
        scores = self.value[high]
        is_chain = (self.options.nodes == self.options.depth + 1) & (self.options.nodes > 1) & np.isfinite(scores)
        chains = np.where(is_chain, scores, -np.inf)
        return Choice(
            batch_min=batch_min,
            batch_max=batch_max,
            tree=tree,
            path_probabilities=path_probabilities(self.ranks, tree),
            best=self._priced(high, option),
            chain=self._priced(high, int(chains.argmax())) if is_chain.any() else plain,
            plain=plain,
            runner_up=self._runner_up(high, option),
            break_even_at_min=float(self.time_s[low, option] / self.time_s[low, 0]),
            sharing_loss=bucket.loss,
            gap=float(self.gap[low : high + 1].max()),
        )

    def _runner_up(self, batch: int, option: int) -> RunnerUp | None:
        nodes, depth = self.options.nodes, self.options.depth
        others = self.value[batch].copy()
        others[(nodes == nodes[option]) & (depth == depth[option])] = -np.inf
        other = int(others.argmax())
        if not np.isfinite(others[other]):
            return None
        loss = float(1.0 - others[other] / self.value[batch, option])
        return RunnerUp(tree=self.options.tree(other), option=self._priced(batch, other), loss=loss)

    def _priced(self, batch: int, option: int) -> Priced:
        time_s = float(self.time_s[batch, option])
        tokens = float(self.options.expected_tokens[option])
        return Priced(
            nodes=int(self.options.nodes[option]),
            depth=int(self.options.depth[option]),
            expected_tokens=tokens,
            step_time_s=time_s,
            tokens_per_s=self.sizes[batch] * tokens / time_s,
        )


def _families(ranks: PathModel, limits: Limits) -> Sequence[Family]:
    binds = limits.max_children is not None and limits.max_children < min(ranks.ranks, limits.max_ranks or ranks.ranks)
    return capped_families(ranks, limits) if binds and not ranks.product_form else best_families(ranks, limits)


def _capped(limits: Limits, ranks: PathModel) -> Limits:
    return Limits(max_nodes=min(limits.max_nodes, limits.depth_for(ranks) + 1))
