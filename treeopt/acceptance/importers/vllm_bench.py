"""What `vllm bench serve` writes: JSON (rate in percent, positions as fractions) and a printed table (percent).

Format: vllm-project/vllm, vllm/benchmarks/serve.py, `spec_decode_stats` (0.15 to 0.33).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from treeopt.acceptance.conversions import fraction_from_percent, with_bonus
from treeopt.acceptance.importers.chains import chain_reading, from_rates, rates_source, totals_reading
from treeopt.acceptance.importers.checks import check_mean, check_rate, check_survival
from treeopt.acceptance.importers.reading import Job, Reading
from treeopt.acceptance.profile import Conditions
from treeopt.files.evidence_lines import Line, Place, SourceFile, count, find_mappings, has, require

_ROUNDING: Final = 0.000051  # a percent with two decimals
_PREFIX: Final = "spec_decode_"
_LABELS: Final = {
    "percent": "Acceptance rate (%):",
    "mean": "Acceptance length:",
    "drafts": "Drafts:",
    "drafted": "Draft tokens:",
    "accepted": "Accepted tokens:",
}


def read_vllm_bench(job: Job) -> Reading:
    """Position evidence per JSON result; a mean where a result has no per-position rates."""
    reading = Reading()
    for result in _json_results(job.file):
        reading += _read(job, result)
    require(reading != Reading(), job.file, f"`{_PREFIX}num_drafts`")
    return reading


def read_vllm_bench_stdout(job: Job) -> Reading:
    """The same, from the printed tables; rates alone where the counts were not copied with them."""
    reading = Reading()
    for result in _printed_results(job.file):
        reading += _read(job, result)
    require(reading != Reading(), job.file, "`Speculative Decoding` table")
    return reading


@dataclass(kw_only=True)
class _Result:
    """One run of the benchmark; filled line by line when it is read from a table."""

    place: Place
    values: dict[str, float] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)  # of the rates, where each has its own
    target: str | None = None


def _json_results(file: SourceFile) -> Iterator[_Result]:
    for document in file.records():
        for found in find_mappings(document, f"{_PREFIX}num_drafts"):
            yield _Result(
                place=found,
                values={
                    "percent": found.get(f"{_PREFIX}acceptance_rate").number(low=0),
                    "mean": found.get(f"{_PREFIX}acceptance_length").number(low=0),
                    "drafts": count(found.get(f"{_PREFIX}num_drafts")),
                    "drafted": count(found.get(f"{_PREFIX}draft_tokens")),
                    "accepted": count(found.get(f"{_PREFIX}accepted_tokens")),
                },
                rates=[r.number(low=0) for r in found.get(f"{_PREFIX}per_position_acceptance_rates", []).items()],
                target=found.get("model_id").text() if has(found, "model_id") else None,
            )


def _printed_results(file: SourceFile) -> Iterator[_Result]:
    result: _Result | None = None
    for line in file.lines():
        if _LABELS["percent"] in line.text:
            if result is not None:
                yield result
            result = _Result(place=line)
        if result is not None:
            _read_row(result, line)
    if result is not None:
        yield result


def _read_row(result: _Result, line: Line) -> None:
    for name, label in _LABELS.items():
        value = line.number_after(label) if line.text.strip().startswith(label) else None
        if value is not None:
            result.values.setdefault(name, value)
    rate = line.number_after(f"Position {len(result.rates)}:")
    if rate is not None:
        result.rates.append(fraction_from_percent(rate))
        result.places.append(line)


def _read(job: Job, result: _Result) -> Reading:
    conditions = Conditions(target=result.target, sampling="draft-starts")
    check_survival(result.place, result.rates, 1.0, places=result.places)
    if not {"drafts", "drafted", "accepted"} <= result.values.keys():
        if not result.rates:
            raise result.place.error("neither counts nor per-position rates", hint="give the whole table")
        return Reading(sources=(rates_source(job, result.rates, conditions),))
    drafts, drafted, accepted = (round(result.values[name]) for name in ("drafts", "drafted", "accepted"))
    if drafts and (mean := result.values.get("mean")) is not None:
        check_mean(result.place, stated=mean, computed=with_bonus(accepted / drafts), source="its counters")
    if drafted and (percent := result.values.get("percent")) is not None:
        stated = fraction_from_percent(percent)
        check_rate(result.place, stated=stated, computed=accepted / drafted, rounding=_ROUNDING)
    if not result.rates or drafts == 0:
        return totals_reading(job, result.place, conditions, drafts=drafts, drafted=drafted, accepted=accepted)
    chains = from_rates(
        result.place, result.rates, drafts=drafts, drafted=drafted, accepted=accepted, rounding=_ROUNDING
    )
    return chain_reading(job, chains, conditions)
