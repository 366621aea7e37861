"""The question that a search answers: batch sizes, context, caps, limits and aim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from treeopt.errors import InputError, UnknownNameError
from treeopt.solve.best_trees import Limits
from treeopt.solve.buckets import Sharing
from treeopt.solve.families import ANY_TREE, Shape
from treeopt.solve.latency import NO_LIMIT, Latency
from treeopt.tree import MAX_PREFIX

MAX_BATCH: Final = 1_000_000
DEFAULT_CONTEXT: Final = 2048


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


class Point(NamedTuple):
    """Where a step is priced: requests, and committed tokens of each."""

    batch: int
    context: int


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to optimise: the batch sizes, context, caps and aim.

    Each batch size answers for those above the previous one, and is judged at both ends of that range; the first
    answers from `first_batch` on (default: for itself). The same tree serves the contexts from `first_context`
    (default: `context`) to `context` and is judged at both ends of those too.
    `budget_tokens` caps B x N; under `length` it defaults to the ridge. `latency` caps the time per token.
    `sharing` says how much a batch size may lose by sharing its neighbour's tree. `shape` is what may be drafted;
    without `may_be_off` something must be, and with `longest_first` no range drafts deeper than the first one.

    Raises:
        InputError: no batch, a batch below 1, a context below 0, or a budget below 1.
    """

    batches: tuple[int, ...]
    first_batch: int | None = None
    context: int = DEFAULT_CONTEXT
    first_context: int | None = None
    limits: Limits = Limits()
    objective: Objective = Objective.THROUGHPUT
    budget_tokens: float | None = None
    latency: Latency = NO_LIMIT
    sharing: Sharing = Sharing()
    shape: Shape = ANY_TREE
    may_be_off: bool = True
    longest_first: bool = False

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

    def at(self, point: Point) -> Question:
        """The same question for one batch size and context."""
        return replace(self, batches=(point.batch,), first_batch=None, context=point.context, first_context=None)

    def over(self, contexts: Sequence[int]) -> tuple[Question, ...]:
        """One question per range of contexts: a listed one answers for those above the previous one.

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
        if not 0 <= self.context_min <= self.context <= MAX_PREFIX:
            raise InputError(f"context {self.context} is out of range", hint="give the committed tokens per request")
        if self.budget_tokens is not None and not self.budget_tokens >= 1:  # NaN too
            raise InputError(f"budget {self.budget_tokens:g} is out of range", hint="give 1 token per step or more")
