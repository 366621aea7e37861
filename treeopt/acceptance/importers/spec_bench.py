"""Spec-Bench answers: JSONL with the accepted length of every step, bonus token counted.

Format: hemingkx/Spec-Bench, evaluation/eval.py (commit 70f8b28). `decoding_steps` means different things in different
methods' scripts and is not used; `accept_lengths` and `new_tokens` cover the same turns.
"""

from __future__ import annotations

from dataclasses import replace

from treeopt.acceptance.conversions import with_bonus
from treeopt.acceptance.importers.chain_readings import counts_reading
from treeopt.acceptance.importers.counters import DraftCounts
from treeopt.acceptance.importers.reading import SERVED, TREE_UNKNOWN, ImportJob, Reading
from treeopt.acceptance.importers.reconciling import check_output
from treeopt.acceptance.position import MAX_DRAFT_TOKENS
from treeopt.files.documents import Field
from treeopt.files.evidence_lines import count, find_mappings, require


def read_spec_bench(job: ImportJob) -> Reading:
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
    conditions = replace(SERVED, drafter=drafter)
    if job.draft_tokens is None:
        mean = with_bonus(accepted / steps)
        return job.mean_reading(job.file, mean, None, conditions=conditions, unknown=TREE_UNKNOWN)
    report = DraftCounts(
        place=job.file, draft_tokens=job.draft_tokens, histogram=tuple(histogram), conditions=conditions
    )
    return counts_reading(job, report)


def _accepted(choice: Field) -> list[int]:
    lengths = [length.integer(low=1, high=MAX_DRAFT_TOKENS + 1) for length in choice.get("accept_lengths").items()]
    emitted = sum(count(new) for new in choice.get("new_tokens").items())
    check_output(choice, steps=len(lengths), accepted=sum(lengths) - len(lengths), output=emitted)
    return [length - 1 for length in lengths]
