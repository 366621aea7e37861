"""TensorRT-LLM's /prometheus/metrics text: draft and accepted tokens, in all and per position.

Format: NVIDIA/TensorRT-LLM, tensorrt_llm/metrics/collector.py (1.3, 1.4), and the per-position counters that
ai-dynamo/aiperf PR 1433 reads. No counter holds the number of drafts: it is how often position 0 was drafted.
"""

from __future__ import annotations

from typing import Final

from treeopt.acceptance.importers.chains import chain_reading, from_positions, totals_reading
from treeopt.acceptance.importers.prometheus import Model, Positioned, Samples, read_models
from treeopt.acceptance.importers.reading import Job, Reading, Unplanned
from treeopt.acceptance.profile import Conditions

_PREFIX: Final = "trtllm_spec_decode_"


def read_trtllm_prometheus(job: Job) -> Reading:
    """Position evidence per served model; a mean where not all positions are in the scrape."""
    return sum((_read_model(job, model) for model in read_models(job, _PREFIX)), Reading())


def _read_model(job: Job, model: Model) -> Reading:
    samples, label, place = model.samples, model.label, model.samples.place
    conditions = Conditions(target=model.name or None, sampling="draft-starts")
    totals = [samples.total(f"{_PREFIX}num_{what}_tokens_total") for what in ("draft", "accepted")]
    if None in totals:
        raise place.error("num_draft_tokens and num_accepted_tokens are not both there", hint="give the whole scrape")
    drafted, accepted = (round(total or 0) for total in totals)
    tried = samples.by_position(f"{_PREFIX}drafted_tokens_total", "token_position")
    if not tried:
        return _without_drafts(job, samples, label)
    drafts = round(tried[0].value)
    right = samples.by_position(f"{_PREFIX}accepted_tokens_total", "token_position")[: _positions(tried)]
    # Positions beyond those in the scrape may have been drafted too: only a complete set is a survival curve.
    if drafts == 0 or not right or round(sum(item.value for item in tried)) != drafted:
        reading = totals_reading(job, place, conditions, drafts=drafts, drafted=drafted, accepted=accepted, label=label)
        left = f"{job.name(label)}: positions are missing from the scrape, so only the mean is used"
        return reading + Reading(warnings=(left,))
    chains = from_positions(place, right, drafts=drafts, drafted=drafted, accepted_tokens=accepted)
    return chain_reading(job, chains, conditions, label=label)


def _positions(tried: list[Positioned]) -> int:
    """How many positions were ever drafted: the engine exports a fixed number of them."""
    return sum(item.value > 0 for item in tried)


def _without_drafts(job: Job, samples: Samples, label: str) -> Reading:
    gauges = [s.value for s in samples.samples if s.name == f"{_PREFIX}acceptance_length"]
    if not gauges:
        raise samples.place.error("no counter tells the number of drafts", hint="scrape TensorRT-LLM 1.4, or its stats")
    reason = "a gauge of the last step, and no counter tells the number of drafts: give iteration stats"
    return Reading(unplanned=(Unplanned(name=job.name(label), mean_accepted_length=gauges[0], reason=reason),))
