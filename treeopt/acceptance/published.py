"""Published acceptance of real pairs, shipped in `profiles/ranks/published`: found by target and drafter.

A file's name says the pair: `DRAFTER-TARGET-DATASET[-t1]...`, so that a search finds its pair without reading the other
eighty files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.profile import RankFile, RankProfile
from treeopt.files.shipped import locate, shipped_names

# Chat questions, answered greedily, are what most pairs were measured on: the first choice where a pair has several.
_PREFERRED: Final = re.compile(r"-mt-bench$")
_SUFFIXES: Final = re.compile(r"-(instruct|chat|it|hf|base|fp8|nvfp4|awq|bf16|2507)\b")


class Pair(NamedTuple):
    """The published profile that is nearest to a target and a drafter; `exact` where it is of just that pair."""

    name: str
    exact: bool


@dataclass(frozen=True, kw_only=True)
class PublishedFile(RankFile):
    """A published profile, and what can be planned from it."""

    supports: str


@dataclass(frozen=True, kw_only=True)
class PublishedProfiles:
    """Published profiles by name."""

    FORMAT: ClassVar[str] = "treeopt.ranks-list/1"
    WRITTEN: ClassVar = ("profiles",)

    found: tuple[RankProfile, ...]

    @property
    def profiles(self) -> tuple[PublishedFile, ...]:
        """What each one's file holds."""
        return tuple(PublishedFile(**vars(p.document()), supports=supports(p)) for p in self.found)


def published_profiles(*, target: str | None = None, drafter: str | None = None) -> list[RankProfile]:
    """The published profiles whose target contains `target` and whose drafter is `drafter`, by name."""
    names = [n for n in _names() if drafter is None or n.startswith(f"{drafter.lower()}-")]
    profiles = [load_profile(locate("ranks", name).path) for name in names]
    wanted = _plain(target or "")
    return [p for p in profiles if wanted in _plain(p.conditions.target or "")]


def nearest_pair(target: str, drafter: str) -> Pair | None:
    """The published profile for a target and a drafter kind; None where nothing of that drafter is published.

    Of several profiles of a pair the greedy one over MT-bench is taken, else the first by name. Without one of the
    pair, the one of the same drafter whose target's name is most alike.
    """
    kind = drafter.lower()
    of_kind = [n for n in _names() if n.startswith(f"{kind}-")]
    if not of_kind:
        return None
    wanted = _plain(target)
    own = [n for n in of_kind if _target_of(n, kind).startswith(f"{wanted}-") or _target_of(n, kind) == wanted]
    if own:
        return Pair(_first(own), exact=True)
    import difflib  # only a model without published ranks of its own needs it

    alike = {n: difflib.SequenceMatcher(None, wanted, _target_of(n, kind)[: len(wanted)]).ratio() for n in of_kind}
    return Pair(_first([n for n in of_kind if alike[n] == max(alike.values())]), exact=False)


def same_target(one: str, other: str) -> bool:
    """Whether two names mean one model: `Llama-3.1-8B-Instruct` and `llama-3.1-8b`."""
    return _plain(one) == _plain(other)


def supports(profile: RankProfile) -> str:
    """What can be planned from it: how long chains, and whether trees."""
    evidence = profile.evidence
    if isinstance(evidence, MeanLength):
        return f"chains to {evidence.draft_tokens}, from one mean"
    if isinstance(evidence, PositionSurvival):
        return f"chains to {len(evidence.survival)}"
    model = profile.model()
    return f"trees: {model.ranks} ranks, depth {model.depth}"


def _names() -> list[str]:
    return shipped_names("ranks", folder="published")


def _first(names: Sequence[str]) -> str:
    return min(names, key=lambda n: (_PREFERRED.search(n) is None, n))


def _target_of(name: str, kind: str) -> str:
    """Target and data set of a file's name, which only the beginning of is compared."""
    return _plain(name.removeprefix(f"{kind}-"))


def _plain(target: str) -> str:
    """`llama-3.1-8b` of `meta-llama/Llama-3.1-8B-Instruct`."""
    return _SUFFIXES.sub("", re.sub(r"[^a-z0-9.]+", "-", target.lower().rpartition("/")[2]).strip("-"))
