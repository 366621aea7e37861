"""Published sweeps, and what the tool says of them; every number is from the shared data, where its source stands.

`benchmarks/published_sweeps.py` prints them, `tests/cost/steps/test_published.py` asserts those that are promises.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import shared
from smooth_h100 import CONTEXT, fitted_without, vllm_rows
from traffics import traffic_of

from treeopt.acceptance.position import PositionSurvival
from treeopt.arrays import FloatArray
from treeopt.cost.kernels.experts import Experts
from treeopt.cost.served.bench_rows import read_bench_steps
from treeopt.cost.served.reading import read_steps
from treeopt.cost.served.step import payoffs
from treeopt.cost.step_cost import StepCost
from treeopt.cost.step_table import ChainTable, TableStep, TokenTable
from treeopt.solve.bucket import Bucket
from treeopt.solve.price import price
from treeopt.solve.problem import Point, Problem
from treeopt.solve.search import search
from treeopt.tree import DraftTree

TIE: Final = 0.02  # see `Sweep.scatter`: two cells of the AutoSpec table differ by chance by about this much
DRAFTER: Final = "lmsys/Qwen3-235B-A22B-EAGLE3"


def rows_of(name: str) -> list[dict[str, str]]:
    with (shared.DATA / "measured" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def input_file(name: str) -> Path:
    return shared.DATA / "inputs" / name


def report_numbers() -> dict[str, object]:
    found: dict[str, object] = json.loads(input_file("report_numbers.json").read_text())
    return found


# --- AutoSpec: Qwen3-235B-A22B + EAGLE3 in SGLang, tokens/s by batch size and K = 1..6 -----------------------------


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """`tok_s[i, K - 1]` at `batches[i]`."""

    batches: tuple[int, ...]
    tok_s: FloatArray

    @property
    def best(self) -> list[int]:
        return [int(K) for K in 1 + self.tok_s.argmax(axis=1)]

    def loss(self, row: int, K: int) -> float:
        """Share of the measured tokens/s that K loses against the measured best."""
        return float(1.0 - self.tok_s[row, K - 1] / self.tok_s[row].max())

    def ties(self, row: int) -> list[int]:
        return [K for K in range(1, self.tok_s.shape[1] + 1) if self.loss(row, K) <= TIE]

    @property
    def scatter(self) -> tuple[float, float]:
        """How much single cells scatter around smooth curves in K: third differences, median and root mean square."""
        third = np.diff(np.log(self.tok_s), 3, axis=1) / np.sqrt(20.0)
        return float(np.median(np.abs(third)) / 0.6745), float(np.sqrt((third**2).mean()))


def autospec() -> Sweep:
    cells = {
        (int(r["batch"]), int(r["config"].split("_")[0])): float(r["tok_s"])
        for r in rows_of("sglang_autospec_tok_s.csv")
        if r["config"] != "AutoSpec"
    }
    batches = tuple(sorted({batch for batch, _ in cells}))
    ks = sorted({K for _, K in cells})
    return Sweep(batches=batches, tok_s=np.array([[cells[batch, K] for K in ks] for batch in batches]))


def survival_from_lengths(lengths: dict[int, float]) -> PositionSurvival:
    """Acceptance by position from mean accepted lengths at a few K, taken as constant between two of them.

    Between K and the next K' the first K + j drafts are all accepted with s a^j, where a makes the lengths come out.
    """
    survival: list[float] = []
    before, gained = 1.0, 1.0
    for K, length in sorted(lengths.items()):
        count = K - len(survival)
        a = _root(before, count, length - gained)
        survival += [before * a ** (j + 1) for j in range(count)]
        before, gained = survival[-1], length
    return PositionSurvival(survival=np.array(survival))


def _root(before: float, count: int, gain: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        a = (low + high) / 2
        low, high = (a, high) if before * sum(a ** (j + 1) for j in range(count)) < gain else (low, a)
    return low


def qwen_acceptances() -> dict[tuple[str, str], PositionSurvival]:
    """By drafter and data set: SpecBundle's accepted lengths of Qwen3-235B chains of 3, 5 and 7 (H200, SGLang)."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for r in rows_of("specbundle_sglang.csv"):
        if r["target"].startswith("Qwen3-235B") and r["topk"] == "1":
            found.setdefault((r["draft_model"], r["dataset"]), {})[int(r["num_steps"])] = float(r["accept_len"])
    return {key: survival_from_lengths(lengths) for key, lengths in found.items()}


