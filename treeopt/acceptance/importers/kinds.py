"""The kinds of evidence files: what engines and their benchmarks write, by the words that only they contain.

To add an importer of counters: one row here, with the engine's names for its counts (see `records`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from treeopt.acceptance.importers.eagle import read_eagle_alpha, read_eagle_answers
from treeopt.acceptance.importers.json_reports import JsonFormat
from treeopt.acceptance.importers.length_tables import read_k_table, read_length_table
from treeopt.acceptance.importers.llamacpp import read_llamacpp
from treeopt.acceptance.importers.medusa import read_medusa_csv, read_medusa_topk
from treeopt.acceptance.importers.medusa_pt import read_medusa_pt
from treeopt.acceptance.importers.prometheus import PrometheusFormat
from treeopt.acceptance.importers.reading import ImportJob, Reading
from treeopt.acceptance.importers.recorded import RECORDED_WORDS, read_recorded
from treeopt.acceptance.importers.records import CounterFormat, added_up, side_by_side
from treeopt.acceptance.importers.sglang_log import read_sglang_log
from treeopt.acceptance.importers.sglang_metrics import VERIFY_CALLS, SglangMetrics
from treeopt.acceptance.importers.sglang_rank_probe import read_sglang_rank_probe
from treeopt.acceptance.importers.spec_bench import read_spec_bench
from treeopt.acceptance.importers.summary import read_summary
from treeopt.acceptance.importers.text_reports import TextFormat
from treeopt.acceptance.importers.vllm_log_v0 import read_vllm_log_v0


@dataclass(frozen=True, kw_only=True)
class ImportKind:
    """One kind: its name, what it is, the words it is known by (any of them), and its importer."""

    name: str
    what: str
    words: tuple[bytes, ...]
    read: Callable[[ImportJob], Reading]
    subtracts: bool = False  # two files are two scrapes of one server


def _kind(name: str, what: str, words: str, read: Callable[[ImportJob], Reading]) -> ImportKind:
    return ImportKind(name=name, what=what, words=tuple(w.encode() for w in words.split("|") if w), read=read)


_PER_DRAFT: Final = (
    "counted per draft: steps in which an n-gram or suffix drafter found nothing are not in this file, and make tokens "
    "per step fewer; the server's /metrics count them"
)


def _counters(
    name: str, what: str, words: str, format: CounterFormat, *, runs: bool = False, per_draft: bool = False
) -> ImportKind:
    """A kind of counters.

    With `runs` every report of a file is a measurement of its own, else they add up; `per_draft` ones tell no steps.
    """
    wanted = f"report of drafts (`{words.split('|')[0]}`)"

    def read(job: ImportJob) -> Reading:
        found = (side_by_side if runs else added_up)(job, format.reports(job), wanted)
        return found + Reading(warnings=(_PER_DRAFT,) if per_draft and found.sources else ())

    return ImportKind(
        name=name,
        what=what,
        words=tuple(w.encode() for w in words.split("|")),
        read=read,
        subtracts=isinstance(format, PrometheusFormat | SglangMetrics),
    )


_VLLM: Final = "vllm:spec_decode_num_"
_TRTLLM: Final = "trtllm_spec_decode_"

# In order of preference: a file that holds the words of two kinds is of the first.
_KINDS: Final = (
    _kind("treeopt-recorder", "ranks recorded inside a serving engine", RECORDED_WORDS, read_recorded),
    _counters(
        "vllm-prometheus",  # vllm/v1/spec_decode/metrics.py, class SpecDecodingProm (0.9 to 0.33)
        "vLLM /metrics text",
        _VLLM,
        PrometheusFormat(
            prefix="vllm:spec_decode_",
            fields={
                "drafts": f"{_VLLM}drafts_total",
                "drafted": f"{_VLLM}draft_tokens_total",
                "accepted": f"{_VLLM}accepted_tokens_total",
                "counts": f"{_VLLM}accepted_tokens_per_pos_total",
                # One sample per request and step behind its first token (v1/metrics/stats.py); the older name to 0.10.
                "steps": "vllm:inter_token_latency_seconds_count|vllm:time_per_output_token_seconds_count",
                "emitted": "vllm:generation_tokens_total",
                "prefills": "vllm:time_to_first_token_seconds_count|vllm:request_success_total",
            },
            position="position",
        ),
        runs=True,
    ),
    _counters(
        "trtllm-prometheus",  # tensorrt_llm/metrics/collector.py (1.3, 1.4); positions: ai-dynamo/aiperf PR 1433
        "TensorRT-LLM /prometheus/metrics text",
        _TRTLLM,
        PrometheusFormat(
            prefix=_TRTLLM,
            fields={
                "drafted": f"{_TRTLLM}num_draft_tokens_total",
                "accepted": f"{_TRTLLM}num_accepted_tokens_total",
                "tried": f"{_TRTLLM}drafted_tokens_total",
                "counts": f"{_TRTLLM}accepted_tokens_total",
            },
            position="token_position",
            gauge=f"{_TRTLLM}acceptance_length",
        ),
        runs=True,
    ),
    _counters(
        "sglang-prometheus",  # sglang/srt/observability/metrics_collector.py (0.5.23)
        "SGLang /metrics text",
        VERIFY_CALLS,
        SglangMetrics(),
        runs=True,
    ),
    _counters(
        "vllm-log",  # vllm/v1/spec_decode/metrics.py, class SpecDecodingLogging (0.8 to 0.33)
        "vLLM V1 log",
        "SpecDecoding metrics:|Per-position acceptance rate:",
        TextFormat(
            fields={
                "length": r"Mean acceptance length:",
                "accepted": r"Accepted:",
                "drafted": r"Drafted:",
                "rates": r"Per-position acceptance rate:",
                "percent": r"raft acceptance rate:",  # `Draft ...` before 0.10, `Avg Draft ...` since
            },
            by_mean=True,
        ),
        per_draft=True,
    ),
    _kind("vllm-log-v0", "vLLM V0 log", "Speculative metrics: ", read_vllm_log_v0),
    _counters(
        "vllm-bench",  # vllm/benchmarks/serve.py, spec_decode_stats (0.15 to 0.33)
        "`vllm bench serve` JSON",
        '"spec_decode_num_drafts"',
        JsonFormat(
            at="spec_decode_num_drafts",
            fields={
                "drafts": "spec_decode_num_drafts",
                "drafted": "spec_decode_draft_tokens",
                "accepted": "spec_decode_accepted_tokens",
                "rates": "spec_decode_per_position_acceptance_rates",
                "length": "spec_decode_acceptance_length",
                "percent": "spec_decode_acceptance_rate",
                "target": "model_id",
            },
        ),
        runs=True,
        per_draft=True,
    ),
    _counters(
        "vllm-bench-stdout",  # the same, printed
        "`vllm bench serve` table",
        "Per-position acceptance (%):",
        TextFormat(
            fields={
                "percent": r"^\s*Acceptance rate \(%\):",
                "length": r"^\s*Acceptance length:",
                "drafts": r"^\s*Drafts:",
                "drafted": r"^\s*Draft tokens:",
                "accepted": r"^\s*Accepted tokens:",
                "percents": r"^\s*Position {}:",
            }
        ),
        runs=True,
        per_draft=True,
    ),
    _counters(
        "vllm-request",  # --per-request-spec-decode-metrics (0.28 to 0.33); ai-dynamo/aiperf PR 1167
        "vLLM per-request metrics",
        '"num_accepted_draft_tokens"',
        JsonFormat(
            at="num_accepted_draft_tokens|num_spec_steps",
            fields={
                "drafts": "num_spec_steps",
                "drafted": "num_draft_tokens",
                "accepted": "num_accepted_draft_tokens",
                "draft_tokens": "num_spec_tokens",
                "histogram": "acceptance_histogram",
                "by_length": "acceptance_histogram_by_draft_length",
                "length": "mean_acceptance_length",
                "output": "usage.completion_tokens",
            },
        ),
    ),
    _counters(
        "vllm-offline",  # examples/offline_inference/spec_decode.py (0.9 to 0.33)
        "vLLM offline example's output",
        "num_accepted_tokens: ",
        TextFormat(
            fields={
                "drafts": r"^num_drafts:",
                "drafted": r"^num_draft_tokens:",
                "accepted": r"^num_accepted_tokens:",
                "emitted": r"^total_num_output_tokens:",
                "length": r"^mean acceptance length:",
                "rates": r"acceptance at token {}:",
            }
        ),
        runs=True,
    ),
    _kind("sglang-rank-probe", "SGLang DDTree rank probe", "rank-probe] target-token rank", read_sglang_rank_probe),
    _kind("sglang-log", "SGLang decode log", ", accept len: ", read_sglang_log),
    _counters(
        "sglang-request",  # srt/managers/tokenizer_manager.py (0.4 to 0.5.23), PR 33518; older names stand last
        "SGLang meta_info",
        '"spec_verify_ct"',
        JsonFormat(
            at="spec_verify_ct|spec_num_correct_drafts|spec_accept_token_num",
            fields={
                "drafts": "spec_verify_ct",
                "drafted": "spec_num_proposed_drafts|spec_draft_token_num",
                "accepted": "spec_num_correct_drafts|spec_accept_token_num",
                "histogram": "spec_correct_drafts_histogram|spec_accept_histogram",
                "output": "completion_tokens",
            },
            assumes_chains=True,
        ),
    ),
    _counters(
        "sglang-server-info",  # srt/managers/scheduler.py, get_internal_state (0.4 to 0.5.23)
        "SGLang server info",
        '"avg_spec_accept_length"',
        JsonFormat(
            at="avg_spec_accept_length",
            fields={
                "length": "avg_spec_accept_length",
                "num_steps": "speculative_num_steps",
                "topk": "speculative_eagle_topk",
            },
            assumes_chains=True,
        ),
        runs=True,
    ),
    _counters(
        "sglang-bench",  # scripts/playground/bench_speculative.py (commit 01d2a3d)
        "SGLang bench_speculative JSONL",
        '"acc_length"',
        JsonFormat(
            at="acc_length",
            fields={"length": "acc_length", "num_steps": "steps", "topk": "topk"},
            labels={"b": "batch_size", "steps": "steps"},
        ),
        runs=True,
    ),
    _counters(
        "trtllm-stats",  # cpp/include/tensorrt_llm/executor/types.h, struct SpecDecodingStats (0.17 to 1.4)
        "TensorRT-LLM iteration stats",
        '"specDecodingStats"',
        JsonFormat(
            at="specDecodingStats",
            fields={
                "drafts": "specDecodingStats.numRequestsWithDraftTokens",
                "drafted": "specDecodingStats.numDraftTokens",
                "accepted": "specDecodingStats.numAcceptedTokens",
                "length": "specDecodingStats.acceptanceLength",
                "steps": "inflightBatchingStats.numGenRequests",
            },
        ),
    ),
    _counters(
        "trtllm-request",  # PR 19311 (open in September 2026)
        "TensorRT-LLM choice",
        '"total_accepted_draft_tokens"',
        JsonFormat(
            at="total_accepted_draft_tokens|num_spec_steps",
            fields={
                "drafts": "num_spec_steps",
                "drafted": "total_draft_tokens",
                "accepted": "total_accepted_draft_tokens",
                "draft_tokens": "num_spec_tokens",
                "histogram": "acceptance_histogram",
                "rate": "acceptance_rate",
            },
        ),
    ),
    _kind("llamacpp-log", "llama.cpp server log", "draft acceptance |#acc tokens = ", read_llamacpp),
    _kind("medusa-csv", "Medusa accuracies as CSV", "medusa0_top", read_medusa_csv),
    _kind("medusa-topk", "Medusa accuracies as `TopK=` text", "Head 0 Accuracy=", read_medusa_topk),
    _kind("medusa-pt", "Medusa heads_accuracy.pt", "", read_medusa_pt),
    _kind("eagle-alpha", "EAGLE alpha JSONL", '"alpha_num"', read_eagle_alpha),
    _kind("spec-bench", "Spec-Bench answers", '"accept_lengths"', read_spec_bench),
    _kind("eagle-answers", "EAGLE or Medusa answers", '"idxs"', read_eagle_answers),
    _counters(
        "modelopt",  # examples/specdec_bench/specdec_bench/speculation_profile.py, schema 1.0
        "ModelOpt speculation profile",
        '"marginal_accept_rates"',
        JsonFormat(
            at="marginal_accept_rates",
            fields={
                "measured": "measured",
                "draft_tokens": "num_speculative_tokens",
                "lengths": "acceptance_length_histogram",
                "rates": "marginal_accept_rates",
                "conditional": "conditional_accept_rates",
                "length": "mean_accept_length",
                "target": "target_model.id",
                "drafter": "draft_checkpoint.id",
                "temperature": "measurement_conditions.temperature",
                "dataset": "measurement_conditions.dataset",
            },
        ),
        runs=True,
    ),
    _counters(
        "specforge",  # sgl-project/SpecForge, benchmarks/bench_eagle3.py (commit 1d66672)
        "SpecForge bench results",
        '"accept_length"',
        JsonFormat(
            at="accept_length",
            fields={
                "length": "accept_length",
                "num_steps": "steps",
                "topk": "topk",
                "drafter": "model",
                "dataset": "#0",
            },
            labels={"": "#0", "b": "batch_size", "steps": "steps"},
        ),
        runs=True,
    ),
    _counters(
        "llamacpp-simple",  # examples/speculative-simple
        "llama.cpp speculative-simple",
        "n_drafted = |n_drafted   = ",
        TextFormat(
            fields={
                "draft_tokens": r"^\s*n_draft\s*=",
                "emitted": r"^\s*n_predict\s*=",
                "drafted": r"^\s*n_drafted\s*=",
                "accepted": r"^\s*n_accept\s*=",
                "percent": r"^\s*accept\s*=",
            }
        ),
        runs=True,
    ),
    _kind("golden-al", "a mean accepted length for each K", "value = golden AL|thinking_on:", read_k_table),
    _kind("table", "a table with a column of accepted lengths", "", read_length_table),
    _kind("mean", "a mean accepted length", "", read_summary),
)
KINDS: Final[dict[str, ImportKind]] = {kind.name: kind for kind in _KINDS}
