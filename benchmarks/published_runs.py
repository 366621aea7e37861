"""Published runs of speculating engines beside plain ones, as what a price of theirs needs.

Every source of FOLDER's `measured` and `drafters` is either read here or named in `published_left_out.py` with the
reason.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from published_models import SPECBUNDLE, step_of

from treeopt.acceptance.dynamic_tree import dynamic_tree_widths
from treeopt.cost import EngineSteps

FILES: Final = tuple(
    f"measured/{n}.csv"
    for n in ("specbundle_sglang", "speedup_by_batch", "vllm_al_tpot_bs1", "vllm_step_ms_by_batch_k")
)
COMPLAINT: Final = "faults/specforge339.csv"
SOURCES: Final = "published speedups (see docs/price-error.md for each source)"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One published run: what was served, its acceptance length, and its speedup over plain decoding.

    `generation` is that of the engine, as `treeopt.cost.served.published.generation` names it; empty where the source
    states neither release nor date.
    """

    source: str
    engine: str
    generation: str
    hardware: str
    model: str
    drafter: str
    tp: int = 1
    batch: int
    depth: int
    topk: int = 1
    nodes: int
    context: int
    length: float
    speedup: float
    question: str = "Llama-3.1-8B"

    @property
    def ratio(self) -> float:
        """Measured: the speculative step in plain steps."""
        return self.length / self.speedup

    @property
    def key(self) -> tuple[str, str, str]:
        """What constants belong to: engine, generation, drafter."""
        return self.engine, self.generation, self.drafter


# Llama-3.1-8B on MT-bench in vLLM: vLLM issue 20780, for the sources that give speedups of the same pair alone.
LENGTHS: Final = {
    ("EAGLE", 2): 2.10,
    ("EAGLE", 3): 2.29,
    ("EAGLE", 4): 2.39,
    ("EAGLE", 7): 2.47,
    ("EAGLE-3", 2): 2.36,
    ("EAGLE-3", 3): 2.79,
}
KINDS: Final = {"EAGLE": "eagle", "EAGLE-1": "eagle", "EAGLE-3": "eagle3", "EAGLE3": "eagle3", "N-Gram": "ngram"}
SURVIVAL: Final = (0.68, 0.39, 0.20, 0.10, 0.06, 0.03, 0.02)  # EAGLE on Llama-3.1-8B, the same fork as its step times


def rows_of(folder: Path, name: str) -> Iterator[dict[str, str]]:
    """The rows of one table."""
    with (folder / "measured" / f"{name}.csv").open() as file:
        yield from csv.DictReader(file)


def runs(folder: Path) -> list[Run]:
    """Every run whose GPU and model can be priced."""
    by_source = (_specbundle, _paper, _issue, _fork, _v1, _speed_bench)
    return [run for source in by_source for run in source(folder)]


def _specbundle(folder: Path) -> Iterator[Run]:
    for row in rows_of(folder, "specbundle_sglang"):
        model, tp = SPECBUNDLE.get(row["target"], ("", 0))
        if model and row["step_cost_ratio"]:
            yield Run(
                source="SpecBundle",
                engine="sglang",
                generation="0.5",
                hardware="h200-sxm-sglang-0.5.14",
                model=model,
                drafter="eagle3",
                tp=tp,
                batch=int(row["batch"]),
                depth=int(row["num_steps"]),
                topk=int(row["topk"]),
                nodes=int(row["num_draft_tokens"]),
                context=600,
                length=float(row["accept_len"]),
                speedup=float(row["speedup"]),
                question=f"{row['target']}, {row['dataset']}, {row['draft_model']}",
            )


def _paper(folder: Path) -> Iterator[Run]:
    for row in rows_of(folder, "speedup_by_batch"):
        if row["source"].startswith("EAGLE-3 paper") and row["metric"] == "throughput_speedup":
            sglang = "Table 3" in row["source"]
            depth = 3 if sglang else 2
            yield Run(
                source=f"EAGLE-3 paper, {'SGLang 0.4.4' if sglang else 'vLLM, RTX 3090'}",
                engine="sglang" if sglang else "vllm",
                generation="0.4" if sglang else "",
                hardware="h100-sxm-sglang-0.5.14" if sglang else "rtx-3090",
                model="llama-3.1-8b",
                drafter=KINDS[row["method"]],
                batch=int(row["batch"]),
                depth=depth,
                nodes=depth + 1,
                context=400,
                length=LENGTHS[row["method"], depth],
                speedup=float(row["value"]),
            )


