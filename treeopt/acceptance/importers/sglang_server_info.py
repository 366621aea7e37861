"""SGLang's /get_server_info: the mean accepted length since the server started, and the arguments it runs with.

Format: sgl-project/sglang, python/sglang/srt/managers/scheduler.py, get_internal_state (0.4 to 0.5.23).
"""

from __future__ import annotations

from treeopt.acceptance.importers.reading import SERVED, Job, Reading, Tally, Unplanned
from treeopt.acceptance.importers.sglang_log import CHAIN_ASSUMED
from treeopt.acceptance.position import MeanLength
from treeopt.files.documents import Document, Field
from treeopt.files.evidence_lines import count, find_mappings, has, require


def read_sglang_server_info(job: Job) -> Reading:
    """Mean evidence per scheduler; nothing to plan from where it verified trees or does not say K."""
    reading, states = Reading(), 0
    for document in job.file.records():
        for state in find_mappings(document, "avg_spec_accept_length"):
            states += 1
            reading += _read(job, document, state)
    require(states > 0, job.file, "`avg_spec_accept_length`")
    return reading


def _read(job: Job, document: Document, state: Field) -> Reading:
    length = state.get("avg_spec_accept_length").number(low=1)
    topk = _argument(document, "speculative_eagle_topk")
    K = job.draft_tokens or _argument(document, "speculative_num_steps")
    if K is None or (topk or 1) > 1:
        reason = (
            "speculative_num_steps is not in it" if K is None else f"speculative_eagle_topk {topk} is a tree's mean"
        )
        unplanned = Unplanned(name=job.name(""), mean_accepted_length=length, reason=reason)
        return Reading(unplanned=(unplanned,))
    source = job.source(
        MeanLength(mean_accepted_length=length, draft_tokens=K),
        tally=Tally(draft_tokens=K, mean_accepted_length=length),
        conditions=SERVED,
    )
    return Reading(sources=(source,), warnings=() if topk else (CHAIN_ASSUMED,))


def _argument(document: Document, key: str) -> int | None:
    for mapping in find_mappings(document, key):
        if has(mapping, key):
            return count(mapping.get(key))
    return None
