"""What a search finds: the best tree of a bucket, and what the alternatives would have cost."""

from __future__ import annotations

from dataclasses import dataclass

from treeopt.arrays import FloatArray
from treeopt.draft_family import Draft, DynamicTree
from treeopt.tree import DraftTree


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
    """The best other draft and the share of the objective it loses; negative if the tie rule passed over it."""

    draft: Draft
    option: Priced
    loss: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The answer for one bucket of batch sizes, priced at its largest batch.

    `gap` is the share by which any tree could at most beat the best one found; 0 means that one is optimal.
    `sharing_loss` is the most that any batch size of the bucket loses against its own best tree. Where no tree stays
    within the limits on the time per token at both ends, `meets_limit` is false: for one batch size the tree is the one
    that exceeds them least, for several it loses least at the worst end.
    Of a dynamic tree, `dynamic`, `tree` is the one that it builds on average confidence.
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
    meets_limit: bool = True
    dynamic: DynamicTree | None = None

    @property
    def draft(self) -> Draft:
        """What is drafted."""
        return self.tree if self.dynamic is None else self.dynamic

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
