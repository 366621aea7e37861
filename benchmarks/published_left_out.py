"""The published rows that no price is judged by, counted, each with the reason."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple


class LeftOut(NamedTuple):
    """Rows of a table whose source begins so, of them those with a word in a column where one is named."""

    table: str
    source: str
    reason: str
    column: str = "source"
    word: str = ""

    def holds(self, row: dict[str, str]) -> bool:
        """Whether a row of the table is one of them."""
        return row["source"].startswith(self.source) and self.word in row[self.column]

    def count(self, folder: Path) -> int:
        """How many rows of FOLDER's table they are."""
        with (folder / f"{self.table}.csv").open() as file:
            return sum(map(self.holds, csv.DictReader(file)))


NO_PLAIN: Final = "no plain decoding beside it"
NO_LENGTH: Final = "no acceptance length beside the speedup"
NO_SERVER: Final = "reference code of Hugging Face, no serving engine"
OTHER_DEVICE: Final = "an engine or a device without kernel times here"

LEFT_OUT: Final = (
    LeftOut(
        "measured/specbundle_sglang",
        "SpecForge",
        "ratios below 1 on MT-bench: its plain runs are not comparable",
        "target",
        "Llama-4-Scout",
    ),
    LeftOut(
        "measured/sglang_autospec_tok_s", "SGLang PR #22246", f"{NO_PLAIN}; its choice of K is judged in cost-steps"
    ),
    LeftOut(
        "measured/speedup_by_batch",
        "EAGLE-3 paper arXiv:2503.01840 (NeurIPS 2025) Table 4",
        f"{NO_LENGTH}, nor the tree",
    ),
    LeftOut("measured/speedup_by_batch", "EAGLE paper", NO_SERVER),
    LeftOut("measured/speedup_by_batch", "SGLang PR #2150", NO_LENGTH),
    LeftOut("measured/speedup_by_batch", "docs.gpustack.ai", "plain and speculative runs are of two engines"),
    LeftOut("measured/speedup_by_batch", "eagle-harness", f"{NO_LENGTH}, nor the tree"),
    LeftOut("measured/speedup_by_batch", "TensorRT-LLM tech blog", NO_LENGTH),
    LeftOut("measured/speedup_by_batch", "DeepSeek-V3 report", "neither batch size nor engine is stated"),
    LeftOut("measured/speedup_by_batch", "vLLM PR #26504", NO_LENGTH),
    LeftOut("measured/speedup_by_batch", "SPEED-Bench", "the length is that at temperature 0", "metric", "T1"),
    LeftOut("measured/speedup_by_batch", "SPEED-Bench", "the draft model is not stated", "method", "Vanilla SD"),
    LeftOut(
        "measured/speedup_by_batch",
        "SPEED-Bench",
        "two profiles of B200 differ by two on its experts",
        "target",
        "GPT-OSS",
    ),
    LeftOut("measured/eagle3_table1_T0", "EAGLE-3 paper", NO_SERVER),
    LeftOut("measured/specbench_overall", "Spec-Bench", NO_SERVER),
    LeftOut("measured/trtllm_ngram_al", "TensorRT-LLM", "lengths alone"),
    LeftOut("measured/eagle_tree_vs_chain_tau", "EAGLE paper", "lengths alone"),
    LeftOut("drafters/throughput", "jetspec_blog", f"{NO_SERVER}, or none stated"),
    LeftOut("drafters/throughput", "vllm_blog_peagle", f"{NO_PLAIN}: ratios to EAGLE-3"),
    LeftOut(
        "drafters/throughput", "vllm_blog_dspark_adaptive", f"{NO_LENGTH}; the model's sparse attention has no price"
    ),
    LeftOut("drafters/costs", "vllm_blog_dspark_adaptive", "steps without a plain one; sparse attention has no price"),
    LeftOut("drafters/throughput", "vllm_pr_32628", f"{NO_PLAIN}; the GPU is not stated"),
    LeftOut("drafters/throughput", "sglang_pr_19952", NO_LENGTH),
    LeftOut("drafters/throughput", "zlab_card_qwen3.5_4b", NO_LENGTH),
    LeftOut("drafters/throughput", "vllm_recipes_839", NO_PLAIN),
    LeftOut("drafters/throughput", "vllm_pr_25784", f"{NO_PLAIN}; the target is not stated"),
    LeftOut("drafters/throughput", "vllm_pr_41044", NO_PLAIN),
    LeftOut("drafters/throughput", "vllm_pr_42910_comment", NO_PLAIN),
    LeftOut("drafters/throughput", "trtllm_issue_18085", NO_LENGTH),
    *(
        LeftOut("drafters/throughput", source, OTHER_DEVICE)
        for source in (
            *("llamacpp_pr_25173", "llamacpp_pr_22105_comment", "ninfer_issue_53", "ninfer3090_pr_65", "atlas_pr_844"),
            *("sparkinfer_pr_867_944", "vmlx_pr_276", "thor_ddtree", "rapid_mlx_472"),
        )
    ),
    LeftOut("drafters/costs", "ninfer_issue_53", OTHER_DEVICE),
    LeftOut("drafters/costs", "caddtree_cost_models", NO_SERVER),
)


def left_out(folder: Path) -> Iterator[str]:
    """One line per source."""
    for each in LEFT_OUT:
        name = f"{each.source}, {each.word}" if each.word else each.source
        yield f"| {each.table} | {name} | {each.count(folder)} | {each.reason} |"


ELSEWHERE: Final = """

## What is not judged

The EAGLE-3 paper's engines are of early 2025 and slower than today's; its acceptance lengths, and those of vLLM PR
16937, are taken from vLLM issue 20780, another run of the same pair. SpecBundle does not state its tp: the fewest GPUs
that hold the weights and meet its plain step are taken. Reports that were made because an engine was slow (SpecForge
issue 339, AngelSlim issue 163: Qwen3-30B-A3B on H100, one reporter) are no sample and are left out; the first one's
speculative steps took {complaint}.

| table | source | rows | why |
| --- | --- | ---: | --- |
"""