def autospec_table(
    sweep: Sweep, survival: PositionSurvival, *, ks: Iterable[int], batches: Iterable[int]
) -> ChainTable:
    """Step times B E(K) / tokens/s of the given cells only; what lies between is the table's own interpolation."""
    wanted = {(batch, K) for batch in batches for K in ks}
    length = 1.0 + np.cumsum(survival.survival)
    return ChainTable.from_cells(
        {
            (batch, K): batch * float(length[K - 1]) / float(sweep.tok_s[sweep.batches.index(batch), K - 1])
            for batch, K in wanted
        }
    )


def chosen_k(cost: StepCost, survival: PositionSurvival, batch: int, ks: Sequence[int], context: int = 0) -> int:
    """The K of most tokens/s as the tool prices chains."""
    traffic = traffic_of(survival.model())
    priced = [price(DraftTree.chain(K), traffic, cost, Point(batch, context)) for K in ks]
    return ks[int(np.argmax([p.tokens_per_s.value for p in priced]))]


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Per batch size of a sweep: the K that was chosen, and the share of measured tokens/s that it loses."""

    what: str
    ks: tuple[int, ...]
    losses: tuple[float, ...]

    @property
    def ties(self) -> int:
        return sum(loss <= TIE for loss in self.losses)


def autospec_predictions(sweep: Sweep, survival: PositionSurvival) -> list[Predicted]:
    """From all cells (a check of the bookkeeping), from K = 1 and 6 only, and for batch sizes that are left out."""
    every, some = range(1, 7), (1, 4, 16, 64)
    return [
        _autospec("all 42 cells", sweep, survival, ks=every, batches=sweep.batches),
        _autospec("K = 1, 6 of each batch size; K = 2..5 held out", sweep, survival, ks=(1, 6), batches=sweep.batches),
        _autospec("K = 1, 3, 6 of each; K = 2, 4, 5 held out", sweep, survival, ks=(1, 3, 6), batches=sweep.batches),
        _autospec("batch 1, 4, 16, 64 only; 2, 8, 32 held out", sweep, survival, ks=every, batches=some),
        _autospec("K = 1, 6 of batch 1, 4, 16, 64: 8 cells of 42", sweep, survival, ks=(1, 6), batches=some),
    ]


def _autospec(
    what: str, sweep: Sweep, survival: PositionSurvival, *, ks: Iterable[int], batches: Iterable[int]
) -> Predicted:
    cost = TableStep(table=autospec_table(sweep, survival, ks=ks, batches=batches), name="AutoSpec")
    chosen = tuple(chosen_k(cost, survival, batch, range(1, 7)) for batch in sweep.batches)
    losses = tuple(sweep.loss(row, K) for row, K in enumerate(chosen))
    return Predicted(what=what, ks=chosen, losses=losses)


# --- vLLM: Llama-3.1-8B + EAGLE, K by batch size from its step table and its acceptance ------------------------------


def vllm_acceptance(method: str) -> PositionSurvival:
    rates = [
        float(r["rate"])
        for r in rows_of("acceptance_by_position.csv")
        if r["method"] == method and r["kind"] == "cumulative" and r["target"] == "Llama-3.1-8B-Instruct"
    ]
    return PositionSurvival(survival=np.array(rates))


@dataclass(frozen=True, kw_only=True)
class BestK:
    """K by batch size: measured best, the search on the measured table, and the model fitted without the batch size."""

    batch: int
    measured: int
    searched: int
    predicted: int
    loss: float


def vllm_best_k(method: str, kernels: StepCost) -> list[BestK]:
    """Tokens/s = B E(K) / step over K = 0, 1, 3, 4, 5, 7; E from acceptance by position."""
    survival = vllm_acceptance(method)
    length = np.concatenate([[1.0], 1.0 + np.cumsum(survival.survival)])
    rows = [row for row in vllm_rows() if row.tokens < 512]  # past it graph capture ends
    cells = {(row.batch, row.depth): row.step_time_s for row in rows}
    table = TableStep(table=ChainTable.from_cells(cells), name="vLLM")
    found = []
    for batch in sorted({batch for batch, _ in cells}):
        ks = sorted(K for b, K in cells if b == batch)
        measured = {K: batch * length[K] / cells[batch, K] for K in ks}
        best = max(measured, key=lambda K: measured[K])
        predicted = chosen_k(fitted_without(batch, kernels), survival, batch, ks, context=CONTEXT)
        loss = 1.0 - measured[predicted] / measured[best]
        chosen = searched(table, survival, batch).depth
        found.append(BestK(batch=batch, measured=best, searched=chosen, predicted=predicted, loss=float(loss)))
    return found


def searched(cost: StepCost, survival: PositionSurvival, batch: int) -> Bucket:
    """The search's answer from a table and acceptance by position."""
    return search(Problem(batches=(batch,), context=0), traffic_of(survival.model()), cost)[0]


