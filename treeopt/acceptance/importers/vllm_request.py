"""vLLM's per-request metrics (--per-request-spec-decode-metrics): a histogram of accepted drafts per step.

Format: vllm-project/vllm PR 48915, docs/features/speculative_decoding/acceptance_metrics.md (0.28 to 0.33). The
histogram is a list, or a mapping without its empty bars in the form that ai-dynamo/aiperf PR 1167 reads.
"""

from __future__ import annotations

from treeopt.acceptance.importers.chains import ChainCounts, Chains, from_histogram
from treeopt.acceptance.importers.checks import check_mean, check_output
from treeopt.acceptance.importers.reading import SERVED, Job, Reading
from treeopt.files.documents import Document, Field
from treeopt.files.evidence_lines import bars, count, find_mappings, has, require


def read_vllm_request(job: Job) -> Reading:
    """Position evidence per draft length, requests added up."""
    counts = ChainCounts()
    for document in job.file.records():
        for info in find_mappings(document, "num_accepted_draft_tokens"):
            for chains in _chains(document, info):
                counts.add(chains)
    require(len(counts) > 0, job.file, "`num_accepted_draft_tokens` of a request with drafts")
    return counts.reading(job, SERVED)


def _chains(document: Document, info: Field) -> list[Chains]:
    steps, accepted = count(info.get("num_spec_steps")), count(info.get("num_accepted_draft_tokens"))
    if steps == 0:
        return []
    chains = from_histogram(
        info,
        bars(info.get("acceptance_histogram")),
        drafts=steps,
        drafted=count(info.get("num_draft_tokens")),
        accepted=accepted,
        draft_tokens=count(info.get("num_spec_tokens")),
    )
    if has(info, "mean_acceptance_length"):
        mean = info.get("mean_acceptance_length")
        check_mean(mean, stated=mean.number(), computed=chains.mean_accepted_length, source="its counts")
    usage = next(find_mappings(document, "completion_tokens"), None)
    if usage is not None:
        check_output(info, steps=steps, accepted=accepted, emitted=count(usage.get("completion_tokens")))
    return _by_length(info, chains)


def _by_length(info: Field, chains: Chains) -> list[Chains]:
    """The same steps apart by how long their drafts were, where the engine says so."""
    if not has(info, "acceptance_histogram_by_draft_length"):
        return [chains]
    groups = info.get("acceptance_histogram_by_draft_length")
    parts = []
    for key in groups.mapping():
        histogram, K = bars(groups.get(key)), int(key) if key.isascii() and key.isdigit() and len(key) < 5 else 0
        drafts, accepted = sum(histogram), sum(j * n for j, n in enumerate(histogram))
        if K or accepted:  # steps without a draft are counted under 0
            parts.append(
                from_histogram(
                    groups.get(key), histogram, drafts=drafts, drafted=K * drafts, accepted=accepted, draft_tokens=K
                )
            )
    if sum(part.accepted_tokens for part in parts) != chains.accepted_tokens:
        total = sum(part.accepted_tokens for part in parts)
        raise groups.error(
            f"the histograms by draft length count {total} accepted tokens, the total says {chains.accepted_tokens}",
            hint="give the response as it came",
        )
    return parts
