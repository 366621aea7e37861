"""The kinds of evidence files, by the words that only they contain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treeopt.acceptance.importers.eagle import read_eagle_alpha, read_eagle_answers
from treeopt.acceptance.importers.golden_al import read_golden_al
from treeopt.acceptance.importers.llamacpp import read_llamacpp
from treeopt.acceptance.importers.mean import read_mean
from treeopt.acceptance.importers.medusa import read_medusa_csv, read_medusa_topk
from treeopt.acceptance.importers.medusa_pt import read_medusa_pt
from treeopt.acceptance.importers.modelopt import read_modelopt
from treeopt.acceptance.importers.reading import Job, Reading
from treeopt.acceptance.importers.sglang_bench import read_sglang_bench
from treeopt.acceptance.importers.sglang_log import read_sglang_log
from treeopt.acceptance.importers.sglang_rank_probe import read_sglang_rank_probe
from treeopt.acceptance.importers.sglang_request import read_sglang_request
from treeopt.acceptance.importers.sglang_server_info import read_sglang_server_info
from treeopt.acceptance.importers.spec_bench import read_spec_bench
from treeopt.acceptance.importers.specforge import read_specforge
from treeopt.acceptance.importers.trtllm_prometheus import read_trtllm_prometheus
from treeopt.acceptance.importers.trtllm_request import read_trtllm_request
from treeopt.acceptance.importers.trtllm_stats import read_trtllm_stats
from treeopt.acceptance.importers.vllm_bench import read_vllm_bench, read_vllm_bench_stdout
from treeopt.acceptance.importers.vllm_log import read_vllm_log
from treeopt.acceptance.importers.vllm_log_v0 import read_vllm_log_v0
from treeopt.acceptance.importers.vllm_offline import read_vllm_offline
from treeopt.acceptance.importers.vllm_prometheus import read_vllm_prometheus
from treeopt.acceptance.importers.vllm_request import read_vllm_request


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind: its name, what it is, the words it is known by (any of them), and its importer."""

    name: str
    what: str
    words: tuple[bytes, ...]
    read: Callable[[Job], Reading]
    subtracts: bool = False  # two files are two scrapes of one server


def _kind(name: str, what: str, words: str, read: Callable[[Job], Reading], *, subtracts: bool = False) -> Kind:
    known_by = tuple(word.encode() for word in words.split("|") if word)
    return Kind(name=name, what=what, words=known_by, read=read, subtracts=subtracts)


# In order of preference: a file that holds the words of two kinds is of the first.
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        _kind("vllm-prometheus", "vLLM /metrics text", "vllm:spec_decode_num_", read_vllm_prometheus, subtracts=True),
        _kind(
            "trtllm-prometheus",
            "TensorRT-LLM /prometheus/metrics text",
            "trtllm_spec_decode_",
            read_trtllm_prometheus,
            subtracts=True,
        ),
        _kind("vllm-log", "vLLM V1 log", "SpecDecoding metrics:|Per-position acceptance rate:", read_vllm_log),
        _kind("vllm-log-v0", "vLLM V0 log", "Speculative metrics: ", read_vllm_log_v0),
        _kind("vllm-bench", "`vllm bench serve` JSON", '"spec_decode_num_drafts"', read_vllm_bench),
        _kind("vllm-bench-stdout", "`vllm bench serve` table", "Per-position acceptance (%):", read_vllm_bench_stdout),
        _kind("vllm-request", "vLLM per-request metrics", '"num_accepted_draft_tokens"', read_vllm_request),
        _kind("vllm-offline", "vLLM offline example's output", "num_accepted_tokens: ", read_vllm_offline),
        _kind("sglang-rank-probe", "SGLang DDTree rank probe", "rank-probe] target-token rank", read_sglang_rank_probe),
        _kind("sglang-log", "SGLang decode log", ", accept len: ", read_sglang_log),
        _kind("sglang-request", "SGLang meta_info", '"spec_verify_ct"', read_sglang_request),
        _kind("sglang-server-info", "SGLang server info", '"avg_spec_accept_length"', read_sglang_server_info),
        _kind("sglang-bench", "SGLang bench_speculative JSONL", '"acc_length"', read_sglang_bench),
        _kind("trtllm-stats", "TensorRT-LLM iteration stats", '"specDecodingStats"', read_trtllm_stats),
        _kind("trtllm-request", "TensorRT-LLM choice", '"total_accepted_draft_tokens"', read_trtllm_request),
        _kind("llamacpp-log", "llama.cpp server log", "draft acceptance = |#acc rate/pos = ", read_llamacpp),
        _kind("medusa-csv", "Medusa accuracies as CSV", "medusa0_top", read_medusa_csv),
        _kind("medusa-topk", "Medusa accuracies as `TopK=` text", "Head 0 Accuracy=", read_medusa_topk),
        _kind("medusa-pt", "Medusa heads_accuracy.pt", "", read_medusa_pt),
        _kind("eagle-alpha", "EAGLE alpha JSONL", '"alpha_num"', read_eagle_alpha),
        _kind("spec-bench", "Spec-Bench answers", '"accept_lengths"', read_spec_bench),
        _kind("eagle-answers", "EAGLE or Medusa answers", '"idxs"', read_eagle_answers),
        _kind("modelopt", "ModelOpt speculation profile", '"marginal_accept_rates"', read_modelopt),
        _kind("specforge", "SpecForge bench results", '"accept_length"', read_specforge),
        _kind("golden-al", "InferenceX golden AL table", "value = golden AL|thinking_on:", read_golden_al),
        _kind("mean", "a bare mean accepted length", "", read_mean),
    )
}
