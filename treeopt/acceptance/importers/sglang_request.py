"""SGLang's `meta_info` (or `spec_tokens_details`) of single requests, with a histogram of accepted drafts per step.

Format: sgl-project/sglang, python/sglang/srt/managers/tokenizer_manager.py (0.4 to 0.5.23; PR 33518 for the OpenAI
API); older names stand last below. `spec_accept_length` is completion_tokens / spec_verify_ct, which in some versions
counts the prefill's token too, so the length is taken from the counts.
"""

from __future__ import annotations

from treeopt.acceptance.importers.chains import ChainCounts, Chains, from_histogram
from treeopt.acceptance.importers.checks import check_accepted, check_drafted, check_output
from treeopt.acceptance.importers.reading import SERVED, Job, Reading
from treeopt.acceptance.importers.sglang_log import CHAIN_ASSUMED
from treeopt.files.documents import Field
from treeopt.files.evidence_lines import count, find_mappings, first_of, has, require


def read_sglang_request(job: Job) -> Reading:
    """Position evidence per draft length, requests added up; a mean where they carry no histogram."""
    counts = ChainCounts()
    for document in job.file.records():
        for info in find_mappings(document, "spec_verify_ct"):
            if info.get("spec_verify_ct").value:
                counts.add(_chains(info))
    require(len(counts) > 0, job.file, "`spec_verify_ct` above 0")
    reading = counts.reading(job, SERVED)
    return reading + Reading(warnings=(CHAIN_ASSUMED,))


def _chains(info: Field) -> Chains:
    steps = count(info.get("spec_verify_ct"))
    accepted = count(first_of(info, "spec_num_correct_drafts", "spec_accept_token_num"))
    drafted = count(first_of(info, "spec_num_proposed_drafts", "spec_draft_token_num"))
    K = -(-drafted // steps)
    if has(info, "completion_tokens"):
        check_output(info, steps=steps, accepted=accepted, emitted=count(info.get("completion_tokens")))
    if has(info, "spec_correct_drafts_histogram", "spec_accept_histogram"):
        bars = first_of(info, "spec_correct_drafts_histogram", "spec_accept_histogram")
        histogram = [count(bar) for bar in bars.items()]
        return from_histogram(bars, histogram, drafts=steps, drafted=drafted, accepted=accepted, draft_tokens=K)
    check_drafted(info, drafts=steps, drafted=drafted, draft_tokens=K)
    check_accepted(info, drafted=drafted, accepted=accepted)
    return Chains(draft_tokens=K, drafts=steps, drafted_tokens=drafted, accepted_tokens=accepted)
