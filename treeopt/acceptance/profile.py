"""Rank profiles: acceptance evidence with its name and the conditions it was measured under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from treeopt.acceptance.chain import ChainRanks
from treeopt.acceptance.draft_lengths import DraftLengths
from treeopt.acceptance.model import PathModel
from treeopt.acceptance.paths import PathCount, PathCounts
from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.smoothing import SmoothedPaths
from treeopt.acceptance.table import DepthRanks
from treeopt.acceptance.trace import Trace
from treeopt.arrays import FloatArray
from treeopt.draft_family import DynamicTree
from treeopt.errors import InputError

RankEvidence = DepthRanks | ChainRanks | PathCounts | PositionSurvival | MeanLength
EVIDENCE_KINDS: Final[dict[type[RankEvidence], str]] = {
    PathCounts: "paths",
    DepthRanks: "depth-rank",
    ChainRanks: "chain",
    PositionSurvival: "position",
    MeanLength: "mean",
}


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the evidence was measured under; None where the profile does not say."""

    SPARSE: ClassVar[bool] = True

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
class ChainGroup:
    """Some documents of a recorded chain: drafts that `reached` each depth, `counts[depth - 1][rank]` of them."""

    reached: tuple[float, ...]
    counts: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """A rank profile as its file holds it: counts wherever there are counts, else rates as `probabilities`.

    Of `paths`: `starts` drafts, and how often the target followed exactly this path, `[path, count]`, with a third
    number where its next depth was recorded less often. Of `depth-rank`: `counts[depth - 1][rank]` of the drafts that
    `reached` that depth. Of `chain`: the same of each of its `groups` of documents. Of `position`: how many of `drafts`
    were `accepted` at each depth. Of `mean`: one accepted length, with what was drafted. `draft_lengths`, where some
    steps have no draft: the shares of all steps whose draft has at least 1, 2, ... tokens.
    """

    FORMAT: ClassVar[str] = "treeopt.ranks/1"
    SPARSE: ClassVar[bool] = True
    EXACT: ClassVar[bool] = True

    name: str
    evidence: str
    reached: tuple[float, ...] | None = None
    counts: tuple[tuple[float, ...], ...] | None = None
    groups: tuple[ChainGroup, ...] | None = None
    starts: float | None = None
    paths: tuple[tuple[Any, ...], ...] | None = None
    mean_accepted_length: float | None = None
    draft_tokens: int | None = None
    drafted: DynamicTree | None = None
    bonus_counted: bool | None = None
    drafts: float | None = None
    accepted: tuple[float, ...] | None = None
    probabilities: tuple[Any, ...] | None = None
    draft_lengths: tuple[float, ...] | None = None
    documents: int = 0
    note: str = ""
    source: str = ""
    conditions: Conditions


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
        """The evidence kind: `paths`, `depth-rank`, `chain`, `position` or `mean`."""
        return EVIDENCE_KINDS[type(self.evidence)]

    def model(self) -> PathModel:
        """f for every path within the measured depth and ranks."""
        return SmoothedPaths(self.evidence) if isinstance(self.evidence, PathCounts) else self.evidence.model()

    def document(self) -> RankFile:
        """What its file holds."""
        return RankFile(
            name=self.name,
            evidence=self.kind,
            **_written(self.evidence),
            draft_lengths=None if self.lengths is None else self.lengths.at_least,
            documents=self.documents,
            note=self.note,
            source=self.source,
            conditions=self.conditions,
        )


def _written(evidence: RankEvidence) -> dict[str, Any]:
    if isinstance(evidence, PathCounts):
        rows = tuple(_path_row(item, evidence.depth) for item in evidence)
        return {"starts": _plain(evidence.starts), "paths": rows}
    if isinstance(evidence, MeanLength):
        return {
            "mean_accepted_length": evidence.mean_accepted_length,
            "draft_tokens": evidence.draft_tokens,
            "drafted": evidence.tree,
            "bonus_counted": True,
            "drafts": None if evidence.drafts is None else _plain(evidence.drafts),
        }
    if isinstance(evidence, PositionSurvival):
        if evidence.drafts is None or evidence.accepted is None:
            return {"probabilities": tuple(evidence.survival.tolist())}
        return {"drafts": _plain(evidence.drafts), "accepted": _plain_row(evidence.accepted)}
    if isinstance(evidence, ChainRanks):
        return {"groups": tuple(map(_group, evidence.group_reached, evidence.group_counts))}
    if evidence.reached is None or evidence.counts is None:
        return {"probabilities": tuple(evidence.rates.tolist())}
    return {"reached": _plain_row(evidence.reached), "counts": tuple(_plain_row(row) for row in evidence.counts)}


def _group(reached: FloatArray, counts: FloatArray) -> ChainGroup:
    """Without the zeros at the ends of rows."""
    rows = tuple(_plain_row(row[: np.flatnonzero(row).max(initial=0) + 1]) for row in counts)
    return ChainGroup(reached=_plain_row(reached), counts=rows)


def _path_row(item: PathCount, deepest: int) -> tuple[Any, ...]:
    cut = item.trials != item.count and len(item.path) < deepest
    return (item.path, _plain(item.count), *([_plain(item.trials)] if cut else []))


def _plain_row(values: FloatArray) -> tuple[float, ...]:
    return tuple(_plain(value) for value in values)


def _plain(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


def stated(profiles: Sequence[RankProfile], condition: str) -> dict[Any, str]:
    """The values of a condition that profiles state, each with the name of one that does."""
    values = {getattr(p.conditions, condition): p.name for p in profiles}
    return {value: name for value, name in values.items() if value is not None}


def differs(condition: str, values: Mapping[Any, str], *, hint: str) -> InputError:
    """The error for profiles that do not go together, with what `stated` found."""
    listed = ", ".join(f"{value} in {name}" for value, name in values.items())
    return InputError(f"{condition} differs: {listed}", hint=hint)
