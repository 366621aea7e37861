"""`treeopt.ranks/1` files: rank profiles in YAML or JSON, as they are read."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import numpy as np

from treeopt.acceptance.chain import ChainRanks
from treeopt.acceptance.conversions import with_bonus
from treeopt.acceptance.draft_lengths import DraftLengths
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.paths import MAX_RANKS, PathCount, PathCounts
from treeopt.acceptance.position import MAX_DRAFT_TOKENS, MeanLength, PositionSurvival
from treeopt.acceptance.profile import EVIDENCE_KINDS, Conditions, RankEvidence, RankFile, RankProfile
from treeopt.acceptance.rules import read_rule
from treeopt.acceptance.table import DepthRanks
from treeopt.arrays import FloatArray
from treeopt.draft_family import SGLANG, DynamicTree
from treeopt.errors import InputError
from treeopt.files.documents import Document, Field
from treeopt.files.typed import check_format

COMMON_KEYS: Final = ("format", "name", "evidence", "conditions", "note", "source", "documents")
_PROFILE_KEYS: Final = (*COMMON_KEYS, "draft_lengths")


def read_profile(document: Document) -> RankProfile:
    """The profile that a document holds.

    Raises:
        FileFormatError: it is no profile, or its numbers contradict each other (with the line).
    """
    try:
        return _parse(document)
    except EvidenceError as error:
        raise document.error(str(error), *error.keys, hint=error.hint) from None


def _parse(document: Document) -> RankProfile:
    root = document.root
    check_format(root, RankFile.FORMAT, what="rank profile")
    kind = root.get("evidence").text()
    if kind == "depth-rank":
        root.only(*_PROFILE_KEYS, "reached", "counts", "probabilities")
        evidence: RankEvidence = _depth_ranks(root)
    elif kind == "chain":
        root.only(*_PROFILE_KEYS, "groups")
        evidence = _chain(root)
    elif kind == "paths":
        root.only(*_PROFILE_KEYS, "starts", "paths")
        evidence = _path_counts(root)
    elif kind == "position":
        root.only(*_PROFILE_KEYS, "drafts", "accepted", "probabilities")
        evidence = _position(root)
    elif kind == "mean":
        root.only(*_PROFILE_KEYS, "drafts", "mean_accepted_length", "draft_tokens", "drafted", "bonus_counted")
        evidence = _mean(root)
    else:
        known = ", ".join(sorted(EVIDENCE_KINDS.values()))
        raise root.get("evidence").error(f"unknown evidence '{kind}'", hint=f"known: {known}")
    return RankProfile(
        name=root.get("name").text(),
        evidence=evidence,
        conditions=read_conditions(root.get("conditions", {})),
        sha256=document.sha256,
        documents=root.get("documents", 0).integer(low=0),
        note=root.get("note", "").text(),
        source=root.get("source", "").text(),
        lengths=_lengths(root),
    )


def _lengths(root: Field) -> DraftLengths | None:
    if "draft_lengths" not in root.mapping():
        return None
    return DraftLengths(tuple(share.number() for share in root.get("draft_lengths").items()))


def _depth_ranks(root: Field) -> DepthRanks:
    if "probabilities" in root.mapping():
        return DepthRanks(rates=_table(root.get("probabilities")))
    reached = np.array([f.number(low=0) for f in root.get("reached").items()])
    return DepthRanks.from_counts(reached=reached, counts=_table(root.get("counts")))


def _chain(root: Field) -> ChainRanks:
    groups = list(root.get("groups").items())
    for group in groups:
        group.only("reached", "counts")
    reached = _rows([[f.number(low=0) for f in group.get("reached").items()] for group in groups])
    tables = [_table(group.get("counts")) for group in groups]
    if not groups or any(len(table) > reached.shape[1] for table in tables):
        raise root.get("groups").error("a depth that nothing reached", hint="give each group reached and counts")
    counts = np.zeros((*reached.shape, max(table.shape[1] for table in tables)))
    for own, table in zip(counts, tables, strict=True):
        own[: table.shape[0], : table.shape[1]] = table
    return ChainRanks.of_groups(reached, counts)


def _table(field: Field) -> FloatArray:
    return _rows([[cell.number() for cell in row.items()] for row in field.items()])


def _rows(rows: list[list[float]]) -> FloatArray:
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
        tree=_tree(root.get("drafted")) if "drafted" in root.mapping() else None,
        drafts=root.get("drafts").number(low=1) if "drafts" in root.mapping() else None,
    )


def _tree(field: Field) -> DynamicTree:
    field.only(*DynamicTree._fields)
    found = DynamicTree(*(field.get(name).integer(low=1, high=MAX_DRAFT_TOKENS) for name in DynamicTree._fields))
    try:
        SGLANG.check(found)
    except InputError as error:
        raise field.error(str(error), hint=error.hint) from None
    return found


def read_conditions(field: Field) -> Conditions:
    """What a profile or shard says it was measured under; what is null is not said.

    Raises:
        FileFormatError: an unknown key, rule or sampling, or a value of another type, with its line.
    """
    field.only(*(f.name for f in fields(Conditions)))
    values: dict[str, Any] = {}
    for key in field.mapping():
        item = field.get(key)
        if item.value is not None:
            values[key] = item.number(low=0) if key == "temperature" else item.text()
    if "rule" in values:
        read_rule(field.get("rule"))
    sampling = values.get("sampling")
    if sampling not in (None, "all-positions", "draft-starts"):
        raise field.get("sampling").error(f"unknown sampling '{sampling}'", hint="known: all-positions, draft-starts")
    return Conditions(**values)
