"""vLLM V0's log: `Speculative metrics:` lines, whose counters run from the start of the server.

Format: vllm-project/vllm, vllm/spec_decode/metrics.py, AsyncMetricsCollector, and vllm/engine/metrics.py (0.4 to 0.9).
Its `accepted tokens` count every draft token that would pass on its own, also behind a rejected one, so they give no
accepted length; `emitted tokens` do: they are what each draft really gave, bonus token included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from treeopt.acceptance.importers.checks import check_accepted, check_drafted, check_rate
from treeopt.acceptance.importers.reading import SERVED, Job, Reading, Source, Tally
from treeopt.acceptance.position import MeanLength
from treeopt.files.evidence_lines import Line, require

_LABELS: Final = {
    "draft_tokens": "Number of speculative tokens:",
    "accepted": "Number of accepted tokens:",
    "drafted": "Number of draft tokens:",
    "emitted": "Number of emitted tokens:",
}
_RATE_ROUNDING: Final = 0.00051  # three decimals


class _Counters(NamedTuple):
    draft_tokens: int
    accepted: int
    drafted: int
    emitted: int

    @property
    def drafts(self) -> int:
        return self.drafted // self.draft_tokens

    def plus(self, other: _Counters | None) -> _Counters:
        if other is None:
            return self
        sums = (a + b for a, b in zip(self[1:], other[1:], strict=True))
        return _Counters(self.draft_tokens, *sums)


def read_vllm_log_v0(job: Job) -> Reading:
    """Mean evidence per draft length, from the last counters of every run of the server in the log."""
    totals: dict[int, _Counters] = {}
    runs = 0
    for last in _last_of_runs(job):
        runs += 1
        totals[last.draft_tokens] = last.plus(totals.get(last.draft_tokens))
    totals = {K: t for K, t in totals.items() if t.drafts}
    require(bool(totals), job.file, "`Speculative metrics:` line with draft tokens")
    sources = tuple(_source(job, t, label=f"k{K}" if len(totals) > 1 else "") for K, t in sorted(totals.items()))
    restarts = (f"the counters started again {runs - 1} times: the runs are added up",) if runs > 1 else ()
    return Reading(sources=sources, warnings=restarts)


def _last_of_runs(job: Job) -> Iterator[_Counters]:
    last: _Counters | None = None
    for line in job.file.lines():
        counters = _counters(line) if "Speculative metrics:" in line.text else None
        if counters is None:
            continue
        if last is not None and (counters.drafted < last.drafted or counters.draft_tokens != last.draft_tokens):
            yield last
        elif last is not None and counters.emitted < last.emitted:
            raise line.error(
                f"emitted tokens fell from {last.emitted} to {counters.emitted}, "
                f"while draft tokens rose from {last.drafted} to {counters.drafted}",
                hint="counters only rise while a server runs: give the log of one server",
            )
        last = counters
    if last is not None:
        yield last


def _counters(line: Line) -> _Counters | None:
    values = {name: line.number_after(label) for name, label in _LABELS.items()}
    if None in values.values():
        if not line.complete:
            return None
        raise line.error("a `Speculative metrics:` line without all of its counters", hint="give the log as it is")
    counters = _Counters(**{name: int(value or 0) for name, value in values.items()})
    check_drafted(line, drafts=counters.drafted, drafted=counters.drafted, draft_tokens=counters.draft_tokens)
    check_accepted(line, drafted=counters.drafted, accepted=counters.accepted)
    most = counters.drafts * (counters.draft_tokens + 1)
    if not counters.drafts <= counters.emitted <= most:
        raise line.error(
            f"{counters.emitted} tokens emitted by {counters.drafts} drafts of {counters.draft_tokens}",
            hint=f"every draft emits 1 to {counters.draft_tokens + 1} tokens",
        )
    if counters.drafts:
        for label, computed in (
            ("Draft acceptance rate:", counters.accepted / counters.drafted),
            ("System efficiency:", counters.emitted / most),
        ):
            if (stated := line.number_after(label)) is not None:
                what = label.rstrip(":").lower()
                check_rate(line, stated=stated, computed=computed, rounding=_RATE_ROUNDING, what=what)
    return counters


def _source(job: Job, counters: _Counters, *, label: str) -> Source:
    mean = counters.emitted / counters.drafts
    tally = Tally(
        draft_tokens=counters.draft_tokens,
        drafts=counters.drafts,
        drafted_tokens=counters.drafted,
        accepted_tokens=counters.emitted - counters.drafts,
        mean_accepted_length=mean,
    )
    evidence = MeanLength(mean_accepted_length=mean, draft_tokens=counters.draft_tokens, drafts=counters.drafts)
    return job.source(evidence, label=label, tally=tally, conditions=SERVED)