@dataclass(frozen=True, kw_only=True)
class OneBatch:
    """vllm#20780: K of least time per token, measured; and chosen from two step times and another report's rates."""

    method: str
    measured: int
    chosen: int
    loss: float


def vllm_20780(method: str) -> OneBatch:
    rows = [r for r in rows_of("vllm_al_tpot_bs1.csv") if r["method"] == method]
    tpot = {int(r["k"]): float(r["tpot_ms"]) for r in rows}
    steps = {int(r["k"]): float(r["tpot_ms"]) * float(r["accept_len"]) * 1e-3 for r in rows}
    ends = {(1, K): steps[K] for K in (min(steps), max(steps))}
    cost = TableStep(table=ChainTable.from_cells(ends), name="vllm#20780")
    chosen = chosen_k(cost, vllm_acceptance(method), 1, sorted(tpot))
    best = min(tpot, key=lambda K: tpot[K])
    return OneBatch(method=method, measured=best, chosen=chosen, loss=1.0 - tpot[best] / tpot[chosen])


# --- Do not speculate -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A published run with its accepted length: the break-even that follows from its times, and its speedup."""

    what: str
    break_even_tokens: float
    tokens_per_step: float
    speedup: float

    @property
    def pays(self) -> bool:
        return self.tokens_per_step > self.break_even_tokens


def specforge_verdicts() -> list[Verdict]:
    """SpecForge#339 (Qwen3-30B-A3B, 2 x H100): through the reader of its results file."""
    path = input_file("specforge_bench_eagle3_results.json")
    found = payoffs(read_bench_steps(path, path.read_text()))
    return [
        Verdict(
            what=f"SpecForge#339 {p.step.named()}",
            break_even_tokens=p.break_even_length,
            tokens_per_step=p.step.tokens_per_step or 0.0,
            speedup=p.speedup or 0.0,
        )
        for p in found
    ]


def speed_bench_verdicts() -> list[Verdict]:
    """SPEED-Bench, B200, batch 32, K = 3, T = 0 (a secondary source): break-even is length over speedup."""
    found = []
    for r in rows_of("speedup_by_batch.csv"):
        if r["metric"] == "speedup_T0":
            length, speedup = float(r["shape"].partition("AL=")[2]), float(r["value"])
            what = f"SPEED-Bench {r['target']} {r['method']}"
            verdict = Verdict(what=what, break_even_tokens=length / speedup, tokens_per_step=length, speedup=speedup)
            found.append(verdict)
    return found


def specforge_search() -> dict[int, bool]:
    """By batch size: whether the search speculates, from the chain that ran, its mean length and two step times."""
    rows = [row for row in read_steps([input_file("specforge_bench_eagle3_results.json")]).rows if row.is_chain]
    cells = {(row.batch, row.depth): row.step_time_s for row in rows}
    cost = TableStep(table=ChainTable.from_cells(cells), name="SpecForge#339")
    lengths = {row.batch: row.tokens_per_step or 1.0 for row in rows if row.nodes > 1}
    return {b: searched(cost, survival_from_lengths({3: length}), b).speculate for b, length in lengths.items()}


@dataclass(frozen=True, kw_only=True)
class TreeOrChain:
    """vllm#22752 (MT-Bench, tree attention backend): a tree beside a chain at one batch size."""

    batch: int
    step_ratio: float
    length_ratio: float


def tree_or_chain() -> list[TreeOrChain]:
    """Step of the tree over step of the chain, and what it must stay below: the ratio of their accepted lengths."""
    runs = report_numbers()["vllm#22752 mt-bench chain vs tree (tree-attn backend)"]
    assert isinstance(runs, dict)
    found = []
    for batch, run in runs.items():
        (chain_rate, chain_length), (tree_rate, tree_length) = run["chain"], run["tree"]
        ratio = tree_length / chain_length
        step_ratio = ratio * chain_rate / tree_rate
        found.append(TreeOrChain(batch=int(batch.removeprefix("BS")), step_ratio=step_ratio, length_ratio=ratio))
    return found


