"""What a report says of its drafts, as counts: the one place where engines' totals, rates and means are reconciled.

One law holds for all of them: tokens per step = 1 + accepted tokens / request-steps. A request-step is one request in
one step of the engine; where a drafter found nothing to propose (n-gram, suffix), the step had no draft, and counters
that engines keep per draft do not have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.conversions import accepted_from_histogram, with_bonus
from treeopt.acceptance.errors import NoDraftsError
from treeopt.acceptance.importers.reading import SERVED, ImportJob, Reading, Tally, Unplanned
from treeopt.acceptance.position import MAX_DRAFT_TOKENS, MeanLength, PositionSurvival
from treeopt.acceptance.profile import Conditions, RankEvidence
from treeopt.files.evidence_lines import Place, Printed

CONTRADICTION: Final = "these cannot both be right: check how the file was made, or leave this part out"

# A scrape can fall between the updates of two counters: one step's tokens are then in one and not in the other.
_IN_FLIGHT: Final = 0.005
_HISTOGRAM: Final = "histogram[j] counts the drafts with exactly j tokens accepted; give one request per value"
_CANDIDATES: Final = 2000
_FULL: Final = 0.95  # of K: below, a mean over drafts of several lengths is that of no chain
_UNKNOWN: Final = "the file does not say what was drafted: give K, or add `draft tokens: K` if it was a chain"
_TREE: Final = "the mean of a tree ({} guesses for each node) does not say which guess was right"
_WHOLE: Final = 1.02  # rounding is half a digit, in floating point


@dataclass(frozen=True, kw_only=True)
class DraftCounts:
    """One report on drafts of up to K tokens as it stands in a file; None for what it does not say.

    Args:
        place: where errors point.
        draft_tokens: K, as it is stated.
        drafts: how many drafts were verified.
        drafted: draft tokens in all of them.
        accepted: draft tokens that were accepted.
        steps: request-steps, those without a draft included.
        length: mean accepted length, the bonus token counted.
        rate: accepted over drafted tokens, a fraction.
        counts: `[K]` drafts accepted up to each position.
        rates: `[K]` the same as fractions of all drafts.
        histogram: `[K + 1]` drafts with exactly 0, 1, ... tokens accepted.
        places: where each position stands, if not all at one place.
        pads: positions that were drafted but never accepted may be missing from the end of the list.
        by_mean: K is what drafts had on average, rounded up, however many positions are listed.
        cut: the file ends in it: what contradicts itself was cut off.
        topk: guesses for each node of a tree; 1 for a chain.
        assumed_chain: the engine drafts trees too, and the report does not say which it was.
        output: tokens that the text has, where tokens past its end would be counted as accepted.
        at: where `length` and `rate` stand, if not at `place`.
        label: what tells it from other reports of the file.
    """

    place: Place
    draft_tokens: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    steps: int | None = None
    length: Printed | None = None
    rate: Printed | None = None
    counts: tuple[float, ...] = ()
    rates: tuple[Printed, ...] = ()
    histogram: tuple[int, ...] | None = None
    places: tuple[Place, ...] = ()
    pads: bool = False
    by_mean: bool = False
    cut: bool = False
    topk: int | None = None
    assumed_chain: bool = False
    output: int | None = None
    at: Mapping[str, Place] = field(default_factory=dict)
    label: str = ""
    conditions: Conditions = SERVED


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Drafts of up to K tokens and what became of them; `accepted [K]` is empty where only totals were counted.

    `unsure` is by how much the number of drafts may be off where it was restored from printed digits.
    """

    draft_tokens: int
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    accepted: tuple[int, ...] = ()
    steps: int
    unsure: int = 0

    def __add__(self, other: Chains) -> Chains:
        return Chains(
            draft_tokens=self.draft_tokens,
            drafts=self.drafts + other.drafts,
            drafted_tokens=self.drafted_tokens + other.drafted_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            accepted=tuple(a + b for a, b in zip(self.accepted, other.accepted, strict=True)),
            steps=self.steps + other.steps,
            unsure=self.unsure + other.unsure,
        )

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per request-step, the bonus token counted: 62 tokens accepted in 683 steps give 1.0908."""
        return with_bonus(self.accepted_tokens / self.steps)

    @property
    def drafted_per_draft(self) -> float:
        """Tokens of a draft on average: 1,384 tokens in 475 drafts give 2.914."""
        return self.drafted_tokens / self.drafts

    @property
    def evidence(self) -> RankEvidence:
        """Survival per position and request-step, or the mean where only totals were counted."""
        if self.accepted:
            return PositionSurvival.from_counts(drafts=self.steps, accepted=np.array(self.accepted, dtype=np.float64))
        return MeanLength(
            mean_accepted_length=self.mean_accepted_length, draft_tokens=self.draft_tokens, drafts=self.steps
        )

    @property
    def tally(self) -> Tally:
        """The totals."""
        return Tally(
            draft_tokens=self.draft_tokens,
            drafts=self.drafts,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            steps=self.steps if self.steps > self.drafts else None,
            mean_accepted_length=self.mean_accepted_length,
        )

    @property
    def is_mixed(self) -> bool:
        """Whether these are totals over drafts of several lengths, so that their mean is that of no chain."""
        return not self.accepted and self.drafted_per_draft < _FULL * self.draft_tokens

    def as_long_as(self, draft_tokens: int) -> Chains:
        """The same as drafts of up to so many tokens, of which none went further."""
        more = (0,) * (draft_tokens - self.draft_tokens) if self.accepted else ()
        return replace(self, draft_tokens=draft_tokens, accepted=self.accepted + more)

    def trimmed(self) -> Chains:
        """The same without last positions that were not drafted: none was accepted there, and drafts are shorter."""
        accepted = max((i for i, n in enumerate(self.accepted, start=1) if n), default=0)
        K = max(math.ceil(self.drafted_per_draft), accepted, 1)
        return replace(self, draft_tokens=K, accepted=self.accepted[:K]) if self.draft_tokens > K else self


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
    job: ImportJob, chains: Chains, conditions: Conditions, *, label: str = "", note: str = ""
) -> Reading:
    """The source that these chains are, with warnings where not all drafts were K long, or not all steps had one."""
    chains = chains.trimmed()
    if job.tree is not None:
        length, drafts = chains.mean_accepted_length, chains.drafts
        return job.mean_reading(
            job.file, length, None, drafts=drafts, accepted=chains.accepted_tokens, conditions=conditions, label=label
        )
    source = job.source(chains.evidence, label=label, tally=chains.tally, conditions=conditions, note=note)
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


def mixed_lengths(job: ImportJob, label: str, chains: Chains) -> Unplanned:
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
    total = _sum(report.rates)
    if report.rate is not None:
        n = len(report.rates)
        stated = Printed(report.rate.value, report.rate.rounding + total.rounding / n)
        check_rate(report.at.get("rate", report.place), stated, total.value / n)
    if report.length is not None:
        stated = Printed(report.length.value, report.length.rounding + total.rounding)
        check_mean(report.at.get("length", report.place), stated, with_bonus(total.value))
    tally = Tally(draft_tokens=len(report.rates), mean_accepted_length=evidence.mean_accepted_length)
    return Reading(sources=(job.source(evidence, label=report.label, tally=tally, conditions=report.conditions),))


def chains_of(report: DraftCounts) -> Chains | None:
    """The drafts that a report counts; None where it tells rates or a mean only.

    Raises:
        FileFormatError: its numbers contradict each other.
        NoDraftsError: it counts steps, and no draft.
    """
    _check_survival(report, [rate.value for rate in report.rates], 1.0)
    if report.histogram is not None:
        report = _with_histogram(report, report.histogram)
    if report.drafted is None or report.accepted is None:
        return None
    check_accepted(report.place, drafted=report.drafted, accepted=report.accepted)
    if report.drafted == 0 or report.drafts == 0:
        error = report.place.error(
            f"{report.drafts or 0} drafts, {report.drafted} draft tokens", hint="was speculation on, and in use?"
        )
        raise NoDraftsError(str(error), hint=error.hint)
    restored = _restored_drafts(report) if report.drafts is None else _Restored(report.drafts, 0)
    if restored is None:
        return None
    drafts = restored.drafts
    K = _longest(report, drafts)
    counts = _counts(report, drafts)
    chains = Chains(
        draft_tokens=K,
        drafts=drafts,
        drafted_tokens=report.drafted,
        accepted_tokens=report.accepted,
        accepted=(*counts, *(0,) * (K - len(counts))) if counts else (),
        steps=max(report.steps or 0, drafts),
        unsure=restored.unsure,
    )
    _check_stated(report, chains)
    return chains.trimmed() if report.by_mean else chains


def _with_histogram(report: DraftCounts, histogram: Sequence[int]) -> DraftCounts:
    """The report with the totals that its histogram has, checked against those that it states."""
    drafts, accepted = sum(histogram), sum(j * n for j, n in enumerate(histogram))
    drafted = report.drafted if report.drafted is not None else (report.draft_tokens or 0) * drafts
    K = report.draft_tokens if report.draft_tokens is not None else -(-drafted // max(report.drafts or drafts, 1))
    _check_draft_tokens(report.place, K)
    if report.accepted is not None and report.accepted > drafted:
        return replace(report, histogram=None)  # which is refused for that
    longest = max((j for j, n in enumerate(histogram) if n), default=0)
    if longest > K:
        raise report.place.error(f"{longest} tokens of a draft accepted, but drafts have {K}", hint="check K")
    for found, stated, what in ((drafts, report.drafts, "drafts"), (accepted, report.accepted, "accepted tokens")):
        if stated is not None and found != stated:
            raise report.place.error(f"the histogram counts {found} {what}, the total says {stated}", hint=_HISTOGRAM)
    padded = np.zeros(K + 1)
    padded[: len(histogram)] = histogram[: K + 1]
    return replace(
        report,
        draft_tokens=K,
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        counts=tuple(accepted_from_histogram(padded).tolist()),
    )


def _longest(report: DraftCounts, drafts: int) -> int:
    """K: as stated, else as many positions as are listed, else what the longest draft must have had."""
    assert report.drafted is not None
    mean = -(-report.drafted // drafts)
    listed = len(report.counts) or len(report.rates)
    K = report.draft_tokens or (max(listed, mean) if report.pads else listed) or mean
    check_drafted(report.place, drafts=drafts, drafted=report.drafted, draft_tokens=K)
    return K


def _counts(report: DraftCounts, drafts: int) -> tuple[int, ...]:
    """`[K]` drafts accepted up to each position, as counted or restored from printed rates; empty without either."""
    assert report.accepted is not None
    counts = report.counts or tuple(np.rint(np.array([rate.value for rate in report.rates]) * drafts).tolist())
    _check_survival(report, counts, drafts)
    slack = sum(rate.rounding * _WHOLE for rate in report.rates) * drafts + 1.0
    if report.counts:
        slack = _IN_FLIGHT * report.accepted + len(counts)
    if counts and abs(sum(counts) - report.accepted) > slack:
        what = f"the per-position rates of {drafts} drafts make" if report.rates else "the positions count"
        raise report.place.error(
            f"{what} {sum(counts):.10g} accepted tokens, the total says {report.accepted}",
            hint="rates are of all drafts, not of those that reached the position; counts are of one scrape",
        )
    return tuple(int(n) for n in counts)


class _Restored(NamedTuple):
    """How many drafts there were, and how far off that may be."""

    drafts: int
    unsure: int


def _restored_drafts(report: DraftCounts) -> _Restored | None:
    """How many drafts printed rates, the mean and the totals allow; None where they tell nothing of it.

    "Accepted: 9, Drafted: 174, rates 0.150, 0.000, 0.000, mean 1.15" allow 60 drafts alone: 58 full drafts of 3 would
    give a rate of 0.155. Full drafts are taken where they are allowed.
    """
    assert report.drafted is not None
    assert report.accepted is not None
    K = report.draft_tokens or (0 if report.pads else len(report.rates))
    if report.steps is not None and not report.rates and report.length is None:
        return _Restored(report.steps, 0) if report.steps else None
    per_draft = [_sum(report.rates)] if report.rates else []
    if report.length is not None:
        per_draft.append(Printed(report.length.value - 1.0, report.length.rounding))
    if not per_draft or (report.accepted == 0 and not K):
        return None
    fewest, most = -(-report.drafted // K) if K else 1, report.drafted
    for mean in per_draft:
        below, above = mean.value - mean.rounding * _WHOLE, mean.value + mean.rounding * _WHOLE
        fewest = max(fewest, math.ceil(report.accepted / above) if above > 0 else most)
        most = min(most, math.floor(report.accepted / below) if below > 0 else most)
    lengths = [K] if K else range(1, min(-(-report.drafted // max(fewest, 1)), MAX_DRAFT_TOKENS) + 1)
    full = [report.drafted // length for length in lengths if report.drafted % length == 0]
    likely = report.accepted / per_draft[0].value if per_draft[0].value > 0 else fewest
    near = range(max(fewest, round(likely) - _CANDIDATES), min(most, round(likely) + _CANDIDATES) + 1)
    candidates = [n for n in full if fewest <= n <= most] + sorted(near, key=lambda n: abs(n - likely))
    allowed = [n for n in candidates if all(_allows(rate, n) for rate in report.rates)]
    if not allowed:
        return _Restored(max(round(likely), -(-report.drafted // K) if K else 1, 1), 0)
    return _Restored(allowed[0], max(abs(n - allowed[0]) for n in allowed))


def _allows(rate: Printed, drafts: int) -> bool:
    """Whether a whole number of so many drafts is printed as this rate."""
    return abs(round(rate.value * drafts) - rate.value * drafts) <= rate.rounding * _WHOLE * drafts


def _sum(rates: Sequence[Printed]) -> Printed:
    return Printed(sum(rate.value for rate in rates), sum(rate.rounding for rate in rates))


def check_accepted(place: Place, *, drafted: int, accepted: int) -> None:
    """No more tokens are accepted than drafted.

    Raises:
        FileFormatError: there are more.
    """
    if accepted > drafted:
        raise place.error(f"{accepted} draft tokens accepted, but only {drafted} drafted", hint=CONTRADICTION)


def check_drafted(place: Place, *, drafts: int, drafted: int, draft_tokens: int) -> None:
    """No draft is longer than K, and K is a length that engines draft.

    Raises:
        FileFormatError: there are more draft tokens, or K is none.
    """
    _check_draft_tokens(place, draft_tokens)
    if drafted > drafts * draft_tokens:
        raise place.error(
            f"{drafted} tokens drafted, but {drafts} drafts of {draft_tokens} make at most {drafts * draft_tokens}",
            hint=CONTRADICTION,
        )


def _check_draft_tokens(place: Place, draft_tokens: int) -> None:
    """K is a length that engines draft, and none that would exhaust memory."""
    if not 1 <= draft_tokens <= MAX_DRAFT_TOKENS:
        raise place.error(f"{draft_tokens} draft tokens per step", hint=f"expected 1 to {MAX_DRAFT_TOKENS}")


def _check_survival(report: DraftCounts, values: Sequence[float], total: float) -> None:
    """Per-position counts or rates lie in 0 to `total` and do not rise: position i needs all positions before it."""
    before = total
    for i, value in enumerate(values):
        place = report.places[i] if report.places else report.place
        if value > total:
            raise place.error(f"{value:.10g} at position {i}: more than {total:.10g}", hint=CONTRADICTION)
        if value > before:
            raise place.error(
                f"acceptance rises from {before:.10g} at position {i - 1} to {value:.10g} at position {i}",
                hint="a position counts only if all positions before it were accepted: are these conditional rates?",
            )
        before = value


def _check_stated(report: DraftCounts, chains: Chains) -> None:
    """A stated mean and rate are those that the counts give, as far as they are printed."""
    if report.length is not None:
        check_mean(
            report.at.get("length", report.place),
            report.length,
            *(with_bonus(chains.accepted_tokens / n) for n in (chains.drafts, chains.steps)),
        )
    for i, (rate, n) in enumerate(zip(report.rates, chains.accepted, strict=False)):
        check_rate(report.places[i] if report.places else report.place, rate, n / chains.drafts)
    if report.rate is not None:
        place = report.at.get("rate", report.place)
        check_rate(place, report.rate, chains.accepted_tokens / chains.drafted_tokens)
    if report.output is not None:
        check_output(report.place, steps=chains.steps, accepted=chains.accepted_tokens, output=report.output)


def check_output(place: Place, *, steps: int, accepted: int, output: int) -> None:
    """Steps do not accept more tokens than the output has: engines count drafts past the end of the text.

    vllm-project/vllm#56101 describes the case.

    Raises:
        FileFormatError: they do.
    """
    if steps + accepted > output:
        raise place.error(
            f"{steps} steps and {accepted} accepted tokens make {steps + accepted}, but the output has {output}: "
            "tokens past its end were counted",
            hint="let requests run to their token limit (ignore_eos), or leave this request out",
        )


def check_mean(place: Place, stated: Printed, *computed: float) -> None:
    """A stated mean accepted length is one of those that its counts give.

    Raises:
        FileFormatError: it differs by more than its rounding.
    """
    if all(abs(stated.value - value) > stated.rounding * _WHOLE for value in computed):
        raise place.error(
            f"mean accepted length {stated.value:.10g} stated, but its counts give {computed[0]:.4g}",
            hint=CONTRADICTION,
        )


def check_rate(place: Place, stated: Printed, computed: float, what: str = "acceptance rate") -> None:
    """A stated rate (fraction) is the one that its counts give.

    Raises:
        FileFormatError: it is above 1, or differs by more than its rounding.
    """
    if stated.value > 1.0:
        raise place.error(f"{what} {stated.value:.2%}: more than 100 %", hint="is this percent, or a fraction?")
    if abs(stated.value - computed) > stated.rounding * _WHOLE:
        raise place.error(f"{what} {stated.value:.4g} stated, but the counters give {computed:.4g}", hint=CONTRADICTION)
