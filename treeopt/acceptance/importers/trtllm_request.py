"""TensorRT-LLM's acceptance of single requests, on each choice of a response.

Format: NVIDIA/TensorRT-LLM PR 19311 (open in September 2026); acceptance_histogram[j] counts the steps with j drafts
accepted. `avg_decoded_tokens_per_iter` beside it also counts steps without drafts and is not used.
"""

from __future__ import annotations

from treeopt.acceptance.importers.chains import ChainCounts, Chains, from_histogram
from treeopt.acceptance.importers.checks import check_rate
from treeopt.acceptance.importers.reading import SERVED, Job, Reading
from treeopt.files.documents import Field
from treeopt.files.evidence_lines import bars, count, find_mappings, has, require

_ROUNDING = 0.00051


def read_trtllm_request(job: Job) -> Reading:
    """Position evidence per draft length, requests added up."""
    counts = ChainCounts()
    for document in job.file.records():
        for info in find_mappings(document, "total_accepted_draft_tokens"):
            if info.get("num_spec_steps").value:
                counts.add(_chains(info))
    require(len(counts) > 0, job.file, "`total_accepted_draft_tokens` of a request with drafts")
    return counts.reading(job, SERVED)


def _chains(info: Field) -> Chains:
    chains = from_histogram(
        info,
        bars(info.get("acceptance_histogram")),
        drafts=count(info.get("num_spec_steps")),
        drafted=count(info.get("total_draft_tokens")),
        accepted=count(info.get("total_accepted_draft_tokens")),
        draft_tokens=count(info.get("num_spec_tokens")),
    )
    if has(info, "acceptance_rate") and chains.drafted_tokens:
        rate = info.get("acceptance_rate")
        computed = chains.accepted_tokens / chains.drafted_tokens
        check_rate(rate, stated=rate.number(low=0), computed=computed, rounding=_ROUNDING)
    return chains
