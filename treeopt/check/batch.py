"""How many requests ran at a time, from the same files that tell what was accepted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from treeopt.check.windows import LogWindow
from treeopt.files.evidence_lines import SourceFile

# One sample per request and step after its first token; one per request for that; one per engine step. Source: vllm
# 0.32.0, `v1/metrics/stats.py` and `loggers.py`.
_STEPS: Final = "vllm:inter_token_latency_seconds_count"
_FIRST: Final = "vllm:time_to_first_token_seconds_count"
_ENGINE: Final = "vllm:iteration_tokens_total_count"
_SERIES: Final = re.compile(rf"({_STEPS}|{_FIRST}|{_ENGINE})(?:\{{.*\}})?\s+(\d+(?:\.\d+)?(?:e\+?\d+)?)\b")


def mean_batch(files: Sequence[SourceFile], kind: str, windows: Sequence[LogWindow]) -> float | None:
    """Requests per engine step, None where the files do not tell.

    1,615 steps of requests and 24 first tokens in 425 engine steps are 3.86 requests per step.
    """
    known = [w.requests for w in windows if w.requests is not None and not w.is_off]
    if known:
        return sum(known) / len(known)
    if kind != "vllm-prometheus":
        return None
    before, after = ({} if len(files) == 1 else _totals(files[0])), _totals(files[-1])
    steps, first, engine = (after.get(name, 0.0) - before.get(name, 0.0) for name in (_STEPS, _FIRST, _ENGINE))
    return (steps + first) / engine if steps > 0.0 and engine > 0.0 else None


def _totals(file: SourceFile) -> dict[str, float]:
    """The three counters, summed over their series."""
    totals: dict[str, float] = {}
    for line in file.lines():
        if found := _SERIES.match(line.text):
            totals[found[1]] = totals.get(found[1], 0.0) + float(found[2])
    return totals
