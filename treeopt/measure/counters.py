"""What a server counts about itself, read twice and subtracted.

vLLM counts drafts, generated tokens and, once per request and step, the time since the request's step before it
(`inter_token_latency_seconds`: v1/metrics/stats.py of 0.32.0), so that a number of steps and their mean time follow
without looking at a stream. SGLang names its counters `sglang:`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from treeopt.acceptance.importers.prometheus import Scrape, parse_sample
from treeopt.files.evidence_lines import Line

_NAMES: Final = {
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "drafted": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
    "generated": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "steps": ("vllm:inter_token_latency_seconds_count",),
    "steps_s": ("vllm:inter_token_latency_seconds_sum",),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
}
_BY_POSITION: Final = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_GAUGES: Final = ("running", "waiting")


@dataclass(frozen=True, kw_only=True)
class Counters:
    """One scrape, or the difference of two; None where the server does not count it.

    `steps` counts a step once for each request in it, `steps_s` is the sum of their times in seconds; `by_position`
    holds how often the draft at each position was accepted; `running` and `waiting` are requests now.
    """

    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    generated: float | None = None
    steps: float | None = None
    steps_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    by_position: tuple[float, ...] = ()

    def since(self, before: Counters) -> Counters:
        """What was counted between an earlier scrape and this one; what is running, as it is now."""
        counted = {
            name: None if (now := getattr(self, name)) is None else now - (getattr(before, name) or 0.0)
            for name in _NAMES
            if name not in _GAUGES
        }
        earlier = (*before.by_position, *[0.0] * len(self.by_position))
        by_position = tuple(now - then for now, then in zip(self.by_position, earlier, strict=False))
        return Counters(**counted, running=self.running, waiting=self.waiting, by_position=by_position)

    @property
    def fell(self) -> bool:
        """Whether a difference is of counters that began anew in between."""
        counted = (getattr(self, name) for name in _NAMES if name not in _GAUGES)
        return any(value is not None and value < 0 for value in (*counted, *self.by_position))

    @property
    def drafted_per_draft(self) -> float | None:
        """Draft tokens of a draft: K where every draft had the same length; None where nothing was drafted."""
        return self.drafted / self.drafts if self.drafts and self.drafted is not None else None


def read_counters(text: str) -> Counters:
    """The counters of a scrape in Prometheus text, summed over the server's engines; others are passed over.

    Raises:
        FileFormatError: one of them has no value that a counter has.
    """
    lines = (Line(name="/metrics", number=n, text=line, complete=True) for n, line in enumerate(text.splitlines(), 1))
    wanted = (*(f"{name}{end}" for names in _NAMES.values() for name in names for end in "{ "), f"{_BY_POSITION}{{")
    scrape = Scrape(tuple(parse_sample(line) for line in lines if line.text.startswith(wanted)))
    by_position = tuple(item.value for item in scrape.by_position(_BY_POSITION, "position"))
    return Counters(**{name: scrape.total(*names) for name, names in _NAMES.items()}, by_position=by_position)
