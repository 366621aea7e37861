"""Rank profiles: acceptance evidence with its name and the conditions it was measured under."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from treeopt.documents import Document, Field, read_document
from treeopt.ranks.errors import EvidenceError
from treeopt.ranks.model import FloatArray, PathModel
from treeopt.ranks.paths import MAX_RANKS, PathCount, PathCounts
from treeopt.ranks.smoothing import SmoothedPaths
from treeopt.ranks.table import DepthRanks
from treeopt.ranks.trace import TraceFile

FORMAT: Final = "treeopt.ranks/1"
Evidence = DepthRanks | PathCounts


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
    """Acceptance evidence; `note` is what a reader of any result made from it must be told."""

    name: str
    evidence: Evidence
    conditions: Conditions
    sha256: str
    documents: int = 0
    note: str = ""

    @property
    def kind(self) -> str:
        """The evidence kind: `paths` or `depth-rank`."""
        return "paths" if isinstance(self.evidence, PathCounts) else "depth-rank"

    def model(self) -> PathModel:
        """f for every path within the measured depth and ranks."""
        return SmoothedPaths(self.evidence) if isinstance(self.evidence, PathCounts) else self.evidence.model()


def load_profile(path: Path) -> RankProfile:
    """Read a rank profile (YAML, JSON) or a trace (NPZ).

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is not a profile, or its numbers contradict each other (with the line).
    """
    if path.suffix == ".npz":
        return _from_trace(TraceFile(path))
    document = read_document(path, what="rank profile")
    try:
        return _parse(document, folder=path.parent)
    except EvidenceError as error:
        raise document.error(str(error), *error.keys, hint=error.hint) from None


def profile_document(profile: RankProfile) -> dict[str, Any]:
    """The profile as the value of a `treeopt.ranks/1` file: counts wherever there are counts."""
    value: dict[str, Any] = {"format": FORMAT, "name": profile.name, "evidence": profile.kind}
    evidence = profile.evidence
    if isinstance(evidence, PathCounts):
        value["starts"] = _plain(evidence.starts)
        value["paths"] = [_path_row(item, evidence.depth) for item in evidence]
    elif evidence.reached is None or evidence.counts is None:
        value["probabilities"] = evidence.rates.tolist()
    else:
        value["reached"] = [_plain(x) for x in evidence.reached]
        value["counts"] = [[_plain(x) for x in row] for row in evidence.counts]
    if profile.documents:
        value["documents"] = profile.documents
    if profile.note:
        value["note"] = profile.note
    return {**value, "conditions": profile.conditions.known()}


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
    else:
        raise root.get("evidence").error(f"unknown evidence '{kind}'", hint="known: depth-rank, paths")
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


def _with_trace(root: Field, folder: Path) -> RankProfile:
    field = root.get("trace")
    measured = _from_trace(TraceFile(folder / field.text()))
    return RankProfile(
        name=root.get("name").text(),
        evidence=measured.evidence,
        conditions=_conditions(root),
        sha256=measured.sha256,
        documents=measured.documents,
        note=root.get("note", "").text(),
    )


def _from_trace(trace: TraceFile) -> RankProfile:
    return RankProfile(
        name=trace.path.stem,
        evidence=trace.count(),
        conditions=Conditions(sampling="all-positions"),
        sha256=trace.sha256(),
        documents=trace.documents(),
    )


def _conditions(root: Field) -> Conditions:
    field = root.get("conditions", {})
    field.only(*(f.name for f in fields(Conditions)))
    values: dict[str, Any] = {}
    for key in field.mapping():
        item = field.get(key)
        values[key] = item.number(low=0) if key == "temperature" else item.text()
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