def _vllm_8b(source: str, drafter: str, batch: int, k: int, length: float, speedup: float) -> Run:
    return Run(
        source=source,
        engine="vllm",
        generation="V1",
        hardware="h100-sxm-vllm-0.24",
        model="llama-3.1-8b",
        drafter=drafter,
        batch=batch,
        depth=k,
        nodes=k + 1,
        context=300,
        length=length,
        speedup=speedup,
    )


def _issue(folder: Path) -> Iterator[Run]:
    for row in rows_of(folder, "vllm_al_tpot_bs1"):
        length, speedup = float(row["accept_len"]), float(row["speedup"])
        yield _vllm_8b("vLLM issue 20780", KINDS[row["method"]], 1, int(row["k"]), length, speedup)


def _fork(folder: Path) -> Iterator[Run]:
    ms = {(int(r["batch"]), int(r["k"])): float(r["step_ms"]) for r in rows_of(folder, "vllm_step_ms_by_batch_k")}
    for (batch, k), step in ms.items():
        if k and batch != 4 and (batch, k) != (64, 7):  # batch 4 repeats batch 1; 512 tokens fell out of the graphs
            length = 1 + sum(SURVIVAL[:k])
            yield _vllm_8b("vLLM PR 32374's fork", "eagle", batch, k, length, length * ms[batch, 0] / step)


def _v1(folder: Path) -> Iterator[Run]:
    rows = [r for r in rows_of(folder, "speedup_by_batch") if r["source"].startswith("vLLM PR #16937")]
    (plain,) = (float(r["value"]) for r in rows if r["method"] == "none")
    for r in rows:
        if r["method"] != "none":
            k = int(r["draft_tokens"])
            length, speedup = LENGTHS[r["method"], k], float(r["value"]) / plain
            yield _vllm_8b("vLLM PR 16937", KINDS[r["method"]], int(r["batch"]), k, length, speedup)


def _speed_bench(folder: Path) -> Iterator[Run]:
    """Its rows at temperature 0, whose lengths are told, of models and drafters that are told."""
    priced = {"Llama-3.3-70B": "llama-3.3-70b", "Qwen3-Next": "qwen3-next-80b"}
    drafters = {"N-Gram": "ngram", "EAGLE3": "eagle3", "Native MTP": "mtp"}
    for row in rows_of(folder, "speedup_by_batch"):
        model, drafter = priced.get(row["target"]), drafters.get(row["method"])
        if row["metric"] == "speedup_T0" and model and drafter:
            yield Run(
                source="SPEED-Bench, engine not stated",
                engine="",
                generation="",
                hardware="b200-trtllm-1.3",
                model=model,
                drafter=drafter,
                batch=int(row["batch"]),
                depth=int(row["draft_tokens"]),
                nodes=int(row["draft_tokens"]) + 1,
                context=1000,
                length=float(row["shape"].partition("AL=")[2]),
                speedup=float(row["value"]),
            )


def complaint(folder: Path) -> Iterator[Run]:
    """SpecForge issue 339, reported because it was slow: not among `runs`."""
    with (folder / COMPLAINT).open() as file:
        rows = list(csv.DictReader(file))
    plain = {row["batch"]: float(row["tok_s"]) for row in rows if row["steps"] == "0"}
    for row in rows:
        if row["steps"] != "0":
            yield Run(
                source="SpecForge issue 339",
                engine="sglang",
                generation="0.5",
                hardware="h100-sxm-sglang-0.5.14",
                model="qwen3-30b-a3b",
                drafter="eagle3",
                tp=2,
                batch=int(row["batch"]),
                depth=int(row["steps"]),
                topk=int(row["topk"]),
                nodes=int(row["num_draft_tokens"]),
                context=600,
                length=float(row["accept_len"]),
                speedup=float(row["tok_s"]) / plain[row["batch"]],
            )


@lru_cache
def kernels_ms(run: Run) -> tuple[float, float]:
    """Plain and speculative step by their kernels, in ms."""
    step = step_of(run.hardware, run.model, run.drafter, run.tp)
    widths = dynamic_tree_widths(run.depth, run.topk, levels=run.depth)
    plain = step.step_time_s(run.batch, 1, 0, np.zeros(1, dtype=np.int64), run.context)
    return 1e3 * float(plain), 1e3 * float(step.step_time_s(run.batch, run.nodes, run.depth, widths, run.context))


@lru_cache
def passes(run: Run) -> int:
    """Passes that the engine's `draft_pass_s` is charged for."""
    step = step_of(run.hardware, run.model, run.drafter, run.tp)
    charged = replace(step, engine=EngineSteps(draft_pass_s=1.0))
    widths = dynamic_tree_widths(run.depth, run.topk, levels=run.depth)
    at = (run.batch, run.nodes, run.depth, widths, run.context)
    return round(float(charged.step_time_s(*at)) - float(step.step_time_s(*at)))
