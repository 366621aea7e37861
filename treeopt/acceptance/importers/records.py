"""Reports of drafts, whatever the file that they stand in: added up by draft length, or side by side.

A format is a table from our word for a quantity to the engine's, one for each kind of file (`JsonFormat`, `TextFormat`,
`PrometheusFormat`). Names that changed between releases stand as `new|old`, the first that is there counts.

    draft_tokens K    drafts, drafted, accepted    steps, emitted (tokens that came out), prefills (first ones of texts)
    length (bonus counted)    rate, percent (accepted / drafted)    output (tokens of the text)
    counts, rates, percents (per position)    histogram (by accepted drafts)    lengths (histogram by length)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from treeopt.acceptance.errors import NoDraftsError
from treeopt.acceptance.importers.chain_readings import ChainCounts, counts_reading, mixed_lengths, rates_reading
from treeopt.acceptance.importers.counters import DraftCounts
from treeopt.acceptance.importers.reading import SERVED, ImportJob, Reading, check_likely
from treeopt.acceptance.importers.reconciling import chains_of
from treeopt.errors import FileFormatError
from treeopt.files.evidence_lines import require

CUT: Final = "the last line is cut off and left out"
QUANTITIES: Final = ("draft_tokens", "drafts", "drafted", "accepted", "steps", "emitted", "prefills", "output")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one place of a file says: its counts, or those of its drafts apart by length, and what must be told."""

    counts: tuple[DraftCounts, ...]
    warnings: tuple[str, ...] = ()


def totals(numbers: Mapping[str, int | None]) -> dict[str, Any]:
    """The totals of a report by `DraftCounts`' words; request-steps as counted, else from the tokens that came out.

    A step gives one token and what it accepts: 757 tokens of which 62 were accepted and 12 came from prefill are 683.
    Where a text ends within a draft, what was accepted behind its end did not come out: such steps are too few by that.
    """
    found = {name: numbers.get(name) for name in QUANTITIES}
    emitted, prefills = found.pop("emitted"), found.pop("prefills")
    if emitted is not None and not found["steps"]:
        found["steps"] = max(emitted - (found["accepted"] or 0) - (prefills or 0), 0)
    return found


class CounterFormat(Protocol):
    """Where an engine writes the counts of its drafts, and by which names."""

    def reports(self, job: ImportJob) -> Iterator[Report]:
        """The reports of a file."""


def added_up(
    job: ImportJob, reports: Iterator[Report], wanted: str, *, longest: bool = False, label: str = ""
) -> Reading:
    """One source per draft length over all reports of a file.

    Args:
        longest: drafts end early here: those of all lengths count as drafts of the longest.
        label: what tells these reports from others of the file.
    """
    counts, mixed, bare, conditions = ChainCounts(), ChainCounts(), _Bare(), SERVED
    warnings: dict[str, None] = {}
    idle = 0
    late: list[DraftCounts] = []
    for report in reports:
        warnings |= dict.fromkeys(report.warnings)
        for part in report.counts:
            if part.drafts == 0 or part.drafted == part.accepted == 0:
                idle += 1
                continue
            conditions = part.conditions
            try:
                chains = chains_of(part)
            except FileFormatError:
                if not part.cut:
                    raise
                warnings[CUT] = None
                continue
            if chains is None and longest and part.rates and part.drafted is not None:
                late.append(part)  # nothing was accepted: only the others tell how long drafts are
                idle += 1
            elif chains is None:
                bare.add(part)
            else:
                if part.assumed_chain and job.drafted is None:
                    check_likely(part.place, chains.mean_accepted_length, chains.draft_tokens)
                (mixed if chains.is_mixed else counts).add(chains)
    K = max([len(part.rates) for part in late] + [chains.draft_tokens for chains in counts], default=0)
    for part in late:
        if (chains := chains_of(replace(part, draft_tokens=K))) is not None:
            counts.add(chains)
    require(CUT in warnings or idle + len(counts) + len(mixed) + bare.reports > 0, job.file, wanted)
    unplanned = tuple(mixed_lengths(job, f"{label} mixed", chains) for chains in mixed.as_longest())
    reading = (counts.as_longest() if longest else counts).reading(job, conditions, label=label)
    return (
        reading
        + bare.reading(job, beside_counts=len(counts) > 0)
        + Reading(unplanned=unplanned, warnings=tuple(warnings))
    )


class _Bare:
    """Reports without counts: rates by position say something alone, of which the last of each length is used."""

    def __init__(self) -> None:
        self._rates: dict[int, DraftCounts] = {}
        self.reports = 0
        self._left = 0

    def add(self, report: DraftCounts) -> None:
        self.reports += bool(report.rates)
        self._left += not report.rates
        if report.rates:
            self._rates[len(report.rates)] = report

    def reading(self, job: ImportJob, *, beside_counts: bool) -> Reading:
        """What they say, and what was left out."""
        parts = (rates_reading(job, replace(r, label=f"k{K} rates")) for K, r in sorted(self._rates.items()))
        told = []
        if self.reports > len(self._rates) or (self.reports and beside_counts):
            told.append(f"{self.reports} reports have rates without counts: the last of each length is used, by itself")
        told += [f"{self._left} reports tell neither drafts nor rates and are left out"] * bool(self._left)
        return sum(parts, Reading()) + Reading(warnings=tuple(told))


def side_by_side(job: ImportJob, reports: Iterator[Report], wanted: str) -> Reading:
    """One source per report of a file: every run of a benchmark is a measurement of its own."""
    reading, found = Reading(), 0
    for report in reports:
        found += len(report.counts)
        for counts in report.counts:
            try:
                reading += counts_reading(job, counts)
            except NoDraftsError:
                raise
            except FileFormatError:
                if not counts.cut:
                    raise
                reading += Reading(warnings=(CUT,))
        reading += Reading(warnings=report.warnings)
    require(found > 0, job.file, wanted)
    return reading
