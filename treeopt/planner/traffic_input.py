"""The traffic that a plan is for, by name or file: one rank profile, a mixture, or what a table of steps measured."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.profile import RankProfile, differs, stated
from treeopt.acceptance.traffic import Part, Traffic
from treeopt.errors import InputError
from treeopt.files.shipped import Located, is_there, locate
from treeopt.plan.sources import RanksPart, RanksSource

if TYPE_CHECKING:
    from treeopt.cost.tables.loading import CostTable


# So many draft lengths are named in a message.
_NAMED: Final = 8


def load_traffic(text: str, *, confidence: bool = False) -> tuple[Traffic, RanksSource]:
    """A rank profile by name or file, or a mixture of several: `code.npz=0.3,chat.npz=0.7`, shares of the drafts.

    Raises:
        InputError: an unknown name, an unreadable file, shares that do not sum to 1, or parts that were measured under
            different rules.
    """
    if "=" not in text or is_there(text):
        return _one_profile(text, confidence)
    shares = [_share(item) for item in text.split(",")]
    if abs(sum(share for _, share in shares) - 1.0) > 1e-6:
        total = sum(share for _, share in shares)
        raise InputError(
            f"the shares of '{text}' sum to {total:g}", hint="they are shares of the drafts: make them sum to 1"
        )
    if len({name for name, _ in shares}) != len(shares):
        raise InputError(f"'{text}' names a profile twice", hint="add its shares")
    located = [locate("ranks", name) for name, _ in shares]
    profiles = [load_profile(at.path, keep=True, confidence=confidence) for at in located]
    rules = stated(profiles, "rule")
    if len(rules) > 1:
        raise differs("rule", rules, hint="mix what ran alike: a plan is for one rule")
    parts = tuple(_part(profile, share) for profile, (_, share) in zip(profiles, shares, strict=True))
    evidence = Traffic(parts=parts)
    combined = hashlib.sha256("".join(part.profile.sha256 for part in parts).encode()).hexdigest()
    return evidence, RanksSource(
        name=text,
        sha256=combined,
        evidence=" + ".join(dict.fromkeys(part.profile.kind for part in parts)),
        depth=evidence.all_positions.depth,
        ranks=evidence.all_positions.ranks,
        parts=tuple(
            RanksPart(name=at.reference, file=file_of(at), share=share)
            for at, (_, share) in zip(located, shares, strict=True)
        ),
    )


def _one_profile(text: str, confidence: bool) -> tuple[Traffic, RanksSource]:
    located = locate("ranks", text)
    profile = _by_length(located.path) or load_profile(located.path, keep=True, confidence=confidence)
    return _evidence_of(profile, file_of(located))


def _by_length(path: Path) -> RankProfile | None:
    """The acceptance of a table of runs with several draft lengths, of which one says what all of them do together."""
    if path.suffix.lower() != ".csv":
        return None
    from treeopt.cost.tables.loading import load_cost_table

    try:
        table = load_cost_table(path)
    except InputError:  # some other table: the importers say what is wrong with it
        return None
    return table.profile() if len(table.lengths) > 1 else None


def _evidence_of(profile: RankProfile, file: str | None) -> tuple[Traffic, RanksSource]:
    evidence, trials = Traffic(parts=(_part(profile, 1.0),)), profile.evidence.trials
    return evidence, RanksSource(
        name=profile.name,
        file=file,
        sha256=profile.sha256,
        evidence=profile.kind,
        depth=evidence.all_positions.depth,
        ranks=evidence.all_positions.ranks,
        positions=None if trials is None else round(trials),
        documents=profile.documents or None,
        drafter=profile.conditions.drafter,
        temperature=profile.conditions.temperature,
        sampling="draft-starts" if profile.trace is not None else profile.conditions.sampling,
    )


def _share(item: str) -> tuple[str, float]:
    name, _, number = item.strip().rpartition("=")
    try:
        share = float(number)
    except ValueError:
        share = -1.0
    if not name or not 0.0 < share <= 1.0:
        raise InputError(f"'{item.strip()}' is not a share", hint="write NAME_OR_FILE=SHARE, for example code.npz=0.3")
    return name, share


def _part(profile: RankProfile, weight: float) -> Part:
    return Part(name=profile.name, weight=weight, profile=profile, trace=profile.trace)


def traffic_of_table(table: CostTable, file: str) -> tuple[Traffic, RanksSource]:
    """The acceptance that a table of step times measured itself: the demonstration's says nothing of its drafter.

    Raises:
        InputError: it has none.
    """
    profile = table.profile()
    if profile is None:
        raise InputError(
            f"{table.name} has step times without acceptance{_pays_from(table)}",
            hint="give --ranks, which may be a table with a column accept_len, or such a column in this one",
        )
    return _evidence_of(profile, file)


def _pays_from(table: CostTable) -> str:
    """What a draft must yield to pay: all that step times alone can say."""
    found = table.break_evens()
    if found is None:
        return ""
    batch, lengths = found
    listed = ", ".join(f"{K} from {length:.2f}" for K, length in list(lengths.items())[:_NAMED])
    return f"; at batch {batch} K = {listed} tokens per step on pays"


def file_of(located: Located) -> str | None:
    """The path that a plan names; None for what is shipped, which has a name."""
    return None if located.shipped else located.reference
