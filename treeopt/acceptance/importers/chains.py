"""Counts of drafted chains, as serving engines keep them, added up by draft length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from treeopt.acceptance.conversions import (
    accepted_from_histogram,
    accepted_from_survival,
    drafts_from_survival,
    with_bonus,
)
from treeopt.acceptance.errors import NoDraftsError
from treeopt.acceptance.importers.checks import check_accepted, check_draft_tokens, check_drafted, check_survival
from treeopt.acceptance.importers.prometheus import Positioned
from treeopt.acceptance.importers.reading import Job, Reading, Source, Tally, Unplanned
from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.profile import Conditions, RankEvidence
from treeopt.files.evidence_lines import Place

# A scrape can fall between the updates of two counters: one step's tokens are then in one and not in the other.
_IN_FLIGHT: Final = 0.005
_HISTOGRAM: Final = "histogram[j] counts the drafts with exactly j tokens accepted; give one request per value"


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Drafts of up to K tokens and what became of them; `accepted [K]` is empty where only totals were counted."""

    draft_tokens: int
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    accepted: tuple[int, ...] = ()

    def __add__(self, other: Chains) -> Chains:
        return Chains(
            draft_tokens=self.draft_tokens,
            drafts=self.drafts + other.drafts,
            drafted_tokens=self.drafted_tokens + other.drafted_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            accepted=tuple(a + b for a, b in zip(self.accepted, other.accepted, strict=True)),
        )

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per draft, the bonus token counted."""
        return with_bonus(self.accepted_tokens / self.drafts)

    @property
    def evidence(self) -> RankEvidence:
        """Survival per position, or the mean where only totals were counted."""
        if self.accepted:
            return PositionSurvival.from_counts(drafts=self.drafts, accepted=np.array(self.accepted, dtype=np.float64))
        return MeanLength(
            mean_accepted_length=self.mean_accepted_length, draft_tokens=self.draft_tokens, drafts=self.drafts
        )

    @property
    def tally(self) -> Tally:
        """The totals."""
        return Tally(
            draft_tokens=self.draft_tokens,
            drafts=self.drafts,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            mean_accepted_length=self.mean_accepted_length,
        )


class ChainCounts:
    """Chains added up by length, in memory that does not grow with the file."""

    def __init__(self) -> None:
        self._chains: dict[tuple[int, bool], Chains] = {}

    def add(self, chains: Chains) -> None:
        """Count these too."""
        key = (chains.draft_tokens, bool(chains.accepted))
        if chains.drafts:
            self._chains[key] = self._chains[key] + chains if key in self._chains else chains

    def __len__(self) -> int:
        """How many draft lengths were seen."""
        return len(self._chains)

    def __iter__(self) -> Iterator[Chains]:
        """The sums, by draft length."""
        return (chains for _, chains in sorted(self._chains.items()))

    def as_longest(self) -> ChainCounts:
        """All chains counted as drafts of the longest length, for engines that end a draft early: none go further."""
        longest = max((K for K, _ in self._chains), default=0)
        merged = ChainCounts()
        for chains in self._chains.values():
            more = (0,) * (longest - chains.draft_tokens) if chains.accepted else ()
            merged.add(replace(chains, draft_tokens=longest, accepted=chains.accepted + more))
        return merged

    def reading(self, job: Job, conditions: Conditions, *, note: str = "") -> Reading:
        """One source per draft length."""
        reading = Reading()
        for chains in self:
            label = f"k{chains.draft_tokens}" if len(self) > 1 else ""
            reading += chain_reading(job, chains, conditions, label=label, note=note)
        return reading


def chain_reading(job: Job, chains: Chains, conditions: Conditions, *, label: str = "", note: str = "") -> Reading:
    """The source that these chains are, and a warning if not all drafts were K long."""
    source = job.source(chains.evidence, label=label, tally=chains.tally, conditions=conditions, note=note)
    full = chains.drafts * chains.draft_tokens
    if chains.drafted_tokens >= full:
        return Reading(sources=(source,))
    short = (
        f"{source.profile.name}: {full - chains.drafted_tokens} of {full} draft tokens were not proposed, "
        "so drafts were shorter at times and the last positions are understated"
    )
    return Reading(sources=(source,), warnings=(short,))


def rates_source(job: Job, rates: Sequence[float], conditions: Conditions, *, label: str = "") -> Source:
    """The source that per-position rates (fractions) are when no counts stand beside them."""
    evidence = PositionSurvival(survival=np.array(rates))
    tally = Tally(draft_tokens=len(rates), mean_accepted_length=evidence.mean_accepted_length)
    return job.source(evidence, label=label, tally=tally, conditions=conditions)


def from_positions(
    place: Place, accepted: Sequence[Positioned], *, drafts: int, drafted: int, accepted_tokens: int
) -> Chains:
    """Chains from counters per position, checked against the totals beside them."""
    K = len(accepted)
    check_drafted(place, drafts=drafts, drafted=drafted, draft_tokens=K)
    check_accepted(place, drafted=drafted, accepted=accepted_tokens)
    counts = [item.value for item in accepted]
    check_survival(place, counts, drafts, places=[item.place for item in accepted])
    if abs(sum(counts) - accepted_tokens) > _IN_FLIGHT * accepted_tokens + K:
        raise place.error(
            f"the positions count {sum(counts):.10g} accepted tokens, the total says {accepted_tokens}",
            hint="give all series of one scrape",
        )
    return Chains(
        draft_tokens=K,
        drafts=drafts,
        drafted_tokens=drafted,
        accepted_tokens=accepted_tokens,
        accepted=_whole(counts),
    )


def from_histogram(
    place: Place, histogram: Sequence[int], *, drafts: int, drafted: int, accepted: int, draft_tokens: int
) -> Chains:
    """Chains from how many drafts had exactly 0, 1, ... tokens accepted, checked against the totals beside it."""
    check_drafted(place, drafts=drafts, drafted=drafted, draft_tokens=draft_tokens)
    check_accepted(place, drafted=drafted, accepted=accepted)
    if len(histogram) > draft_tokens + 1 and any(histogram[draft_tokens + 1 :]):
        longest = max(j for j, n in enumerate(histogram) if n)
        raise place.error(f"{longest} tokens of a draft accepted, but drafts have {draft_tokens}", hint="check K")
    if sum(histogram) != drafts:
        raise place.error(f"the histogram counts {sum(histogram)} drafts, the total says {drafts}", hint=_HISTOGRAM)
    if (total := sum(j * n for j, n in enumerate(histogram))) != accepted:
        raise place.error(f"the histogram counts {total} accepted tokens, the total says {accepted}", hint=_HISTOGRAM)
    padded = np.zeros(draft_tokens + 1)
    padded[: len(histogram)] = histogram[: draft_tokens + 1]
    return Chains(
        draft_tokens=draft_tokens,
        drafts=drafts,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        accepted=_whole(accepted_from_histogram(padded).tolist()),
    )


def from_rates(
    place: Place, rates: Sequence[float], *, drafts: int | None, drafted: int, accepted: int, rounding: float
) -> Chains:
    """Chains from printed per-position rates (fractions), whose counts are restored from the totals beside them.

    `drafts` None: the engine does not print them; full drafts are tried first, then what the rates imply.
    """
    survival, K = np.array(rates), len(rates)
    check_draft_tokens(place, K)
    check_survival(place, rates, 1.0)
    check_accepted(place, drafted=drafted, accepted=accepted)
    if drafts is None:
        drafts = -(-drafted // K)
        if drafted % K or abs(drafts * survival.sum() - accepted) > _slack(drafts, K, rounding):
            drafts = drafts_from_survival(survival, accepted) or drafts
    else:
        check_drafted(place, drafts=drafts, drafted=drafted, draft_tokens=K)
    if abs(drafts * survival.sum() - accepted) > _slack(drafts, K, rounding):
        raise place.error(
            f"the per-position rates of {drafts} drafts make {drafts * survival.sum():.1f} accepted tokens, "
            f"the total says {accepted}",
            hint="rates are of all drafts, not of those that reached the position",
        )
    return Chains(
        draft_tokens=K,
        drafts=drafts,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        accepted=_whole(accepted_from_survival(survival, drafts).tolist()),
    )


def mixed_lengths(job: Job, label: str, *, drafts: int, drafted: int, accepted: int) -> Unplanned:
    """Totals of drafts of several lengths: their mean is that of no chain."""
    return Unplanned(
        name=job.name(label),
        mean_accepted_length=with_bonus(accepted / drafts),
        reason=f"the drafts varied in length ({drafted / drafts:.4g} tokens on average), so no chain has this mean",
    )


def totals_reading(
    job: Job,
    place: Place,
    conditions: Conditions,
    *,
    drafts: int,
    drafted: int,
    accepted: int,
    label: str = "",
) -> Reading:
    """Mean evidence from totals alone, if all drafts were of one length; otherwise the mean is that of no chain."""
    check_accepted(place, drafted=drafted, accepted=accepted)
    if drafts == 0 or drafted == 0:
        error = place.error(f"{drafts} drafts, {drafted} draft tokens", hint="was speculation on, and in use?")
        raise NoDraftsError(str(error), hint=error.hint)
    length, rest = divmod(drafted, drafts)
    if rest:
        return Reading(unplanned=(mixed_lengths(job, label, drafts=drafts, drafted=drafted, accepted=accepted),))
    check_drafted(place, drafts=drafts, drafted=drafted, draft_tokens=length)
    chains = Chains(draft_tokens=length, drafts=drafts, drafted_tokens=drafted, accepted_tokens=accepted)
    return chain_reading(job, chains, conditions, label=label)


def _whole(values: Sequence[float]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _slack(drafts: int, positions: int, rounding: float) -> float:
    # Every rate is off by its last digit; one more token for totals that were read between two counters' updates.
    return positions * drafts * rounding + 1.0
