"""Rank profiles: acceptance evidence with its name and the conditions it was measured under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from treeopt.acceptance.conversions import with_bonus
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.model import PathModel
from treeopt.acceptance.paths import MAX_RANKS, PathCount, PathCounts
from treeopt.acceptance.position import MAX_DRAFT_TOKENS, MeanLength, PositionSurvival
from treeopt.acceptance.rules import read_rule
from treeopt.acceptance.shard_files import KINDS
from treeopt.acceptance.smoothing import SmoothedPaths
from treeopt.acceptance.table import DepthRanks
from treeopt.acceptance.trace import Trace, TraceFile
from treeopt.arrays import FloatArray
from treeopt.errors import InputError
from treeopt.files.documents import Document, Field, read_document

FORMAT: Final = "treeopt.ranks/1"
Evidence = DepthRanks | PathCounts | PositionSurvival | MeanLength
_KINDS: Final[dict[type[Evidence], str]] = {
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


class TraceSource(Protocol):
    """Where a profile's counts came from: one file or a set of shards."""

    def load(self, *, confidence: bool = False) -> Trace:
        """The whole trace in memory, the drafter's probabilities only with `confidence`."""


@dataclass(frozen=True, kw_only=True)
class RankProfile:
    """Acceptance evidence; `note` is what a reader of any result made from it must be told.

    `trace` is the file that the counts came from, if there is one: documents and draft starts are found in it.
    """

    name: str
    evidence: Evidence
    conditions: Conditions
    sha256: str
    documents: int = 0
    note: str = ""
    trace: TraceSource | None = None

    @property
    def kind(self) -> str:
        """The evidence kind: `paths`, `depth-rank`, `position` or `mean`."""
        return _KINDS[type(self.evidence)]

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


def load_profile(path: Path) -> RankProfile:
    """Read a rank profile (YAML, JSON) or a trace (NPZ, Parquet, JSONL, or a folder of shards).

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is not a profile, or its numbers contradict each other (with the line).
    """
    if path.is_dir() or path.suffix in KINDS:
        from treeopt.acceptance.shards import open_trace, read_conditions

        trace = open_trace(path)
        if isinstance(trace, TraceFile):
            return replace(_from_trace(trace), conditions=read_conditions(path))
        return trace.profile(name=path.stem)
    document = read_document(path, what="rank profile")
    try:
        return _parse(document, folder=path.parent)
    except EvidenceError as error:
        raise document.error(str(error), *error.keys, hint=error.hint) from None


def profile_document(profile: RankProfile) -> dict[str, Any]:
    """The profile as the value of a `treeopt.ranks/1` file: counts wherever there are counts."""
    value: dict[str, Any] = {"format": FORMAT, "name": profile.name, "evidence": profile.kind}
    value |= _evidence_fields(profile.evidence)
    if profile.documents:
        value["documents"] = profile.documents
    if profile.note:
        value["note"] = profile.note
    return {**value, "conditions": profile.conditions.known()}


def _evidence_fields(evidence: Evidence) -> dict[str, Any]:
    if isinstance(evidence, PathCounts):
        return {
            "starts": _plain(evidence.starts),
            "paths": [_path_row(item, evidence.depth) for item in evidence],
        }
    if isinstance(evidence, MeanLength):
        drafts = {} if evidence.drafts is None else {"drafts": _plain(evidence.drafts)}
        mean = {"mean_accepted_length": evidence.mean_accepted_length, "draft_tokens": evidence.draft_tokens}
        return {**mean, "bonus_counted": True, **drafts}
    if isinstance(evidence, PositionSurvival):
        if evidence.drafts is None or evidence.accepted is None:
            return {"probabilities": evidence.survival.tolist()}
        return {"drafts": _plain(evidence.drafts), "accepted": [_plain(x) for x in evidence.accepted]}
    if evidence.reached is None or evidence.counts is None:
        return {"probabilities": evidence.rates.tolist()}
    return {
        "reached": [_plain(x) for x in evidence.reached],
        "counts": [[_plain(x) for x in row] for row in evidence.counts],
    }


