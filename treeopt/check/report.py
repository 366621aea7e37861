"""What a check of a running plan found, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from treeopt.answer import Span
from treeopt.check.change import Change, DriftVerdict
from treeopt.check.measured import Measured
from treeopt.draft_words import NODES, DraftWords
from treeopt.solve.bucket import Bucket


class FindingKind(StrEnum):
    """What can be wrong with a running plan."""

    NOT_ACTIVE = "plan not active"
    ACCEPTANCE_FELL = "acceptance fell"
    ACCEPTANCE_ROSE = "acceptance rose"
    ABOVE_BOUND = "length above its bound"
    LARGER_TREE_ACCEPTS_LESS = "larger tree accepts less"
    COLLAPSE_AFTER_PAUSE = "collapse after a pause"
    STOPPED_FOR_GOOD = "drafting stopped for good"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong: where, what was seen, and what to do next."""

    kind: FindingKind
    where: str
    seen: str
    next_step: str


@dataclass(frozen=True, kw_only=True)
class DepthChange:
    """Acceptance at one depth given the one before it, as planned and as measured."""

    depth: int
    planned: float
    measured: float


@dataclass(frozen=True, kw_only=True)
class Regret:
    """What keeping a bucket's tree costs under the fresh acceptance: it against the best tree now.

    `loss` is the share of tokens/s; the best tree has `nodes` nodes and `depth`, 1 and 0 being plain decoding.
    """

    WRITTEN: ClassVar[tuple[str, ...]] = ("loss", "kept_tokens_per_s", "best_tokens_per_s", "nodes", "depth")
    kept_tokens_per_s: float
    best_tokens_per_s: float
    nodes: int
    depth: int

    @property
    def loss(self) -> float:
        """The share of tokens/s that the old tree loses."""
        return max(0.0, 1.0 - self.kept_tokens_per_s / self.best_tokens_per_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """One source against one bucket; `depths` are those compared, empty where only means were known."""

    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("batch", "context", "source", "steps", "mean_batch", "draft_tokens_per_draft", "planned_length"),
        *("measured_length", "change", "detectable_change", "verdict", "depths", "regret"),
    )
    bucket: Bucket
    measured: Measured
    change: Change
    depths: tuple[DepthChange, ...] = ()
    regret: Regret | None = None

    @property
    def batch(self) -> Span:
        """The bucket's batch sizes."""
        return self.bucket.batch

    @property
    def context(self) -> Span:
        """The bucket's contexts."""
        return self.bucket.context

    @property
    def source(self) -> str:
        """What the file calls it."""
        return self.measured.name

    @property
    def steps(self) -> float | None:
        """Over how many steps of requests it was counted, null where that is not known."""
        return self.measured.steps

    @property
    def mean_batch(self) -> float | None:
        """Running requests per step, null where the file does not tell."""
        return self.measured.batch

    @property
    def draft_tokens_per_draft(self) -> float | None:
        """As export's "at work if" has it, null where it was not counted."""
        return self.measured.drafted

    @property
    def planned_length(self) -> float:
        """E as planned, over the depths that are compared."""
        return self.change.planned

    @property
    def measured_length(self) -> float:
        """E as measured, over the same depths."""
        return self.change.measured

    @property
    def detectable_change(self) -> float | None:
        """The share that this much evidence shows with 95 % probability."""
        return self.change.detectable

    @property
    def verdict(self) -> DriftVerdict:
        """Of E."""
        return self.change.verdict

    @property
    def most_changed(self) -> DepthChange | None:
        """The depth whose acceptance changed by the largest share."""
        known = [d for d in self.depths if d.planned > 0.0]
        return max(known, key=lambda d: abs(d.measured / d.planned - 1.0), default=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckReport:
    """Everything that was compared and found; `notes` say what could not be checked and why, `words` count drafts."""

    FORMAT: ClassVar[str] = "treeopt.check/2"
    WRITTEN: ClassVar[tuple[str, ...]] = ("drifted", "findings", "comparisons", "kind", "gate", "notes")
    kind: str
    gate: float
    comparisons: tuple[Compared, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    words: DraftWords = NODES

    @property
    def drifted(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.findings)
