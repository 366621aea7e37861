"""Logs as time series: how much was drafted and accepted in each interval, and where drafting had stopped.

Means over windows carry their own error (batch means): the windows' spread, whatever makes drafts alike inside them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from treeopt.files.evidence_lines import Line, SourceFile, find_mappings

MIN_WINDOWS: Final = 5
_STEPS: Final = re.compile(r"Adaptive spec params updated: steps \d+ -> (\d+)")
_QUIET_LINES: Final = 2  # throughput lines without draft metrics between them: one may fall into a short pause


@dataclass(frozen=True, kw_only=True)
class LogWindow:
    """One interval of a log: its mean accepted length, and the drafts (or what is proportional to them) behind it.

    `draft_tokens` is K where the line tells it, `requests` how many ran. A window without drafts has weight 0:
    speculation was off.
    """

    line: int
    draft_tokens: int | None
    weight: float
    length: float
    requests: float | None = None

    @property
    def is_off(self) -> bool:
        """Whether nothing was drafted."""
        return self.weight == 0.0


class Pooled(NamedTuple):
    """A mean accepted length over windows, with its standard error (None with too few windows)."""

    windows: int
    length: float
    error: float | None


def pooled(windows: Sequence[LogWindow]) -> Pooled:
    """The weighted mean of windows with drafts, and the error that their spread gives it."""
    total = sum(w.weight for w in windows)
    mean = sum(w.weight * w.length for w in windows) / total
    n = len(windows)
    if n < MIN_WINDOWS:
        return Pooled(n, mean, None)
    spread = sum((w.weight * (w.length - mean)) ** 2 for w in windows)
    return Pooled(n, mean, math.sqrt(spread * n / (n - 1)) / total)


def read_windows(file: SourceFile, kind: str) -> list[LogWindow]:
    """The windows of a log of that kind (see `treeopt.acceptance.importers.KINDS`); none where the kind has no time.

    Raises:
        InputError: the file cannot be read.
    """
    if kind == "trtllm-stats":
        return list(_iterations(file))
    readers: dict[str, Callable[[Iterable[Line]], Iterator[LogWindow]]] = {"vllm-log": _vllm, "sglang-log": _sglang}
    return list(readers[kind](file.lines())) if kind in readers else []


def _vllm(lines: Iterable[Line]) -> Iterator[LogWindow]:
    """`SpecDecoding metrics:` lines; vLLM leaves them out where nothing was drafted, and still logs its throughput."""
    quiet, running = 0, None
    for line in lines:
        running = line.number_after("Running:") or running
        drafted, length = line.number_after("Drafted:"), line.number_after("Mean acceptance length:")
        if drafted is not None:
            K = len(line.numbers_after("Per-position acceptance rate:")) or None
            if drafted == 0:
                yield _off(line)
            elif length is not None:
                yield LogWindow(
                    line=line.number, draft_tokens=K, weight=drafted / (K or 1), length=length, requests=running
                )
            quiet = 0
        elif (line.number_after("Avg generation throughput:") or 0.0) > 0.0:
            quiet += 1
            if quiet == _QUIET_LINES:
                yield _off(line)


def _sglang(lines: Iterable[Line]) -> Iterator[LogWindow]:
    """`Decode batch` lines, each over equally many steps; adaptive speculation says when it sets the steps to 0."""
    steps: int | None = None
    for line in lines:
        if found := _STEPS.search(line.text):
            steps = int(found[1])
        length = line.number_after("accept len:")
        if length is None or "Decode batch" not in line.text:
            continue
        running = line.number_after("#running-req:") or None
        if steps == 0:
            yield _off(line)
            continue
        weight = max(running or 1.0, 1.0)
        yield LogWindow(line=line.number, draft_tokens=steps, weight=weight, length=length, requests=running)


def _iterations(file: SourceFile) -> Iterator[LogWindow]:
    """TensorRT-LLM's iterations; one without draft tokens had speculation off."""
    number = 0
    for document in file.records():
        for iteration in find_mappings(document, "specDecodingStats"):
            number += 1
            stats = iteration.value["specDecodingStats"] or {}
            drafts, drafted = stats.get("numRequestsWithDraftTokens") or 0, stats.get("numDraftTokens") or 0
            if not drafts or not drafted:
                yield LogWindow(line=number, draft_tokens=0, weight=0.0, length=1.0)
                continue
            length = 1.0 + stats.get("numAcceptedTokens", 0) / drafts
            yield LogWindow(line=number, draft_tokens=math.ceil(drafted / drafts), weight=drafts, length=length)


def _off(line: Line) -> LogWindow:
    return LogWindow(line=line.number, draft_tokens=0, weight=0.0, length=1.0)