def _parse(document: Document, folder: Path) -> RankProfile:
    root = document.root
    found = root.get("format").text()
    if found != FORMAT:
        raise root.get("format").error(f"this is '{found}'", hint=f"a rank profile starts with `format: {FORMAT}`")
    kind = root.get("evidence").text()
    common = ("format", "name", "evidence", "conditions", "note", "documents")
    if kind == "depth-rank":
        root.only(*common, "reached", "counts", "probabilities")
        evidence: Evidence = _depth_ranks(root)
    elif kind == "paths":
        root.only(*common, "starts", "paths", "trace")
        if "trace" in root.mapping():
            return _with_trace(root, folder)
        evidence = _path_counts(root)
    elif kind == "position":
        root.only(*common, "drafts", "accepted", "probabilities")
        evidence = _position(root)
    elif kind == "mean":
        root.only(*common, "drafts", "mean_accepted_length", "draft_tokens", "bonus_counted")
        evidence = _mean(root)
    else:
        known = ", ".join(sorted(_KINDS.values()))
        raise root.get("evidence").error(f"unknown evidence '{kind}'", hint=f"known: {known}")
    return RankProfile(
        name=root.get("name").text(),
        evidence=evidence,
        conditions=_conditions(root),
        sha256=document.sha256,
        documents=root.get("documents", 0).integer(low=0),
        note=root.get("note", "").text(),
    )


def _depth_ranks(root: Field) -> DepthRanks:
    if "probabilities" in root.mapping():
        return DepthRanks(rates=_table(root.get("probabilities")))
    reached = np.array([f.number(low=0) for f in root.get("reached").items()])
    return DepthRanks.from_counts(reached=reached, counts=_table(root.get("counts")))


def _table(field: Field) -> FloatArray:
    rows = [[cell.number() for cell in row.items()] for row in field.items()]
    width = max((len(row) for row in rows), default=0)
    return np.array([row + [0.0] * (width - len(row)) for row in rows])


def _path_counts(root: Field) -> PathCounts:
    items = []
    for entry in root.get("paths").items():
        parts = list(entry.items())
        if len(parts) not in (2, 3):
            raise entry.error(
                f"{len(parts)} values",
                hint="write [path, count], or [path, count, times its next depth was recorded]",
            )
        path = tuple(rank.integer(low=0, high=MAX_RANKS - 1) for rank in parts[0].items())
        if not path:
            raise parts[0].error("the root is listed as a path", hint="the root's count is `starts`")
        count = parts[1].number(low=0)
        items.append(PathCount(path, count, parts[2].number(low=0, high=count) if len(parts) == 3 else count))
    return PathCounts.from_items(root.get("starts").number(low=1), items)


def _position(root: Field) -> PositionSurvival:
    if "probabilities" in root.mapping():
        return PositionSurvival(survival=np.array([f.number() for f in root.get("probabilities").items()]))
    accepted = np.array([f.number() for f in root.get("accepted").items()])
    return PositionSurvival.from_counts(drafts=root.get("drafts").number(), accepted=accepted)


def _mean(root: Field) -> MeanLength:
    length = root.get("mean_accepted_length").number()
    return MeanLength(
        mean_accepted_length=length if root.get("bonus_counted").boolean() else with_bonus(length),
        draft_tokens=root.get("draft_tokens").integer(low=1, high=MAX_DRAFT_TOKENS),
        drafts=root.get("drafts").number(low=1) if "drafts" in root.mapping() else None,
    )


def _with_trace(root: Field, folder: Path) -> RankProfile:
    measured = _from_trace(TraceFile(folder / root.get("trace").text()))
    return replace(
        measured,
        name=root.get("name").text(),
        conditions=_conditions(root),
        note=root.get("note", "").text(),
    )


def _from_trace(trace: TraceFile) -> RankProfile:
    return RankProfile(
        name=trace.path.stem,
        evidence=trace.count(),
        conditions=Conditions(sampling="all-positions"),
        sha256=trace.sha256(),
        documents=trace.documents(),
        trace=trace,
    )


def _conditions(root: Field) -> Conditions:
    field = root.get("conditions", {})
    field.only(*(f.name for f in fields(Conditions)))
    values: dict[str, Any] = {}
    for key in field.mapping():
        item = field.get(key)
        values[key] = item.number(low=0) if key == "temperature" else item.text()
    if "rule" in values:
        read_rule(field.get("rule"))
    sampling = values.get("sampling")
    if sampling not in (None, "all-positions", "draft-starts"):
        raise field.get("sampling").error(f"unknown sampling '{sampling}'", hint="known: all-positions, draft-starts")
    return Conditions(**values)


def _path_row(item: PathCount, deepest: int) -> list[Any]:
    row: list[Any] = [list(item.path), _plain(item.count)]
    cut = item.trials != item.count and len(item.path) < deepest
    return [*row, _plain(item.trials)] if cut else row


def _plain(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)
