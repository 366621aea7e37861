"""SGLang's log: `Decode batch` lines with the mean accepted length (bonus token counted) since the line before.

Format: sgl-project/sglang, python/sglang/srt/managers/scheduler_metrics_mixin.py, later
srt/observability/scheduler_metrics_mixin.py (0.4 to 0.5.23). `accept rate` came later than `accept len` and changed its
meaning from length / (K + 1) to (length - 1) / K, after the separator had changed from `Decode batch.` to
`Decode batch,`. K is not printed; it is the whole number that every line's two printed values allow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from treeopt.acceptance.conversions import draft_tokens_from_nodes, without_bonus
from treeopt.acceptance.importers.reading import CHAIN_ASSUMED, ImportJob, Reading, Unplanned
from treeopt.acceptance.position import MAX_DRAFT_TOKENS
from treeopt.files.evidence_lines import Line, require

_LENGTH: Final = ", accept len:"
_ROUNDING: Final = 0.005 + 1e-9  # both values are printed with two decimals; their quotients are floats
_TOPK: Final = re.compile(r"speculative_eagle_topk=(\d{1,4})\b")
_NODES: Final = re.compile(r"speculative_num_draft_tokens=(\d{1,4})\b")


def read_sglang_log(job: ImportJob) -> Reading:
    """Mean evidence per draft length; nothing to plan from where a tree was verified, or K stays unknown."""
    log = _Log()
    for line in job.file.lines():
        log.add(line)
    every = log.rated.plus(log.unrated)
    require(every.lines > 0, job.file, "`Decode batch` line with `accept len`")
    if job.tree is not None:
        return job.mean_reading(job.file, every.mean, None, note=_spread(every))
    if log.topk is not None and log.topk > 1:
        return Reading(unplanned=(_unplanned(job, every, f"speculative_eagle_topk {log.topk} is a tree's mean"),))
    warnings = () if log.topk else (CHAIN_ASSUMED,)
    known = job.draft_tokens or log.stated_length
    if known is not None:
        found = job.mean_reading(job.file, every.mean, known, note=_spread(every), assumed_chain=log.topk is None)
        return found + Reading(warnings=warnings)
    lengths = log.by_length()
    found = Reading()
    for K, average in sorted(lengths.items()):
        label = f"k{K}" if len(lengths) > 1 else ""
        found += job.mean_reading(
            job.file, average.mean, K, label=label, note=_spread(average), assumed_chain=log.topk is None
        )
    unplanned = tuple(
        _unplanned(job, average, reason)
        for average, reason in (
            (log.rated, "" if lengths else "its accept rates do not tell the draft length: give it"),
            (log.unrated, "these lines have no accept rate to tell the draft length from"),
        )
        if reason and average.lines
    )
    told = (*warnings, *log.doubts(lengths)) if found.sources else ()
    return found + Reading(unplanned=unplanned, warnings=told)


@dataclass
class _Average:
    """A mean accepted length over lines, each weighted by its running requests: all cover equally many steps."""

    lines: int = 0
    weight: float = 0.0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, length: float, weight: float) -> None:
        self.lines += 1
        self.weight += weight
        self.total += weight * length
        self.low, self.high = min(self.low, length), max(self.high, length)

    def plus(self, other: _Average) -> _Average:
        low, high = min(self.low, other.low), max(self.high, other.high)
        return _Average(self.lines + other.lines, self.weight + other.weight, self.total + other.total, low, high)

    @property
    def mean(self) -> float:
        return self.total / self.weight


@dataclass
class _Rule:
    """One meaning of `accept rate`: what K it gives, and whether all lines agree on a whole one."""

    draft_tokens: Callable[[float, float], float]  # of length and rate
    low: float = 1.0
    high: float = MAX_DRAFT_TOKENS
    misfits: int = 0
    averages: dict[int, _Average] = field(default_factory=dict)

    def add(self, length: float, rate: float, weight: float) -> None:
        if rate <= _ROUNDING:
            return  # rounds to nothing accepted, which every K allows
        low = self.draft_tokens(length - _ROUNDING, rate + _ROUNDING)
        high = self.draft_tokens(length + _ROUNDING, rate - _ROUNDING)
        self.low, self.high = max(self.low, low), min(self.high, high)
        nearest = round(self.draft_tokens(length, rate))
        if max(low, 1) <= nearest <= min(high, MAX_DRAFT_TOKENS):
            self.averages.setdefault(nearest, _Average()).add(length, weight)
        else:
            self.misfits += 1

    @property
    def lengths(self) -> range:
        """The whole K that all lines allow."""
        return range(math.ceil(self.low), math.floor(self.high) + 1)


@dataclass
class _Log:
    """What the lines so far have given."""

    rated: _Average = field(default_factory=_Average)
    unrated: _Average = field(default_factory=_Average)
    old: _Rule = field(default_factory=lambda: _Rule(lambda length, rate: length / rate - 1.0))
    new: _Rule = field(default_factory=lambda: _Rule(lambda length, rate: without_bonus(length) / rate))
    old_separator: bool = False
    topk: int | None = None
    draft_tokens: int | None = None

    def add(self, line: Line) -> None:
        if "speculative_eagle_topk=" in line.text:
            self._add_arguments(line.text)
        # A cut line could end within the number; the comma behind it says that it does not.
        found = re.search(_LENGTH + r" (\d{1,6}\.\d+),", line.text)
        if found is None or "Decode batch" not in line.text:
            return
        length, weight = float(found[1]), max(line.number_after("#running-req:") or 1.0, 1.0)
        if length < 1.0:
            raise line.error(f"accept len {length} is below 1", hint="it counts the bonus token, so it is at least 1")
        rate = re.search(r"accept rate: (\d{1,6}\.\d+),", line.text)
        if rate is None:
            self.unrated.add(length, weight)
            return
        if float(rate[1]) > 1.0:
            raise line.error(f"accept rate {rate[1]} is above 1", hint="it is accepted tokens per draft token")
        self.rated.add(length, weight)
        self.old_separator |= "Decode batch." in line.text
        for rule in (self.old, self.new):
            rule.add(length, float(rate[1]), weight)

    @property
    def stated_length(self) -> int | None:
        """K as the server's arguments say, unless accept rates show that it was another (adaptive speculation)."""
        fits = not self.rated.lines or any(self.draft_tokens in rule.lengths for rule in self._rules)
        return self.draft_tokens if fits else None

    def by_length(self) -> dict[int, _Average]:
        """The lines by K: one length if there is one that all lines allow, none if there are several such."""
        constant = [rule.lengths for rule in self._rules if rule.lengths]
        if constant:
            return {constant[0][0]: self.rated} if len(constant[0]) == 1 and self.rated.lines else {}
        return min(self._rules, key=lambda rule: rule.misfits).averages

    def doubts(self, lengths: dict[int, _Average]) -> Iterator[str]:
        """What had to be decided to tell K."""
        allowed = sorted({K for rule in self._rules for K in rule.lengths})
        if len(allowed) > 1:
            yield f"K is one of {allowed}, by what `accept rate` means in this version: {next(iter(lengths))} is taken"
        if not allowed:
            yield "the draft length changed during the log: one profile per length"
        left = self.rated.lines - sum(average.lines for average in lengths.values())
        if left:
            yield f"{left} lines fit no draft length and are left out"

    @property
    def _rules(self) -> list[_Rule]:
        return [self.old] if self.old_separator else [self.new, self.old]

    def _add_arguments(self, text: str) -> None:
        topk, nodes = _TOPK.search(text), _NODES.search(text)
        self.topk = int(topk[1]) if topk else self.topk
        self.draft_tokens = draft_tokens_from_nodes(int(nodes[1])) if nodes else self.draft_tokens


def _spread(average: _Average) -> str:
    return f"mean of {average.lines} log lines, {average.low:.2f} to {average.high:.2f}"


def _unplanned(job: ImportJob, average: _Average, reason: str) -> Unplanned:
    return Unplanned(name=job.name(""), mean_accepted_length=average.mean, reason=reason)
