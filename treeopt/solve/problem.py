"""The problem that a search solves: batch sizes, context, caps, limits and aim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from treeopt.acceptance.model import PathModel
from treeopt.draft_family import ANY_TREE, OFF, Chains, DraftFamily, StaticTrees
from treeopt.errors import InputError, SearchError, UnknownNameError
from treeopt.solve.buckets import Sharing
from treeopt.solve.time_limit import NO_LIMIT, TimeLimit
from treeopt.solve.weights import BatchWeight
from treeopt.tree import MAX_NODES, MAX_PREFIX

MAX_BATCH: Final = 1_000_000
DEFAULT_CONTEXT: Final = 2048
# Within this share of the best tokens/s the smaller draft wins: it frees memory and forgives a wrong cost model.
TIE: Final = 0.005


class Objective(StrEnum):
    """What the best draft is best at."""

    THROUGHPUT = "throughput"
    """Tokens per second of the whole batch."""

    LENGTH = "length"
    """E, tokens per step, under the budget B x N."""


def parse_objective(text: str) -> Objective:
    """The objective of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if text not in [o.value for o in Objective]:
        raise UnknownNameError("objective", text, [o.value for o in Objective])
    return Objective(text)


class Point(NamedTuple):
    """Where a step is priced: requests, and committed tokens of each."""

    batch: int
    context: int


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Caps on the trees that may be chosen; None leaves the evidence's own cap.

    `max_nodes` counts the root, as N does. `max_children` is the number of children of one node, `max_ranks` the
    number of guesses the drafter lists (ranks 0 to max_ranks - 1).

    Raises:
        SearchError: a cap below 1 (a depth below 0), or more than `MAX_NODES` nodes.
    """

    max_nodes: int = 64
    max_depth: int | None = None
    max_children: int | None = None
    max_ranks: int | None = None

    def __post_init__(self) -> None:
        for name, value, low in (
            ("max-nodes", self.max_nodes, 1),
            ("max-depth", self.max_depth, 0),
            ("max-children", self.max_children, 1),
            ("max-ranks", self.max_ranks, 1),
        ):
            if value is not None and value < low:
                raise SearchError(f"--{name} {value} leaves no tree", hint=f"give {low} or more")
        if self.max_nodes > MAX_NODES:
            raise SearchError(f"--max-nodes {self.max_nodes} is out of range", hint=f"give {MAX_NODES} or fewer")

    def depth_for(self, model: PathModel) -> int:
        """The deepest level that both the caps and the evidence allow."""
        return model.depth if self.max_depth is None else min(self.max_depth, model.depth)

    def within(self, family: DraftFamily) -> Limits:
        """The same, no wider and no deeper than the drafts of a family."""
        if isinstance(family, Chains):
            return replace(self, max_depth=_least(self.max_depth, family.max_length))
        if isinstance(family, StaticTrees):
            ranks, depth = _least(self.max_ranks, family.max_ranks), _least(self.max_depth, family.max_depth)
            return replace(self, max_ranks=ranks, max_depth=depth)
        return self


def _least(a: int | None, b: int | None) -> int | None:
    return min((cap for cap in (a, b) if cap is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What to optimise: the batch sizes, context, caps and aim.

    Each batch size answers for those above the previous one, and is judged at both ends of that range; the first
    answers from `first_batch` on (default: for itself). The same draft serves the contexts from `first_context`
    (default: `context`) to `context` and is judged at both ends of those too.
    `budget_tokens` caps B x N; under `length` it defaults to the ridge. `time_limit` caps the time per token.
    `sharing` says how much a batch size may lose by sharing its neighbour's draft. `family` is what may be drafted;
    without `may_be_off` something must be. Unless `only_listed`, the search asks more batch sizes where it helps.
    `weights` say how often each listed batch size runs: where fewer drafts than needed may be held, those that give
    the most tokens/s over the weights are; without weights those with the smallest largest loss.

    Raises:
        InputError: no batch, a batch below 1, a context below 0, a budget below 1, or a weight of an unlisted batch.
    """

    batches: tuple[int, ...]
    first_batch: int | None = None
    context: int = DEFAULT_CONTEXT
    first_context: int | None = None
    limits: Limits = Limits()
    objective: Objective = Objective.THROUGHPUT
    budget_tokens: float | None = None
    time_limit: TimeLimit = NO_LIMIT
    sharing: Sharing = Sharing()
    family: DraftFamily = ANY_TREE
    may_be_off: bool = True
    only_listed: bool = False
    weights: tuple[BatchWeight, ...] = ()

    @property
    def caps(self) -> Limits:
        """The limits, and those of the family."""
        return self.limits.within(self.family)

    @property
    def off_is_allowed(self) -> bool:
        """Whether plain decoding may be the answer."""
        return self.may_be_off and self.family.refusal(OFF) is None

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of batch sizes, both ends included."""
        lows = [self.batches[0] if self.first_batch is None else self.first_batch, *(b + 1 for b in self.batches)]
        return tuple(zip(lows, self.batches, strict=False))

    @property
    def context_min(self) -> int:
        """The shortest context."""
        return self.context if self.first_context is None else self.first_context

    @property
    def ends(self) -> tuple[Point, ...]:
        """The corners of all batch sizes and contexts together, without repeats; the last has the most of both."""
        low, high = self.ranges[0][0], self.ranges[-1][1]
        corners = [Point(b, c) for c in (self.context_min, self.context) for b in (low, high)]
        return tuple(dict.fromkeys(corners))

    def filled(self) -> Problem:
        """The problem with powers of two between listed batch sizes that are more than a factor of 2 apart.

        Worked: 1, 8, 24 become 1, 2, 4, 8, 16, 24.
        """
        between = {
            size
            for low, high in pairwise((*([] if self.first_batch is None else [self.first_batch]), *self.batches))
            for size in (1 << n for n in range(low.bit_length(), high.bit_length()))
            if low < size < high and high > 2 * low
        }
        return replace(self, batches=tuple(sorted({*self.batches, *between})))

    def at(self, point: Point) -> Problem:
        """The same problem for one batch size and context."""
        return replace(self.only((point.batch,), None), context=point.context, first_context=None)

    def only(self, batches: tuple[int, ...], first_batch: int | None) -> Problem:
        """The same problem for some of its batch sizes."""
        weights = tuple(weight for weight in self.weights if weight.batch in batches)
        return replace(self, batches=batches, first_batch=first_batch, weights=weights)

    def over(self, contexts: Sequence[int]) -> tuple[Problem, ...]:
        """One problem per range of contexts: a listed one answers for those above the previous one.

        Raises:
            InputError: contexts that do not rise or are out of range.
        """
        if list(contexts) != sorted(set(contexts)):
            raise InputError("contexts must rise", hint="list each context once, shortest first")
        lows = [None, *(c + 1 for c in contexts)]
        return tuple(replace(self, context=c, first_context=low) for low, c in zip(lows, contexts, strict=False))

    def __post_init__(self) -> None:
        if not self.batches:
            raise InputError("no batch size", hint="give at least one, for example --batch 32")
        wrong = [b for b in self.batches if not 1 <= b <= MAX_BATCH]
        if wrong:
            raise InputError(f"batch {wrong[0]} is out of range", hint=f"a batch has 1 to {MAX_BATCH} requests")
        if list(self.batches) != sorted(set(self.batches)):
            raise InputError("batch sizes must rise", hint="list each batch size once, smallest first")
        if unlisted := [weight.batch for weight in self.weights if weight.batch not in self.batches]:
            raise InputError(
                f"batch {unlisted[0]} has a weight and is not listed", hint="list it among the batch sizes"
            )
        if not 0 <= self.context_min <= self.context <= MAX_PREFIX:
            raise InputError(f"context {self.context} is out of range", hint="give the committed tokens per request")
        if self.budget_tokens is not None and not 1 <= self.budget_tokens < math.inf:  # NaN too
            raise InputError(f"budget {self.budget_tokens:g} is out of range", hint="give 1 token per step or more")
