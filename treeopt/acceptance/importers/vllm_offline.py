"""What vLLM's offline example prints after a run: totals, the mean and the acceptance at every position.

Format: vllm-project/vllm, examples/offline_inference/spec_decode.py (0.9 to 0.33); positions have two decimals.
"""

from __future__ import annotations

from typing import Final

from treeopt.acceptance.conversions import with_bonus
from treeopt.acceptance.importers.chains import chain_reading, from_rates, totals_reading
from treeopt.acceptance.importers.checks import LENGTH_ROUNDING, check_mean, check_survival
from treeopt.acceptance.importers.reading import SERVED, Job, Reading
from treeopt.files.evidence_lines import Place, require

_ROUNDING: Final = LENGTH_ROUNDING  # two decimals
_TOTALS: Final = ("num_drafts:", "num_draft_tokens:", "num_accepted_tokens:")
_MEAN: Final = "mean acceptance length:"


def read_vllm_offline(job: Job) -> Reading:
    """Position evidence of the file's run; a mean where it printed no positions."""
    values: dict[str, int] = {}
    rates: list[float] = []
    places: list[Place] = []
    place: Place = job.file
    for line in job.file.lines():
        rate = line.number_after(f"acceptance at token {len(rates)}:")
        if rate is not None:
            rates.append(rate)
            places.append(line)
        for label in _TOTALS:
            if line.text.startswith(label) and (value := line.number_after(label)) is not None:
                if label in values:
                    raise line.error(f"`{label}` appears twice", hint="give one run per file")
                values[label], place = int(value), line
        if line.text.startswith(_MEAN) and (mean := line.number_after(_MEAN)) is not None and values.get(_TOTALS[0]):
            computed = with_bonus(values.get(_TOTALS[2], 0) / values[_TOTALS[0]])
            check_mean(line, stated=mean, computed=computed, source="the counters above")
    require(values.keys() >= set(_TOTALS), job.file, f"{' and '.join(_TOTALS)}")
    check_survival(place, rates, 1.0, places=places)
    return _read(job, place, rates, *(values[label] for label in _TOTALS))


def _read(job: Job, place: Place, rates: list[float], drafts: int, drafted: int, accepted: int) -> Reading:
    if not rates or drafts == 0:
        return totals_reading(job, place, SERVED, drafts=drafts, drafted=drafted, accepted=accepted)
    chains = from_rates(place, rates, drafts=drafts, drafted=drafted, accepted=accepted, rounding=_ROUNDING)
    note = "counts per position are restored from rates with two decimals"
    return chain_reading(job, chains, SERVED, note=note)
