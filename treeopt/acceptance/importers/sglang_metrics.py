"""SGLang's page of counters: tokens and verification calls of the requests that are finished, never positions.

Source: sglang 0.5.23, `srt/observability/metrics_collector.py`, `observe_one_finished_request`: all three counters rise
where a request ends, so their differences between two scrapes are of the same requests. A request's first token is its
prefill's, its last ones are cut to its length (`output_ids_through_stop`). The lengths in force are gauges;
`spec_accept_length` is of the last interval and is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from treeopt.acceptance.importers.counters import CONTRADICTION, DraftCounts
from treeopt.acceptance.importers.prometheus import Scrape, read_scrape, whole
from treeopt.acceptance.importers.reading import SERVED, ImportJob
from treeopt.acceptance.importers.records import Report
from treeopt.files.evidence_lines import Printed

VERIFY_CALLS: Final = "sglang:spec_verify_calls_total"
_TOKENS: Final = "sglang:generation_tokens_total"
_REQUESTS: Final = "sglang:num_requests_total"
_STEPS: Final = "sglang:spec_num_steps"
_SHOWS: Final = 0.005  # tokens per step
_NODES: Final = "sglang:spec_num_draft_tokens"  # the root counted


@dataclass(frozen=True)
class SglangMetrics:
    """One report per served model; where several replicas have gauges, K is known if they agree."""

    def reports(self, job: ImportJob) -> Iterator[Report]:
        """The reports of a scrape, or of the time between two.

        Raises:
            InputError: it has no counter of verification calls.
            FileFormatError: one is malformed, given twice, fell, or contradicts another.
        """
        scrape = read_scrape(job.file, (VERIFY_CALLS, _TOKENS, _REQUESTS, _STEPS, _NODES), earlier=job.earlier)
        models = [
            m for m in scrape.values_of("model_name") if scrape.of("model_name", m).total(VERIFY_CALLS) is not None
        ]
        for name in models:
            yield self._report(scrape.of("model_name", name), name, name if len(models) > 1 else "")

    def _report(self, scrape: Scrape, model: str, label: str) -> Report:
        place = next(s.line for s in scrape.samples if s.name == VERIFY_CALLS)
        steps, tokens, requests = (whole(scrape.total(n) or 0.0) for n in (VERIFY_CALLS, _TOKENS, _REQUESTS))
        accepted, K = tokens - requests - steps, _chain(scrape)
        if accepted < 0:
            raise place.error(
                f"{tokens} tokens of {requests} requests in {steps} verification calls, which give one each at least",
                hint=CONTRADICTION,
            )
        counts = DraftCounts(
            place=place,
            draft_tokens=K,
            drafts=steps,
            drafted=None if K is None else K * steps,
            accepted=None if K is None else accepted,
            steps=steps,
            length=Printed(1.0 + accepted / steps, 0.0) if steps and K is None else None,
            label=label,
            conditions=replace(SERVED, target=model or None),
        )
        cut = 0 if K is None else min(K * requests, K * steps - accepted)
        return Report(counts=(counts,), warnings=_uncounted(cut, steps))


def _uncounted(cut: int, steps: int) -> tuple[str, ...]:
    """How far off the length may be, for texts that end within a draft; nothing where it does not show."""
    if not steps or cut < _SHOWS * steps:
        return ()
    told = f"up to {cut} accepted tokens behind the ends of texts are not counted"
    return (f"{told}: tokens per step are at most {cut / steps:.3f} more",)


def _chain(scrape: Scrape) -> int | None:
    """K where all replicas draft a chain of the same length, by their gauges."""
    steps, nodes = ({s.value for s in scrape.samples if s.name == name} for name in (_STEPS, _NODES))
    if len(steps) != 1 or len(nodes) != 1:
        return None
    K = whole(steps.pop())
    return K if K >= 1 and whole(nodes.pop()) == K + 1 else None
