"""Adding profiles of the same thing: counts add, and what was measured under other conditions is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from functools import reduce
from hashlib import sha256
from typing import Any

import numpy as np

from treeopt.acceptance.chain import ChainRanks
from treeopt.acceptance.draft_lengths import DraftLengths, mixed_lengths
from treeopt.acceptance.paths import PathCount, PathCounts
from treeopt.acceptance.position import PositionSurvival
from treeopt.acceptance.profile import Conditions, RankEvidence, RankProfile, differs, stated
from treeopt.acceptance.table import DepthRanks
from treeopt.arrays import FloatArray
from treeopt.errors import InputError
from treeopt.tree import RankPath

# Acceptance under different ones of these is not an average of anything that runs.
_MUST_AGREE = ("target", "drafter", "temperature", "rule", "sampling")


def merge(profiles: Sequence[RankProfile], *, name: str, force: bool = False) -> RankProfile:
    """One profile with the counts of all; the order of `profiles` does not matter.

    Raises:
        InputError: fewer than two, the same one twice, evidence of different kinds or without counts, or (unless
            `force`) conditions that differ.
    """
    if len(profiles) < 2:
        raise InputError("one profile has nothing to merge with", hint="give two or more")
    hashes = [p.sha256 for p in profiles]
    twice = next((p for p in profiles if hashes.count(p.sha256) > 1), None)
    if twice is not None and not force:
        raise InputError(f"{twice.name} is given twice", hint="its counts would count double; drop one, or add --force")
    kinds = sorted({p.kind for p in profiles})
    if len(kinds) > 1:
        raise InputError(f"evidence of different kinds: {', '.join(kinds)}", hint="merge profiles of one kind")
    return RankProfile(
        name=name,
        evidence=reduce(_add, (p.evidence for p in sorted(profiles, key=lambda p: p.sha256))),
        conditions=_shared_conditions(profiles, force),
        sha256=sha256("".join(sorted(hashes)).encode()).hexdigest(),
        documents=sum(p.documents for p in profiles),
        note="; ".join(dict.fromkeys(p.note for p in profiles if p.note)),
        lengths=_shared_lengths(profiles),
    )


def _shared_lengths(profiles: Sequence[RankProfile]) -> DraftLengths | None:
    """By the drafts that each counts: what has no counts was refused."""
    trials = [p.evidence.trials or 0.0 for p in profiles]
    return mixed_lengths([(own / sum(trials), p.lengths) for own, p in zip(trials, profiles, strict=True)])


def _shared_conditions(profiles: Sequence[RankProfile], force: bool) -> Conditions:
    shared: dict[str, Any] = {}
    for key in (field.name for field in fields(Conditions)):
        values = stated(profiles, key)
        if len(values) > 1 and key in _MUST_AGREE and not force:
            raise differs(key, values, hint="merge what ran alike, or add --force if you know better")
        if len(values) == 1:
            shared[key] = next(iter(values))
        elif len(values) > 1 and key not in ("temperature", "rule", "sampling"):  # numbers and keywords do not join
            shared[key] = " + ".join(sorted(values))
    return Conditions(**shared)


def _add(a: RankEvidence, b: RankEvidence) -> RankEvidence:
    if isinstance(a, PathCounts) and isinstance(b, PathCounts):
        return _add_paths(a, b)
    if isinstance(a, ChainRanks) and isinstance(b, ChainRanks):
        return a.joined(b)
    if isinstance(a, DepthRanks) and isinstance(b, DepthRanks):
        return _add_tables(a, b)
    if isinstance(a, PositionSurvival) and isinstance(b, PositionSurvival):
        return _add_positions(a, b)
    raise InputError("means cannot be added", hint="merge the counts that they came from")


def _add_paths(a: PathCounts, b: PathCounts) -> PathCounts:
    sums: dict[RankPath, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for item in (*a, *b):
        count, trials = sums[item.path]
        sums[item.path] = (count + item.count, trials + item.trials)
    return PathCounts.from_items(a.starts + b.starts, [PathCount(path, *counts) for path, counts in sums.items()])


def _add_tables(a: DepthRanks, b: DepthRanks) -> DepthRanks:
    if a.counts is None or b.counts is None or a.reached is None or b.reached is None:
        raise _no_counts()
    shape = (max(len(a.counts), len(b.counts)), max(a.counts.shape[1], b.counts.shape[1]))
    return DepthRanks.from_counts(
        reached=_padded(a.reached[:, None], (shape[0], 1))[:, 0] + _padded(b.reached[:, None], (shape[0], 1))[:, 0],
        counts=_padded(a.counts, shape) + _padded(b.counts, shape),
    )


def _add_positions(a: PositionSurvival, b: PositionSurvival) -> PositionSurvival:
    if a.accepted is None or b.accepted is None or a.drafts is None or b.drafts is None:
        raise _no_counts()
    if len(a.accepted) != len(b.accepted):
        raise InputError(
            f"one ran chains of {len(a.accepted)} drafts, the other of {len(b.accepted)}",
            hint="the longer chain's last positions were tried in fewer drafts: merge runs of equal length",
        )
    return PositionSurvival.from_counts(drafts=a.drafts + b.drafts, accepted=a.accepted + b.accepted)


def _padded(values: FloatArray, shape: tuple[int, int]) -> FloatArray:
    out = np.zeros(shape)
    out[: values.shape[0], : values.shape[1]] = values
    return out


def _no_counts() -> InputError:
    return InputError("rates without counts cannot be added", hint="import the counts, or mix with --mix A=0.5,B=0.5")
