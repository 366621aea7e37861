"""Served step times from what engines' own benchmarks write: step = B x accepted length / (tokens/s), or as stated.

Formats: vllm-project/vllm `vllm bench serve` JSON (0.15 to 0.33) and the batch x K table of its dynamic speculation;
sgl-project/sglang scripts/playground/bench_speculative.py; sgl-project/SpecForge benchmarks/bench_eagle3.py;
NVIDIA/TensorRT-LLM iteration statistics (GET /metrics).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from treeopt.acceptance.conversions import nodes_from_draft_tokens, with_bonus
from treeopt.cost.served.step import ServedStep, drafted_widths, medians
from treeopt.files.documents import Document, Field
from treeopt.files.evidence_lines import Line, SourceFile, count, find_mappings, has


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """One kind of benchmark file: what it is, the key that only it holds, and how its mappings become rows."""

    what: str
    key: str
    rows: Callable[[Field], Iterator[ServedStep]]
    repeats: bool = False  # every step is logged: the median of equal ones counts


@dataclass(frozen=True)
class HeldFile(SourceFile):
    """A file whose text was read already."""

    held: str = ""

    def text(self) -> str:
        """See `SourceFile`."""
        return self.held

    def lines(self) -> Iterator[Line]:
        """See `SourceFile`."""
        for number, line in enumerate(io.StringIO(self.held, newline="\n"), start=1):
            yield Line(name=str(self.path), number=number, text=line.rstrip("\r\n"), complete=line.endswith("\n"))


def read_bench_steps(path: Path, text: str) -> list[ServedStep]:
    """The rows of a file that holds `text`, in order; logged steps of one point (TensorRT-LLM) as their median.

    Raises:
        FileFormatError: no JSON, nothing that is known, or a number that is missing or out of range.
    """
    file = HeldFile(path, held=text)
    documents = list(file.records())
    for bench in BENCHES:
        rows = [
            row for document in documents for found in find_mappings(document, bench.key) for row in bench.rows(found)
        ]
        if rows:
            return medians(rows) if bench.repeats else rows
    kinds = "; ".join(f"{bench.what} (`{bench.key}`)" for bench in BENCHES)
    raise file.error("no step times are known in it", hint=f"give a CSV with batch, k, step_ms, or one of: {kinds}")


def batch_table_rows(document: Document) -> Iterator[ServedStep]:
    """The rows of vLLM's `batch_stats`: milliseconds per batch size and K."""
    for found in find_mappings(document, _BATCH_STATS):
        yield from _vllm_table(found)


def _vllm_bench(run: Field) -> Iterator[ServedStep]:
    speculative = has(run, "spec_decode_num_drafts")
    drafts = count(run.get("spec_decode_num_drafts")) if speculative else 0
    K = -(-count(run.get("spec_decode_draft_tokens")) // drafts) if drafts else 0
    length = with_bonus(count(run.get("spec_decode_accepted_tokens")) / drafts) if drafts else 1.0
    batch = run.get("max_concurrency").integer(low=1)
    step_time_s = batch * length / _positive(run.get("output_throughput"))
    yield _chain(run, batch, K, step_time_s, length)


def _sglang_bench(run: Field) -> Iterator[ServedStep]:
    if has(run, "steps", "topk"):
        length = run.get("acc_length").number(low=1)
        yield _triple(run, _positive(run.get("step_time")), length)


def _specforge(run: Field) -> Iterator[ServedStep]:
    metrics = run.get("metrics")
    for entry in metrics.items() if isinstance(metrics.value, list) else ():
        length = entry.get("accept_length").number(low=1)
        batch = run.get("batch_size").integer(low=1)
        yield _triple(run, batch * length / _positive(entry.get("output_throughput")), length)


def _trtllm_iteration(iteration: Field) -> Iterator[ServedStep]:
    batching = iteration.get("inflightBatchingStats")
    batch = count(batching.get("numGenRequests"))
    if count(batching.get("numContextRequests")) or batch == 0:
        return  # prefill rides along
    K, length = 0, 1.0
    if has(iteration, "specDecodingStats"):
        stats = iteration.get("specDecodingStats")
        drafted, drafting = count(stats.get("numDraftTokens")), count(stats.get("numRequestsWithDraftTokens"))
        if drafted and (drafting != batch or drafted % drafting):
            return  # requests with different drafts
        K = drafted // drafting if drafted else 0
        length = with_bonus(count(stats.get("numAcceptedTokens")) / batch)
    yield _chain(iteration, batch, K, _positive(iteration.get(_ITERATION)) * 1e-3, length)


def _vllm_table(profile: Field) -> Iterator[ServedStep]:
    table = profile.get(_BATCH_STATS)
    for batch in table.mapping():
        for K in table.get(batch).mapping():
            cell = table.get(batch).get(K)
            if not (_SIZE.fullmatch(batch) and _SIZE.fullmatch(K) and int(batch)):
                raise cell.error("no batch size and K", hint="the keys are whole numbers: batch, then K")
            yield _chain(cell, int(batch), int(K), _positive(cell) * 1e-3, None)


def _chain(place: Field, batch: int, K: int, step_time_s: float, length: float | None) -> ServedStep:
    return ServedStep(
        batch=batch,
        nodes=nodes_from_draft_tokens(K),
        depth=K,
        widths=drafted_widths(K, place=place),
        step_time_s=step_time_s,
        tokens_per_step=length,
        place=place,
    )


def _triple(run: Field, step_time_s: float, length: float) -> ServedStep:
    steps, topk, nodes = (count(run.get(key)) for key in ("steps", "topk", "num_draft_tokens"))
    if steps and (topk == 0 or nodes <= 1):
        raise run.error(f"{steps} steps with topk {topk} and {nodes} tokens draft nothing", hint="check the run")
    return ServedStep(
        batch=run.get("batch_size").integer(low=1),
        nodes=nodes if steps else 1,
        depth=steps,
        widths=drafted_widths(steps, topk, place=run),
        step_time_s=step_time_s,
        tokens_per_step=length,
        place=run,
    )


def _positive(field: Field) -> float:
    value = field.number()
    if value <= 0:
        raise field.error(f"{value:g} is no measurement", hint="a time or rate is above 0: leave the run out")
    return value


_ITERATION: Final = "iterLatencyMS"
_SIZE: Final = re.compile(r"\d{1,9}", re.ASCII)
_BATCH_STATS: Final = "batch_stats"

# In this order: a file is read as the first kind whose key it holds.
BENCHES: Final = (
    BenchReport(what="SGLang bench_speculative JSONL", key="acc_length", rows=_sglang_bench),
    BenchReport(what="SpecForge bench results", key="metrics", rows=_specforge),
    BenchReport(what="vLLM batch x K table", key=_BATCH_STATS, rows=_vllm_table),
    BenchReport(what="`vllm bench serve` JSON", key="max_concurrency", rows=_vllm_bench),
    BenchReport(
        what="TensorRT-LLM iteration statistics", key="inflightBatchingStats", rows=_trtllm_iteration, repeats=True
    ),
)
