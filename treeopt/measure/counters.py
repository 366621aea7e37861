"""What a server counts about itself, read twice and subtracted.

vLLM counts drafts, generated tokens and, once per request and step, the time since the request's step before it
(`inter_token_latency_seconds`: v1/metrics/stats.py of 0.32.0), so that a number of steps and their mean time follow
without looking at a stream. SGLang names its counters `sglang:`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>[-+.\deE]+|\+Inf|NaN)\b")
_POSITION: Final = re.compile(r'\bposition="(\d{1,4})"')
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
    def drafted_per_draft(self) -> float | None:
        """Draft tokens of a draft: K where every draft had the same length; None where nothing was drafted."""
        return self.drafted / self.drafts if self.drafts and self.drafted is not None else None


def read_counters(text: str) -> Counters:
    """The counters of a scrape in Prometheus text, summed over the server's engines; others are passed over."""
    known = {metric: name for name, metrics in _NAMES.items() for metric in metrics}
    found: dict[str, float] = {}
    positions: dict[int, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name = known.get(match["name"])
        if name is not None:
            found[name] = found.get(name, 0.0) + float(match["value"])
        elif match["name"] == _BY_POSITION and (at := _POSITION.search(match["labels"] or "")):
            positions[int(at[1])] = positions.get(int(at[1]), 0.0) + float(match["value"])
    by_position = tuple(positions.get(i, 0.0) for i in range(max(positions, default=-1) + 1))
    return Counters(**found, by_position=by_position)
