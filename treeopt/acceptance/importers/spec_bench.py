"""Spec-Bench answers: JSONL with the accepted length of every step, bonus token counted.

Format: hemingkx/Spec-Bench, evaluation/eval.py (commit 70f8b28). `decoding_steps` means different things in different
methods' scripts and is not used; `accept_lengths` and `new_tokens` cover the same turns.
"""

from __future__ import annotations

from treeopt.acceptance.importers.chains import chain_reading, from_histogram
from treeopt.acceptance.importers.checks import check_output
from treeopt.acceptance.importers.reading import Job, Reading, Unplanned
from treeopt.acceptance.position import MAX_DRAFT_TOKENS
from treeopt.acceptance.profile import Conditions
from treeopt.files.documents import Field
from treeopt.files.evidence_lines import count, find_mappings, require


def read_spec_bench(job: Job) -> Reading:
    """The mean accepted length; position evidence if the run is said to have drafted chains of K."""
    histogram = [0] * (MAX_DRAFT_TOKENS + 1)
    drafter = None
    for document in job.file.records():
        for choice in find_mappings(document, "accept_lengths"):
            for accepted in _accepted(choice):
                histogram[accepted] += 1
        if isinstance(document.value, dict) and isinstance(document.value.get("model_id"), str):
            drafter = document.value["model_id"]
    steps, accepted = sum(histogram), sum(j * n for j, n in enumerate(histogram))
    require(steps > 0, job.file, "`accept_lengths`")
    K = job.draft_tokens
    if K is None:
        reason = "the file does not say which tree was verified: give K if it was a chain of K drafts"
        mean = 1 + accepted / steps
        return Reading(unplanned=(Unplanned(name=job.name(""), mean_accepted_length=mean, reason=reason),))
    chains = from_histogram(job.file, histogram, drafts=steps, drafted=K * steps, accepted=accepted, draft_tokens=K)
    return chain_reading(job, chains, Conditions(drafter=drafter, sampling="draft-starts"))


def _accepted(choice: Field) -> list[int]:
    lengths = [length.integer(low=1, high=MAX_DRAFT_TOKENS + 1) for length in choice.get("accept_lengths").items()]
    emitted = sum(count(new) for new in choice.get("new_tokens").items())
    check_output(choice, steps=len(lengths), accepted=sum(lengths) - len(lengths), emitted=emitted)
    return [length - 1 for length in lengths]
