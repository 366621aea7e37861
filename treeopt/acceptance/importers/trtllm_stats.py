"""TensorRT-LLM's iteration statistics (GET /metrics, or LLM.get_stats): totals over the requests of one step.

Format: NVIDIA/TensorRT-LLM, cpp/include/tensorrt_llm/executor/types.h, struct SpecDecodingStats (0.17 to 1.4).
`acceptanceLength` is tokens per step and request, bonus token included; a request with drafts is one draft.
"""

from __future__ import annotations

from treeopt.acceptance.importers.chains import ChainCounts, Chains, mixed_lengths
from treeopt.acceptance.importers.checks import check_accepted, check_drafted, check_mean
from treeopt.acceptance.importers.reading import SERVED, Job, Reading
from treeopt.files.documents import Field
from treeopt.files.evidence_lines import count, find_mappings, has, require


def read_trtllm_stats(job: Job) -> Reading:
    """Mean evidence per draft length, iterations added up; iterations of several lengths are no evidence."""
    uniform, mixed = ChainCounts(), ChainCounts()
    for document in job.file.records():
        for iteration in find_mappings(document, "specDecodingStats"):
            if has(iteration, "specDecodingStats"):
                chains = _chains(iteration.get("specDecodingStats"))
                is_uniform = chains.drafted_tokens == chains.draft_tokens * chains.drafts
                (uniform if is_uniform else mixed).add(chains)
    require(len(uniform) + len(mixed) > 0, job.file, "`specDecodingStats` of a step with drafts")
    unplanned = tuple(
        mixed_lengths(job, "mixed", drafts=c.drafts, drafted=c.drafted_tokens, accepted=c.accepted_tokens)
        for c in mixed.as_longest()
    )
    return uniform.reading(job, SERVED) + Reading(unplanned=unplanned)


def _chains(stats: Field) -> Chains:
    drafted, accepted = count(stats.get("numDraftTokens")), count(stats.get("numAcceptedTokens"))
    drafts = count(stats.get("numRequestsWithDraftTokens"))
    check_accepted(stats, drafted=drafted, accepted=accepted)
    if drafted == 0 or drafts == 0:
        return Chains(draft_tokens=0, drafts=0, drafted_tokens=drafted, accepted_tokens=accepted)
    K = -(-drafted // drafts)
    check_drafted(stats, drafts=drafts, drafted=drafted, draft_tokens=K)
    chains = Chains(draft_tokens=K, drafts=drafts, drafted_tokens=drafted, accepted_tokens=accepted)
    if has(stats, "acceptanceLength"):
        length = stats.get("acceptanceLength")
        check_mean(length, stated=length.number(), computed=chains.mean_accepted_length, source="its counters")
    return chains
