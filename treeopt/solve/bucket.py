"""What a search answers and a plan holds: priced drafts, and the batch sizes and contexts that each one serves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Final

import numpy as np

from treeopt.answer import Estimate, Span
from treeopt.arrays import FloatArray
from treeopt.draft_family import Draft, DynamicTree
from treeopt.files.typed import Between, Group, Key, NotNegative, Positive, Whole
from treeopt.solve.options import AtBatch, Category, CostSensitivity, EngineLoss, Minimax, Optimality, Option, PaysIf
from treeopt.solve.time_limit import TimePerToken
from treeopt.tree import DraftTree


class Verdict(StrEnum):
    """Whether speculation pays against plain decoding in the same engine."""

    PAYS = "pays"
    DOES_NOT_PAY = "does-not-pay"
    NOT_KNOWN = "not-known"


# Numbers of six digits, multiplied: what follows from three of them is off by this share at most.
_ROUNDED: Final = 5e-5


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The answer for a range of batch sizes and of contexts, priced at the largest of both.

    `acceptance_length` is E, tokens per step with the bonus token; `break_even_length` the E that the step must exceed
    to pay; `speedup` is over plain decoding, `chain_speedup` that of the best chain, both with the error of the price;
    `pays_if` is what decides where that error covers 1. These and `plain` are None where plain decoding was neither
    measured nor priced; `missing` names the runs that would tell. `path_probabilities [N]` is f of every node;
    `held_out_length` is E on documents that took no part in the search; `ridge_batch` the largest batch whose B x N
    stays under the ridge; `time_per_token` is what a request waits, `meets_limit` whether that is within the plan's
    limits (None without limits); `smallest_visible_gain` is the smallest share of tokens/s to the runner-up that the
    documents can tell. `sharing_loss` is the most that an end of the range loses against its own best draft,
    `changes_loss` what a listed batch size loses so that fewer ranges change, `by_batch` the loss of each. Of a dynamic
    tree, `dynamic`, `tree` is the one that it builds on average confidence: its f may sum to another E. `engine_loss`
    is None in plans that were not made for an engine. `minimax` stands beside one draft that was chosen by weights.
    """

    WRITTEN: ClassVar[tuple[str | Group, ...]] = (
        *("batch", "context", "speculate", "verdict", "pays_if", "missing", "num_speculative_tokens", "nodes", "depth"),
        *("paths", "parents", "dynamic", "acceptance_length", "tokens_per_s", "speedup", "break_even_length"),
        *("step_time_s", "verified_tokens", "best_chain", "plain", "reason", "optimality"),
        Group(
            "evidence",
            (
                *("path_probabilities", "held_out_length", "time_per_token", "meets_limit", "speedup_at_min"),
                *("chain_speedup", "ridge_batch", "runner_up", "sharing_loss", "changes_loss", "by_batch"),
                *("smallest_visible_gain", "categories", "engine_loss", "minimax"),
            ),
        ),
        "sensitivity",
    )
    batch: Annotated[Span, Between(1)]
    context: Annotated[Span, Between(0)]
    tree: Annotated[DraftTree, Key("paths")]
    dynamic: Annotated[DynamicTree, Between(1)] | None = None
    acceptance_length: Estimate
    tokens_per_s: Estimate
    speedup: Estimate | None
    break_even_length: NotNegative | None
    step_time_s: Positive
    best_chain: Option
    plain: Option | None
    missing: tuple[str, ...] = ()
    pays_if: PaysIf | None = None
    chain_speedup: Estimate | None = None
    reason: str
    optimality: Optimality
    path_probabilities: Annotated[FloatArray, Between(0.0, 1.0)]
    held_out_length: Estimate | None = None
    time_per_token: Annotated[TimePerToken, Between(1e-300)] | None = None
    meets_limit: bool | None = None
    speedup_at_min: NotNegative | None
    ridge_batch: Whole
    runner_up: Option | None = None
    sharing_loss: float
    changes_loss: NotNegative = 0.0
    by_batch: tuple[AtBatch, ...] = ()
    smallest_visible_gain: NotNegative | None = None
    categories: tuple[Category, ...] = ()
    engine_loss: EngineLoss | None = None
    minimax: Minimax | None = None
    sensitivity: CostSensitivity | None = None

    @property
    def draft(self) -> Draft:
        """What is drafted: the dynamic tree where there is one."""
        return self.tree if self.dynamic is None else self.dynamic

    @property
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The largest batch size and context, and the smallest."""
        return (self.batch.max, self.context.max), (self.batch.min, self.context.min)

    @property
    def serves_several(self) -> bool:
        """Whether one draft serves more than one batch size or context."""
        return self.ends[0] != self.ends[1]

    @property
    def batches(self) -> str:
        """The batch sizes in words: `4` or `5-8`."""
        return self.batch.words

    @property
    def speculate(self) -> bool:
        """False where plain decoding is deployed."""
        return len(self.tree) > 1

    @property
    def verdict(self) -> Verdict:
        """Whether speculation pays; not known where plain decoding is not, or where the price's error covers 1."""
        if self.speedup is None:
            return Verdict.NOT_KNOWN
        gain = self.speedup if self.speculate else self.chain_speedup
        if gain is None or gain.low is None or gain.high is None:
            return Verdict.PAYS if self.speculate and self.speedup.value > 1.0 else Verdict.DOES_NOT_PAY
        if gain.low <= 1.0 <= gain.high:
            return Verdict.NOT_KNOWN
        return Verdict.PAYS if gain.low > 1.0 else Verdict.DOES_NOT_PAY

    @property
    def nodes(self) -> int:
        """N, tokens that a request verifies per step, the root included."""
        return len(self.tree)

    @property
    def num_speculative_tokens(self) -> int:
        """K = N - 1, as vLLM counts: of 9 nodes 8."""
        return self.nodes - 1

    @property
    def depth(self) -> int:
        """D, the longest path."""
        return self.tree.depth

    @property
    def parents(self) -> list[int]:
        """`[N]` parent of every node, -1 for the root."""
        parents: list[int] = self.tree.parents.tolist()
        return parents

    @property
    def verified_tokens(self) -> int:
        """B x N: 32 requests of 10 nodes verify 320 tokens per step."""
        return self.batch.max * self.nodes

    @property
    def choice(self) -> Option:
        """The chosen draft, priced at the largest batch and context."""
        return Option(
            draft=self.draft,
            acceptance_length=self.acceptance_length,
            step_time_s=self.step_time_s,
            tokens_per_s=self.tokens_per_s,
        )

    def loss_of(self, option: Option) -> float:
        """The share of tokens/s that an option lies below the choice, below 0 above it: 950 beside 1,000 loses 0.05."""
        return 1.0 - option.tokens_per_s.value / self.tokens_per_s.value

    def contradictions(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Where numbers contradict others, as keys from the bucket down, and what is wrong; nowhere as it was made."""
        f, tree = self.path_probabilities, self.tree
        for key, span in (("batch", self.batch), ("context", self.context)):
            if span.min > span.max:
                yield (key,), f"from {span.min} to {span.max}: the second is below the first"
        if len(f) != len(tree):
            yield ("path_probabilities",), f"{len(f)} values for {len(tree)} nodes"
            return
        above = np.concatenate([[1.0], f[tree.parents[1:]]])
        wrong = np.flatnonzero(f > above + 1e-9)
        if len(wrong) or f[0] != 1.0:
            node = int(wrong[0]) if len(wrong) else 0
            yield ("path_probabilities",), f"f of node {node} is {f[node]:g}: the root has 1, f never rises on a path"
        for key, given, right, what in self._equations():
            if not math.isclose(given, right, rel_tol=_ROUNDED):
                yield tuple(key.split(".")), f"{given:g}, but {what} {right:g}"

    def _equations(self) -> Iterator[tuple[str, float, float, str]]:
        """Key, its number, what that must be, and why in words."""
        if self.dynamic is None:
            tokens = float(self.path_probabilities.sum())
            yield "acceptance_length.value", self.acceptance_length.value, tokens, "the path probabilities sum to"
        options = {"": self.choice, "best_chain.": self.best_chain, "plain.": self.plain, "runner_up.": self.runner_up}
        for name, option in options.items():
            if option is not None:
                rate = self.batch.max * option.acceptance_length.value / option.step_time_s
                why = "batch x acceptance length / step time is"
                yield f"{name}tokens_per_s.value", option.tokens_per_s.value, rate, why
        if self.plain is not None and self.break_even_length is not None and self.speedup is not None:
            ratio = self.step_time_s / self.plain.step_time_s
            yield "break_even_length", self.break_even_length, ratio, "the step takes, in plain steps,"
            gain = self.tokens_per_s.value / self.plain.tokens_per_s.value
            yield "speedup.value", self.speedup.value, gain, "tokens/s over those of plain decoding are"
        if self.time_per_token is not None:
            mean_s = self.step_time_s / self.acceptance_length.value
            yield "time_per_token.mean_s", self.time_per_token.mean_s, mean_s, "step time / acceptance length is"
        if self.sensitivity is not None:
            whole = sum(term.step_s for term in self.sensitivity.terms)
            yield "sensitivity.terms", whole, self.step_time_s, "the step takes"
