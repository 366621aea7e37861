"""A bare mean accepted length, as papers, issues and benchmark logs state it: a number, or a phrase with one."""

from __future__ import annotations

import re
from typing import Final

from treeopt.acceptance.conversions import with_bonus
from treeopt.acceptance.importers.reading import Job, Reading, Tally, Unplanned
from treeopt.acceptance.position import MeanLength
from treeopt.acceptance.profile import Conditions
from treeopt.files.evidence_lines import Line, require

_NUMBER: Final = r"(\d{1,4}(?:\.\d{1,12})?)(?![\d.]*\d)"
MEAN_PHRASE: Final = re.compile(rf"\bmean accept\w* (?:length|tokens)\b[^\d\n]{{0,12}}{_NUMBER}", re.IGNORECASE)
_ALONE: Final = re.compile(rf"^\s*{_NUMBER}\s*$")
_DRAFTS: Final = re.compile(
    r"\b(?:K|draft[ _]tokens|num[_ ]speculative[_ ]tokens|num[_ ]draft[_ ]tokens)\s*[=:]?\s*(\d{1,4})\b", re.IGNORECASE
)


def read_mean(job: Job) -> Reading:
    """Mean evidence if K is in the text or given; the bonus token counts unless the text says `without bonus`."""
    mean: float | None = None
    K = job.draft_tokens
    without = False
    for line in job.file.lines():
        found = _ALONE.match(line.text) or MEAN_PHRASE.search(line.text)
        if found:
            mean = _only(line, mean, float(found[1]))
        without |= "without bonus" in line.text.lower() or "without the bonus" in line.text.lower()
        drafts = _DRAFTS.search(line.text)
        if drafts and job.draft_tokens is None:
            K = int(drafts[1])
    require(mean is not None, job.file, "number, or phrase like `mean accepted length 2.3`")
    length = with_bonus(mean or 0.0) if without else (mean or 0.0)
    if K is None:
        reason = "the number of drafts is not known: add `draft tokens: K` to the file"
        return Reading(unplanned=(Unplanned(name=job.name(""), mean_accepted_length=length, reason=reason),))
    evidence = MeanLength(mean_accepted_length=length, draft_tokens=K)
    tally = Tally(draft_tokens=K, mean_accepted_length=length)
    return Reading(sources=(job.source(evidence, tally=tally, conditions=Conditions()),))


def _only(line: Line, before: float | None, value: float) -> float:
    if before is not None and before != value:
        raise line.error(f"a second mean, {value:g}, after {before:g}", hint="give one mean per file")
    return value
