"""A mean accepted length as papers, issues and benchmarks state it, with whatever stands beside it.

Phrases rather than formats: totals, rates by position and K are used where they are named. A count of draft tokens is K
only where it can be one: beside accepted tokens, or above any draft, it is a total.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from treeopt.acceptance.conversions import with_bonus
from treeopt.acceptance.importers.counters import DraftCounts
from treeopt.acceptance.importers.reading import ImportJob, Reading
from treeopt.acceptance.importers.records import Report, side_by_side
from treeopt.acceptance.importers.text_reports import TextFormat
from treeopt.acceptance.profile import Conditions
from treeopt.files.evidence_lines import NUMBER, Printed

LENGTH: Final = (
    r"(?:\b(?:mean |average |avg\.? )?accept\w*[ _]?(?:length|len)\b|\b(?:mean|average|avg) accept\w* tokens\b"
    r"|\[AL\] AVERAGE\b|\bAL(?=\s*[:=])|\btau(?=\s*[:=])|\u03c4(?=\s*[:=]))(?:\s*\([^)\n]{0,40}\))?[^\d\n(]{0,16}?"
)
MEAN_PHRASE: Final = re.compile(LENGTH + r"\s*" + NUMBER, re.IGNORECASE)
_MOST_LIKELY: Final = 64  # no draft has more tokens; a total mostly has
_SUMMARY: Final = TextFormat(
    fields={
        "length": LENGTH,
        "draft_tokens": r"\bK\s*[=:]?|\b(?:num[_ -]|speculative[_-])?(?:speculative[_ -]tokens|num[_-]steps)\b\s*[=:]?",
        "drafts": r"\b(?:num[_ ])?drafts\s*[=:]?",
        "drafted": r"\b(?:num[_ ])?draft(?:ed)?[_ ]tokens\s*[=:]?",
        "accepted": r"\b(?:num[_ ])?accepted[_ ](?:draft[_ ])?tokens\s*[=:]?",
        "percent": r"\baccept\w* rate[^\d\n]{0,12}(?P<number>\d{1,3}(?:\.\d{1,10})?)\s*%",
        "rates": r"\bpos(?:ition)?[ _#]*{}\s*[:=]",
    },
    flags=re.IGNORECASE,
    loose=True,
)
_ALONE: Final = TextFormat(fields={"length": r"^", "draft_tokens": r"\bK\s*[=:]"})


def read_summary(job: ImportJob) -> Reading:
    """Position evidence where the text has rates by position, else mean evidence if it tells K or K is given."""
    return side_by_side(job, _reports(job), "number, or phrase like `mean accepted length 2.3`")


def _reports(job: ImportJob) -> Iterator[Report]:
    text = job.file.text().lower()
    without = "without bonus" in text or "without the bonus" in text
    told = any(_phrases(job))
    seen = set()
    for report in (_SUMMARY if told else _ALONE).reports(job):
        for counts in report.counts:
            known = _known(counts, bonus_counted=not without)
            stated = (known.length, known.draft_tokens, known.rates, known.drafted)
            if stated not in seen:  # a summary may say it twice
                seen.add(stated)
                yield Report(counts=(known,))


def _phrases(job: ImportJob) -> Iterator[bool]:
    return (True for line in job.file.lines() if MEAN_PHRASE.search(line.text))


def _known(counts: DraftCounts, *, bonus_counted: bool) -> DraftCounts:
    """The report with its draft tokens taken as K or as a total, whichever they are."""
    length = counts.length
    if length is not None and not bonus_counted:
        length = Printed(with_bonus(length.value), length.rounding)
    counts = replace(counts, length=length, conditions=Conditions())
    drafted, accepted = counts.drafted, counts.accepted
    if drafted is not None and accepted is None and counts.drafts is None and drafted <= _MOST_LIKELY:
        return replace(counts, draft_tokens=counts.draft_tokens or drafted, drafted=None, rate=None)
    if drafted is None or accepted is None or accepted > drafted:
        # Totals that do not belong together count other things than drafts and their tokens.
        counts = replace(counts, drafts=None, drafted=None, accepted=None)
    if counts.draft_tokens is None and not counts.rates and counts.drafted is None:
        return replace(counts, draft_tokens=_told_by_rate(counts), rate=None)
    return replace(counts, rate=None if counts.drafted is None else counts.rate)


def _told_by_rate(counts: DraftCounts) -> int | None:
    """K, where the mean and the acceptance rate allow one: 2.76 tokens at 25.2 % of K drafts each are K = 7."""
    if counts.length is None or counts.rate is None or counts.rate.value <= counts.rate.rounding:
        return None
    accepted, rate = counts.length.value - 1.0, counts.rate
    low = (accepted - counts.length.rounding) / (rate.value + rate.rounding)
    high = (accepted + counts.length.rounding) / (rate.value - rate.rounding)
    whole = [K for K in range(max(int(low), 1), int(high) + 1) if low <= K <= high]
    return whole[0] if len(whole) == 1 else None