# --- MoE: the second token --------------------------------------------------------------------------------------------

# THUDM GLM-4.5-Air, config.json: 46 layers, the first dense; 128 routed experts of 1408, 8 per token, one shared.
GLM_AIR_EXPERTS: Final = Experts(count=128, per_token=8, intermediate=1408, shared_intermediate=1408, dense_layers=1)
_GLM_HIDDEN, _GLM_LAYERS, _GLM_DENSE, _GLM_VOCAB = 4096, 46, 10944, 151552
_GLM_HEADS, _GLM_KV_HEADS, _GLM_HEAD_DIM = 96, 8, 128


def moe_table() -> TokenTable:
    """ik_llama.cpp#1630: GLM-4.5-Air (IQ1_KT), milliseconds of a step by its tokens."""
    found = report_numbers()["ik_llama#1630 GLM4.5-Air IQ1_KT step ms vs tokens (MoE)"]
    assert isinstance(found, dict)
    cells = sorted((int(tokens), float(ms) * 1e-3) for tokens, ms in found.items())
    return TokenTable(tokens=tuple(t for t, _ in cells), step_s=tuple(s for _, s in cells))


def moe_jump() -> tuple[float, float]:
    """Second token over first: measured, and as weights streamed by a coverage model (equal bytes per weight)."""
    cost = TableStep(table=moe_table(), name="ik_llama#1630")
    one, two = (float(cost.step_time_s(batch, 1, 0, np.zeros(1, dtype=np.int64), 0)) for batch in (1, 2))
    return two / one, glm_weights(2) / glm_weights(1)


def glm_weights(tokens: int) -> float:
    """Weights that a step of so many tokens streams: all that every token visits, and the visited experts."""
    attention = _GLM_HIDDEN * _GLM_HEAD_DIM * (2 * _GLM_HEADS + 2 * _GLM_KV_HEADS)
    experts = GLM_AIR_EXPERTS
    visited = experts.count * (1.0 - (1.0 - experts.per_token / experts.count) ** tokens)
    sparse = experts.weights(_GLM_HIDDEN, 0) + visited * experts.routed(_GLM_HIDDEN).weights
    dense = 3 * _GLM_HIDDEN * _GLM_DENSE
    return _GLM_LAYERS * attention + (_GLM_LAYERS - 1) * sparse + dense + _GLM_HIDDEN * _GLM_VOCAB


# --- SpecBundle: the price of longer chains ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepRatio:
    """One target: mean step cost ratio at N = 4, 6, 8, and the error of predicting 6 and 8 for a left-out data set."""

    target: str
    batch: int
    sets: int
    ratios: tuple[float, float, float]
    slope: float
    mean_error: float
    max_error: float


def specbundle() -> list[StepRatio]:
    """c(6) and c(8) of a data set from its own c(4) and the slope per draft of the target's other data sets."""
    groups: dict[tuple[str, int], dict[tuple[str, str], dict[int, float]]] = {}
    for r in rows_of("specbundle_sglang.csv"):
        if r["topk"] == "1":
            group = groups.setdefault((r["target"], int(r["batch"])), {})
            ratio = float(r["step_cost_ratio"])
            group.setdefault((r["draft_model"], r["dataset"]), {})[int(r["num_draft_tokens"])] = ratio
    found = []
    for (target, batch), group in groups.items():
        chains = {key: c for key, c in group.items() if {4, 6, 8} <= c.keys()}
        if len({dataset for _, dataset in chains}) > 1:
            found.append(_step_ratio(target, batch, chains))
    return found


def _step_ratio(target: str, batch: int, chains: dict[tuple[str, str], dict[int, float]]) -> StepRatio:
    errors = []
    for (_, dataset), c in chains.items():
        slope = np.mean([(o[8] - o[4]) / 4 for (_, other), o in chains.items() if other != dataset])
        errors += [(c[4] + (N - 4) * slope) / c[N] - 1.0 for N in (6, 8)]
    means = [float(np.mean([c[N] for c in chains.values()])) for N in (4, 6, 8)]
    return StepRatio(
        target=target,
        batch=batch,
        sets=len(chains),
        ratios=(means[0], means[1], means[2]),
        slope=(means[2] - means[0]) / 4,
        mean_error=float(np.mean(np.abs(errors))),
        max_error=float(np.max(np.abs(errors))),
    )
