"""llama.cpp's server log: per finished request, accepted of generated draft tokens and the rate per position.

Format: ggml-org/llama.cpp, tools/server/server-context.cpp print_timings, common/speculative.cpp print_stats (2025, and
PR 24536 of June 2026, which adds the rates). Rates are of all verified drafts. `statistics` lines hold the sums over
all requests so far, one line for each drafter that was asked: they count where requests have no rates of their own, or
add up to the same: only they tell the request-steps.
`#calls(b,g,a)`: b texts begun, g times asked for a draft (the request-steps), a drafts verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from treeopt.acceptance.importers.counters import DraftCounts
from treeopt.acceptance.importers.reading import SERVED, ImportJob, Reading
from treeopt.acceptance.importers.records import Report, added_up
from treeopt.acceptance.importers.runs import Running, last_of_runs, restarts
from treeopt.acceptance.importers.text_reports import TextFormat
from treeopt.files.evidence_lines import Line, require

REQUESTS: Final = TextFormat(
    fields={
        "accepted": r"draft acceptance[^(\n]{0,99}\(",
        "drafted": r"draft acceptance[^(\n]{0,99}\(\s*\d{1,15} accepted /",
        "length": r"mean acceptance length =|mean len =",
        "rates": r"acceptance rate per position =",
    },
    pads=True,
)
_STATISTICS: Final = re.compile(
    r"statistics\s+(?P<name>[\w.+-]{1,40}): #calls\(b,g,a\) =\s*\d{1,15}\s+(?P<asked>\d{1,15})\s+(?P<drafts>\d{1,15}),"
    r".{0,99}#gen tokens =\s*(?P<drafted>\d{1,15}), #acc tokens =\s*(?P<accepted>\d{1,15}),"
)
_SERVER: Final = re.compile(r"^\[[\w.-]{1,40}\]|^[\w.-]{1,40}\s*\|")  # what a supervisor puts before every line


def read_llamacpp(job: ImportJob) -> Reading:
    """Position evidence, requests added up; drafts that stopped early count as drafts of the longest length."""
    wanted = "`draft acceptance` or `statistics` line with what was drafted"
    statistics = list(_statistics(job))
    by_drafter: dict[str, list[Running[DraftCounts]]] = {}
    for item in statistics:
        by_drafter.setdefault(item.value.label, []).append(item)
    rated = any("acceptance rate per position =" in line.text for line in job.file.lines())
    if not statistics or (rated and not _is_all(job, by_drafter)):
        drafter = next(iter(by_drafter)) if len(by_drafter) == 1 else None
        return added_up(job, _requests(job, drafter), wanted, longest=True)
    reading = sum((_totals(job, name, found, len(by_drafter)) for name, found in by_drafter.items()), Reading())
    require(bool(reading.sources or reading.unplanned), job.file, wanted)
    return reading


def _is_all(job: ImportJob, by_drafter: Mapping[str, Sequence[Running[DraftCounts]]]) -> bool:
    """Whether the sums of one drafter, rates among them, are those of the file's requests: none is missing."""
    if len(by_drafter) > 1:
        return False
    runs = last_of_runs(next(iter(by_drafter.values())))
    requests = [counts for report in REQUESTS.reports(job) for counts in report.counts]
    sums = [[(c.drafted or 0, c.accepted or 0) for c in counted] for counted in (runs, requests)]
    same = all(sum(a) == sum(b) for a, b in zip(*(zip(*pairs, strict=True) for pairs in sums), strict=True))
    return same and all(counts.rates for counts in runs if counts.drafts)


def _requests(job: ImportJob, drafter: str | None) -> Iterator[Report]:
    for report in REQUESTS.reports(job):
        conditions = replace(SERVED, drafter=drafter)
        yield replace(report, counts=tuple(replace(counts, conditions=conditions) for counts in report.counts))


def _totals(job: ImportJob, name: str, found: Sequence[Running[DraftCounts]], drafters: int) -> Reading:
    """The sums of one drafter over all runs of the server."""
    runs = last_of_runs(found)
    reports = (Report(counts=(counts,)) for counts in runs if counts.drafts)
    told = restarts(len(runs), len({item.server for item in found}))
    if not any(counts.drafts for counts in runs):
        return Reading(warnings=(f"{name} was asked for drafts and had none", *told))
    label = name if drafters > 1 else ""
    return added_up(job, reports, name, longest=True, label=label) + Reading(warnings=told)


def _statistics(job: ImportJob) -> Iterator[Running[DraftCounts]]:
    for line in job.file.lines():
        found = _STATISTICS.search(line.text) if "statistics" in line.text else None
        if found is not None:
            server = _SERVER.match(line.text)
            counts = _counts(line, found)
            yield Running(server[0] if server else "", counts.drafts or 0, line, counts)


def _counts(line: Line, found: re.Match[str]) -> DraftCounts:
    return DraftCounts(
        place=line,
        drafts=int(found["drafts"]),
        drafted=int(found["drafted"]),
        accepted=int(found["accepted"]),
        steps=int(found["asked"]),
        length=line.printed_after("#mean acc len ="),
        rates=tuple(line.numbers_after("#acc rate/pos =")),
        pads=True,
        label=found["name"],
        conditions=replace(SERVED, drafter=found["name"]),
    )
