"""Rank profiles: acceptance evidence with its name and the conditions it was measured under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from treeopt.acceptance.draft_lengths import DraftLengths
from treeopt.acceptance.model import PathModel
from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.smoothing import SmoothedPaths
from treeopt.acceptance.table import DepthRanks
from treeopt.acceptance.trace import Trace
from treeopt.errors import InputError

RankEvidence = DepthRanks | PathCounts | PositionSurvival | MeanLength
EVIDENCE_KINDS: Final[dict[type[RankEvidence], str]] = {
    PathCounts: "paths",
    DepthRanks: "depth-rank",
    PositionSurvival: "position",
    MeanLength: "mean",
}


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the evidence was measured under; None where the profile does not say."""

    target: str | None = None
    drafter: str | None = None
    temperature: float | None = None
    rule: str | None = None
    dataset: str | None = None
    context: str | None = None
    sampling: str | None = None

    def known(self) -> dict[str, str | float]:
        """The conditions that are known, by name."""
        return {k: v for k, v in asdict(self).items() if v is not None}


@dataclass(frozen=True, kw_only=True)
class RankProfile:
    """Acceptance evidence; `note` is what a reader of any result made from it must be told, `source` who published it.

    `trace` holds the positions that the counts came from, where they were kept: documents and draft starts are found
    in it. `files` are those that it was read from, beside the profile itself. `lengths` are those of drafts where some
    steps have none, and those that have one verify what there is; None where every step has a whole one.
    """

    name: str
    evidence: RankEvidence
    conditions: Conditions
    sha256: str
    documents: int = 0
    note: str = ""
    source: str = ""
    trace: Trace | None = None
    files: tuple[Path, ...] = ()
    lengths: DraftLengths | None = None

    @property
    def kind(self) -> str:
        """The evidence kind: `paths`, `depth-rank`, `position` or `mean`."""
        return EVIDENCE_KINDS[type(self.evidence)]

    def model(self) -> PathModel:
        """f for every path within the measured depth and ranks."""
        return SmoothedPaths(self.evidence) if isinstance(self.evidence, PathCounts) else self.evidence.model()


def stated(profiles: Sequence[RankProfile], condition: str) -> dict[Any, str]:
    """The values of a condition that profiles state, each with the name of one that does."""
    values = {getattr(p.conditions, condition): p.name for p in profiles}
    return {value: name for value, name in values.items() if value is not None}


def differs(condition: str, values: Mapping[Any, str], *, hint: str) -> InputError:
    """The error for profiles that do not go together, with what `stated` found."""
    listed = ", ".join(f"{value} in {name}" for value, name in values.items())
    return InputError(f"{condition} differs: {listed}", hint=hint)
