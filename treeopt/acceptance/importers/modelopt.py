"""ModelOpt's speculation_profile.json: a histogram of accepted lengths and the rates made from it.

Format: NVIDIA/Model-Optimizer, examples/specdec_bench/specdec_bench/speculation_profile.py, schema 1.0. The histogram's
keys are lengths with the bonus token counted.
"""

from __future__ import annotations

import numpy as np

from treeopt.acceptance.conversions import survival_from_conditional
from treeopt.acceptance.importers.chains import Chains, chain_reading, from_histogram, rates_source
from treeopt.acceptance.importers.checks import check_mean, check_rate, check_survival
from treeopt.acceptance.importers.reading import Job, Reading
from treeopt.acceptance.profile import Conditions
from treeopt.files.documents import Field
from treeopt.files.evidence_lines import bars, count, find_mappings, has, require

_ROUNDING = 0.00051


def read_modelopt(job: Job) -> Reading:
    """Position evidence: counts from the histogram, or rates alone without one."""
    reading, found = Reading(), 0
    for document in job.file.records():
        for profile in find_mappings(document, "marginal_accept_rates"):
            found += 1
            reading += _read(job, profile)
    require(found > 0, job.file, "`marginal_accept_rates`")
    return reading


def _read(job: Job, profile: Field) -> Reading:
    if has(profile, "measured") and not profile.get("measured").boolean():
        raise profile.get("measured").error("nothing was measured", hint="run specdec_bench on the checkpoint first")
    rates = [rate.number(low=0) for rate in profile.get("marginal_accept_rates").items()]
    check_survival(profile.get("marginal_accept_rates"), rates, 1.0)
    _check_conditional(profile, rates)
    conditions = _conditions(profile)
    if not has(profile, "acceptance_length_histogram"):
        return Reading(sources=(rates_source(job, rates, conditions),))
    chains = _chains(profile)
    for rate, n in zip(rates, chains.accepted, strict=False):
        stated = profile.get("marginal_accept_rates")
        check_rate(stated, stated=rate, computed=n / chains.drafts, rounding=_ROUNDING)
    if has(profile, "mean_accept_length"):
        mean = profile.get("mean_accept_length")
        check_mean(mean, stated=mean.number(), computed=chains.mean_accepted_length, source="the histogram's counts")
    return chain_reading(job, chains, conditions)


def _chains(profile: Field) -> Chains:
    field = profile.get("acceptance_length_histogram")
    by_length = bars(field)
    if by_length[:1] not in ([], [0]):
        raise field.error(f"{by_length[0]} steps of length 0", hint="lengths count the bonus token, so they start at 1")
    histogram = by_length[1:]
    drafts = sum(histogram)
    if drafts == 0:
        raise field.error("the histogram is empty", hint="run specdec_bench on some prompts")
    K = count(profile.get("num_speculative_tokens"))
    accepted = sum(j * n for j, n in enumerate(histogram))
    return from_histogram(field, histogram, drafts=drafts, drafted=K * drafts, accepted=accepted, draft_tokens=K)


def _check_conditional(profile: Field, rates: list[float]) -> None:
    if not has(profile, "conditional_accept_rates"):
        return
    field = profile.get("conditional_accept_rates")
    conditional = np.array([rate.number(low=0) for rate in field.items()])
    for i, (stated, computed) in enumerate(zip(rates, survival_from_conditional(conditional).tolist(), strict=False)):
        if abs(stated - computed) > _ROUNDING:
            raise field.error(
                f"they multiply up to {computed:.6g} at position {i}, marginal_accept_rates says {stated:.6g}",
                hint="marginal rates are the running product of conditional ones",
            )


def _conditions(profile: Field) -> Conditions:
    measured = profile.get("measurement_conditions") if has(profile, "measurement_conditions") else None
    return Conditions(
        target=_id(profile, "target_model"),
        drafter=_id(profile, "draft_checkpoint"),
        temperature=measured.get("temperature").number(low=0) if measured and has(measured, "temperature") else None,
        dataset=measured.get("dataset").text() if measured and has(measured, "dataset") else None,
        sampling="draft-starts",
    )


def _id(profile: Field, key: str) -> str | None:
    return profile.get(key).get("id").text() if has(profile, key) and has(profile.get(key), "id") else None
