"""Counts from what a report says: engines' totals, rates and means reconciled, or refused where they contradict.

Printed numbers are intervals of half their last digit; what was not printed is the whole number that all of them allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.conversions import accepted_from_histogram, with_bonus
from treeopt.acceptance.errors import NoDraftsError
from treeopt.acceptance.importers.counters import CONTRADICTION, CountedChains, DraftCounts
from treeopt.acceptance.position import MAX_DRAFT_TOKENS
from treeopt.files.evidence_lines import Place, Printed

# A scrape can fall between the updates of two counters: one step's tokens are then in one and not in the other.
_IN_FLIGHT: Final = 0.005
_HISTOGRAM: Final = "histogram[j] counts the drafts with exactly j tokens accepted; give one request per value"
_CANDIDATES: Final = 2000
_WHOLE: Final = 1.02  # rounding is half a digit, in floating point


def chains_of(report: DraftCounts) -> CountedChains | None:
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
    chains = CountedChains(
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
    per_draft = [summed(report.rates)] if report.rates else []
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


def summed(rates: Sequence[Printed]) -> Printed:
    """The sum of printed numbers: 0.65 and 0.44 are 1.09 within 0.01."""
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


def _check_stated(report: DraftCounts, chains: CountedChains) -> None:
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
