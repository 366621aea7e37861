"""What a check of a running plan found, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from treeopt.check.change import Change, DriftVerdict
from treeopt.check.measured import Measured
from treeopt.solve.bucket import Bucket


class FindingKind(StrEnum):
    """What can be wrong with a running plan."""

    NOT_ACTIVE = "plan not active"
    ACCEPTANCE_FELL = "acceptance fell"
    ACCEPTANCE_ROSE = "acceptance rose"
    ABOVE_BOUND = "length above its bound"
    LARGER_TREE_ACCEPTS_LESS = "larger tree accepts less"
    COLLAPSE_AFTER_PAUSE = "collapse after a pause"


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

    bucket: Bucket
    source: Measured
    change: Change
    depths: tuple[DepthChange, ...] = ()
    regret: Regret | None = None

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
    """Everything that was compared and found; `notes` say what could not be checked and why."""

    kind: str
    gate: float
    compared: tuple[Compared, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def drifted(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.findings)

    def document(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return {
            "format": "treeopt.check/1",
            "kind": self.kind,
            "gate": self.gate,
            "drifted": self.drifted,
            "comparisons": [_comparison(c) for c in self.compared],
            "findings": [
                {"kind": f.kind.value, "where": f.where, "seen": f.seen, "next_step": f.next_step}
                for f in self.findings
            ],
            "notes": list(self.notes),
        }


def _comparison(compared: Compared) -> dict[str, Any]:
    change, regret = compared.change, compared.regret
    return {
        "batch": compared.bucket.batch,
        "context": compared.bucket.context,
        "source": compared.source.name,
        "steps": compared.source.steps,
        "mean_batch": compared.source.batch,
        "draft_tokens_per_draft": compared.source.drafted,
        "planned_tokens": change.planned,
        "measured_tokens": change.measured,
        "change": {"value": change.share, "low": change.low, "high": change.high},
        "detectable_change": change.detectable,
        "verdict": compared.verdict.value,
        "depths": compared.depths,
        "regret": None
        if regret is None
        else {
            "loss": regret.loss,
            "kept_tokens_per_s": regret.kept_tokens_per_s,
            "best_tokens_per_s": regret.best_tokens_per_s,
            "best_nodes": regret.nodes,
            "best_depth": regret.depth,
        },
    }
