"""vLLM V1's /metrics text: counters of drafts, drafted and accepted tokens, and accepted tokens per position.

Format: vllm-project/vllm, vllm/v1/spec_decode/metrics.py, class SpecDecodingProm (0.9 to 0.33).
"""

from __future__ import annotations

from typing import Final

from treeopt.acceptance.importers.chains import chain_reading, from_positions, totals_reading
from treeopt.acceptance.importers.prometheus import Model, read_models
from treeopt.acceptance.importers.reading import Job, Reading
from treeopt.acceptance.profile import Conditions

_PREFIX: Final = "vllm:spec_decode_"


def read_vllm_prometheus(job: Job) -> Reading:
    """Position evidence per served model; a mean where the scrape has no per-position counters."""
    return sum((_read_model(job, model) for model in read_models(job, _PREFIX)), Reading())


def _read_model(job: Job, model: Model) -> Reading:
    samples, label, place = model.samples, model.label, model.samples.place
    totals = [samples.total(f"{_PREFIX}num_{what}_total") for what in ("drafts", "draft_tokens", "accepted_tokens")]
    drafts, drafted, accepted = (round(total or 0) for total in totals)
    if None in totals:
        raise place.error(
            "num_drafts, num_draft_tokens and num_accepted_tokens are not all there",
            hint="vLLM V0 did not count drafts: give its log instead (`Speculative metrics:` lines)",
        )
    conditions = Conditions(target=model.name or None, sampling="draft-starts")
    by_position = samples.by_position(f"{_PREFIX}num_accepted_tokens_per_pos_total", "position")
    if not by_position or drafts == 0:
        return totals_reading(job, place, conditions, drafts=drafts, drafted=drafted, accepted=accepted, label=label)
    chains = from_positions(place, by_position, drafts=drafts, drafted=drafted, accepted_tokens=accepted)
    return chain_reading(job, chains, conditions, label=label)
