"""vLLM V0's log: `Speculative metrics:` lines, whose counters run from the start of the server.

Format: vllm-project/vllm, vllm/spec_decode/metrics.py, AsyncMetricsCollector, and vllm/engine/metrics.py (0.4 to 0.9).
Its `accepted tokens` count every draft token that would pass on its own, also behind a rejected one, so they give no
accepted length; `emitted tokens` do: they are what each draft really gave, bonus token included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from treeopt.acceptance.importers.chain_readings import ChainCounts
from treeopt.acceptance.importers.counters import DraftCounts
from treeopt.acceptance.importers.reading import SERVED, ImportJob, Reading
from treeopt.acceptance.importers.reconciling import chains_of, check_accepted, check_drafted, check_rate
from treeopt.acceptance.importers.runs import Running, last_of_runs, restarts
from treeopt.files.evidence_lines import Line, require

_LABELS: Final = {
    "draft_tokens": "Number of speculative tokens:",
    "accepted": "Number of accepted tokens:",
    "drafted": "Number of draft tokens:",
    "emitted": "Number of emitted tokens:",
}


def read_vllm_log_v0(job: ImportJob) -> Reading:
    """Mean evidence per draft length, from the last counters of every run of the server in the log."""
    runs = last_of_runs(_counters(job))
    counts = ChainCounts()
    for report in runs:
        if report.drafted and (chains := chains_of(report)) is not None:
            counts.add(chains)
    require(len(counts) > 0, job.file, "`Speculative metrics:` line with draft tokens")
    return counts.reading(job, SERVED) + Reading(warnings=restarts(len(runs)))


def _counters(job: ImportJob) -> Iterator[Running[DraftCounts]]:
    before: DraftCounts | None = None
    for line in job.file.lines():
        report = _report(line) if "Speculative metrics:" in line.text else None
        if report is None:
            continue
        if before is not None and (before.drafted or 0) <= (report.drafted or 0):
            _check_emitted(line, before.output or 0, report.output or 0, report.drafted or 0)
        before = report
        server = f"K {report.draft_tokens}"
        yield Running(server=server, drafted=report.drafted or 0, line=line, value=report)


def _report(line: Line) -> DraftCounts | None:
    values = {name: line.number_after(label) for name, label in _LABELS.items()}
    if None in values.values():
        if not line.complete:
            return None
        raise line.error("a `Speculative metrics:` line without all of its counters", hint="give the log as it is")
    K, accepted, drafted, emitted = (int(values[name] or 0) for name in _LABELS)
    check_drafted(line, drafts=drafted, drafted=drafted, draft_tokens=K)
    check_accepted(line, drafted=drafted, accepted=accepted)
    drafts = drafted // K
    most = drafts * (K + 1)
    if not drafts <= emitted <= most:
        raise line.error(
            f"{emitted} tokens emitted by {drafts} drafts of {K}", hint=f"every draft emits 1 to {K + 1} tokens"
        )
    if drafts:
        for label, computed in (("Draft acceptance rate:", accepted / drafted), ("System efficiency:", emitted / most)):
            if (stated := line.printed_after(label)) is not None:
                check_rate(line, stated, computed, label.rstrip(":").lower())
    return DraftCounts(
        place=line, draft_tokens=K, drafts=drafts, drafted=drafted, accepted=emitted - drafts, output=emitted
    )


def _check_emitted(line: Line, before: int, now: int, drafted: int) -> None:
    if now < before:
        raise line.error(
            f"emitted tokens fell from {before} to {now}, while draft tokens rose to {drafted}",
            hint="counters only rise while a server runs: give the log of one server",
        )
