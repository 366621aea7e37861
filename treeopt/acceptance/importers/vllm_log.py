"""vLLM V1's log: one `SpecDecoding metrics:` line per interval, with counts of that interval only.

Format: vllm-project/vllm, vllm/v1/spec_decode/metrics.py, class SpecDecodingLogging.log (0.9 to 0.33). The mean counts
the bonus token; a per-position rate is of all drafts. The number of drafts is not printed: it is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from treeopt.acceptance.conversions import fraction_from_percent
from treeopt.acceptance.importers.chains import ChainCounts, from_rates, rates_source
from treeopt.acceptance.importers.checks import check_mean, check_rate, check_survival
from treeopt.acceptance.importers.reading import SERVED, Job, Reading
from treeopt.errors import FileFormatError
from treeopt.files.evidence_lines import Line, require

_RATES: Final = "Per-position acceptance rate:"
_AVERAGE: Final = "raft acceptance rate:"  # `Draft ...` before 0.10, `Avg Draft ...` since
_RATE_ROUNDING: Final = 0.0005  # three decimals
_PERCENT_ROUNDING: Final = 0.00051  # one decimal of a percent


def read_vllm_log(job: Job) -> Reading:
    """Position evidence per draft length, intervals added up; rates alone where no counts stand beside them."""
    found = _Found()
    for line in job.file.lines():
        if _RATES in line.text or _AVERAGE in line.text:
            try:
                found.add(line)
            except FileFormatError:
                if line.complete:
                    raise
                found.cut += 1
    require(found.lines > 0, job.file, f"`SpecDecoding metrics:` line with a `{_RATES}`")
    reading = found.counts.reading(job, SERVED)
    sources = tuple(rates_source(job, rates, SERVED, label=f"k{K} rates") for K, rates in sorted(found.rates.items()))
    return reading + Reading(sources=sources, warnings=tuple(found.warnings()))


@dataclass
class _Found:
    """What the lines so far have given."""

    counts: ChainCounts = field(default_factory=ChainCounts)
    rates: dict[int, list[float]] = field(default_factory=dict)
    above: list[float] = field(default_factory=list)  # the rates of a line that was wrapped before its average
    lines: int = 0
    bare: int = 0
    replaced: int = 0
    cut: int = 0

    def add(self, line: Line) -> None:
        """Count one line."""
        rates, average = [r.value for r in line.numbers_after(_RATES)], line.number_after(_AVERAGE)
        accepted, drafted = line.number_after("Accepted:"), line.number_after("Drafted:")
        if not rates:
            self.bare += accepted is not None
            _check_average(line, average, float(np.mean(self.above or [np.nan])))
            return
        self.lines += 1
        self.above = []
        if accepted is None or drafted is None:
            check_survival(line, rates, 1.0)
            self.replaced += len(rates) in self.rates
            self.rates[len(rates)] = self.above = rates
        elif drafted > 0:
            chains = from_rates(
                line, rates, drafts=None, drafted=int(drafted), accepted=int(accepted), rounding=_RATE_ROUNDING
            )
            if (mean := line.number_after("Mean acceptance length:")) is not None:
                check_mean(line, stated=mean, computed=chains.mean_accepted_length, source="the counts beside it")
            _check_average(line, average, accepted / drafted)
            self.counts.add(chains)

    def warnings(self) -> Iterator[str]:
        """What was left out."""
        if self.bare:
            yield f"{self.bare} lines have no per-position rates (vLLM 0.8) and are left out"
        if self.replaced:
            yield f"{self.replaced} lines have rates without counts: only the last of each length is used"
        if self.cut:
            yield "the last line is cut off and left out"


def _check_average(line: Line, percent: float | None, computed: float) -> None:
    if percent is not None and not np.isnan(computed):
        check_rate(line, stated=fraction_from_percent(percent), computed=computed, rounding=_PERCENT_ROUNDING)
