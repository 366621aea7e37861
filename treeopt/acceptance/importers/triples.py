"""Mean lengths beside SGLang's triple (steps, topk, draft tokens with the root), as benchmarks of SGLang write them."""

from __future__ import annotations

from treeopt.acceptance.importers.reading import Job, Reading, Tally, Unplanned
from treeopt.acceptance.position import MeanLength
from treeopt.acceptance.profile import Conditions
from treeopt.files.documents import Field
from treeopt.files.evidence_lines import count, has


def triple_reading(job: Job, run: Field, mean: Field, *, label: str, conditions: Conditions) -> Reading:
    """Mean evidence of a chain; a tree's mean says nothing of a single guess, and plain decoding is no evidence."""
    stated = has(run, "steps") and has(run, "topk")
    steps, topk = (count(run.get(key)) if stated else 0 for key in ("steps", "topk"))
    if stated and steps == 0:
        return Reading()
    length = mean.number(low=1)
    if stated and topk == 1:
        evidence = MeanLength(mean_accepted_length=length, draft_tokens=steps)
        tally = Tally(draft_tokens=steps, mean_accepted_length=length)
        return Reading(sources=(job.source(evidence, label=label, tally=tally, conditions=conditions),))
    reason = (
        f"the mean of a tree ({steps} steps, {topk} guesses each) does not say which guess was right"
        if stated
        else "the file does not say what was drafted (server launched by hand)"
    )
    unplanned = Unplanned(name=job.name(label), mean_accepted_length=length, reason=reason)
    return Reading(unplanned=(unplanned,))
