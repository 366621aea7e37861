"""Counted chains as evidence: added up by draft length, each length a source of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from treeopt.acceptance.conversions import with_bonus
from treeopt.acceptance.importers.counters import CountedChains, DraftCounts
from treeopt.acceptance.importers.reading import ImportJob, Reading, Tally, Unplanned
from treeopt.acceptance.importers.reconciling import chains_of, check_mean, check_rate, summed
from treeopt.acceptance.position import PositionSurvival
from treeopt.acceptance.profile import Conditions
from treeopt.files.evidence_lines import Printed

_UNKNOWN: Final = "the file does not say what was drafted: give K, or add `draft tokens: K` if it was a chain"
_TREE: Final = "the mean of a tree ({} guesses for each node) does not say which guess was right"


class ChainCounts:
    """CountedChains added up by length, in memory that does not grow with the file."""

    def __init__(self) -> None:
        self._chains: dict[tuple[int, bool], CountedChains] = {}

    def add(self, chains: CountedChains) -> None:
        """Count these too."""
        key = (chains.draft_tokens, bool(chains.accepted))
        if chains.drafts:
            self._chains[key] = self._chains[key] + chains if key in self._chains else chains

    def __len__(self) -> int:
        """How many draft lengths were seen."""
        return len(self._chains)

    def __iter__(self) -> Iterator[CountedChains]:
        """The sums, by draft length."""
        return (chains for _, chains in sorted(self._chains.items()))

    def as_longest(self) -> ChainCounts:
        """All chains counted as drafts of the longest length, for engines that end a draft early: none go further."""
        longest = max((K for K, _ in self._chains), default=0)
        merged = ChainCounts()
        for chains in self._chains.values():
            merged.add(chains.as_long_as(longest))
        return merged

    def reading(self, job: ImportJob, conditions: Conditions, *, label: str = "", note: str = "") -> Reading:
        """One source per draft length."""
        reading = Reading()
        for chains in self:
            apart = f"{label} k{chains.draft_tokens}" if len(self) > 1 else label
            reading += chain_reading(job, chains, conditions, label=apart, note=note)
        return reading


def chain_reading(
    job: ImportJob, chains: CountedChains, conditions: Conditions, *, label: str = "", note: str = ""
) -> Reading:
    """The source that these chains are, with warnings where not all drafts were K long, or not all steps had one."""
    chains = chains.trimmed()
    if job.tree is not None:
        length, drafts = chains.mean_accepted_length, chains.drafts
        return job.mean_reading(
            job.file, length, None, drafts=drafts, accepted=chains.accepted_tokens, conditions=conditions, label=label
        )
    source = job.source(
        chains.evidence, label=label, tally=chains.tally, conditions=conditions, note=note, lengths=chains.lengths
    )
    warnings, name = [], source.profile.name
    full = chains.drafts * chains.draft_tokens
    if chains.drafted_tokens < full:
        warnings.append(
            f"{name}: {full - chains.drafted_tokens} of {full} draft tokens were not proposed "
            f"({chains.drafted_per_draft:.4g} of {chains.draft_tokens} per draft), "
            "so drafts were shorter at times and the last positions are understated"
        )
    if chains.unsure:
        warnings.append(f"{name}: drafts are restored from printed digits, {chains.drafts} within {chains.unsure}")
    if chains.steps > chains.drafts:
        warnings.append(
            f"{name}: {chains.steps - chains.drafts} of {chains.steps} request-steps had no draft; the length counts "
            f"them (per draft it is {with_bonus(chains.accepted_tokens / chains.drafts):.4g})"
        )
    return Reading(sources=(source,), warnings=tuple(warnings))


def mixed_lengths(job: ImportJob, label: str, chains: CountedChains) -> Unplanned:
    """Totals of drafts of several lengths: their mean is that of no chain."""
    mean = f"{chains.drafted_per_draft:.4g} tokens on average"
    return Unplanned(
        name=job.name(label),
        mean_accepted_length=chains.mean_accepted_length,
        reason=f"the drafts varied in length ({mean}), so no chain has this mean",
    )


def counts_reading(job: ImportJob, report: DraftCounts) -> Reading:
    """The evidence of one report: survival per position, a mean, or a mean from which nothing can be planned.

    Raises:
        FileFormatError: its numbers contradict each other.
        NoDraftsError: it counts steps, and no draft.
    """
    chains, label = chains_of(report), report.label
    if chains is None and report.rates:
        return rates_reading(job, report)
    if chains is None:
        length = None if report.length is None else report.length.value
        unknown = _UNKNOWN if (report.topk or 1) == 1 else _TREE.format(report.topk)
        return job.mean_reading(
            report.place,
            length,
            report.draft_tokens,
            conditions=report.conditions,
            label=label,
            assumed_chain=report.assumed_chain,
            unknown=unknown,
        )
    if chains.is_mixed:
        return Reading(unplanned=(mixed_lengths(job, label, chains),))
    return chain_reading(job, chains, report.conditions, label=label)


def rates_reading(job: ImportJob, report: DraftCounts) -> Reading:
    """The source that per-position rates are when no counts stand beside them."""
    evidence = PositionSurvival(survival=np.array([rate.value for rate in report.rates]))
    total = summed(report.rates)
    if report.rate is not None:
        n = len(report.rates)
        stated = Printed(report.rate.value, report.rate.rounding + total.rounding / n)
        check_rate(report.at.get("rate", report.place), stated, total.value / n)
    if report.length is not None:
        stated = Printed(report.length.value, report.length.rounding + total.rounding)
        check_mean(report.at.get("length", report.place), stated, with_bonus(total.value))
    tally = Tally(draft_tokens=len(report.rates), mean_accepted_length=evidence.mean_accepted_length)
    return Reading(sources=(job.source(evidence, label=report.label, tally=tally, conditions=report.conditions),))
