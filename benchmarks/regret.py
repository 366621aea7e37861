"""What a wrong step time costs when it chooses the tree, by hand: `python benchmarks/regret.py [FOLDER]`.

Truth is the sum of measured kernels in FOLDER (`measured_data.py` says which): H100 BF16 GEMMs of three engines, and
the all-reduce under tensor parallelism. Every chooser picks N in 1..64 for B in 1..256; its regret is the tokens/s that
it loses against the best N. Attention, drafter and engine are left out: they would dampen what is judged here.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from measured_data import GEMM, data_folder
from scipy.optimize import least_squares

from treeopt.arrays import FloatArray
from treeopt.cost import load_hardware
from treeopt.cost.fit.choose import fit_family
from treeopt.cost.fit.kinds import rows_of
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.tables import Selection, read_table
from treeopt.cost.formats import Dtype
from treeopt.cost.hardware import Hardware
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.fit import KernelFit
from treeopt.cost.kernels.fits import FitEntry, KernelFits
from treeopt.cost.kernels.gemm import Gemm, gemm_work
from treeopt.cost.kernels.roofline import Roofline, Work
from treeopt.cost.kernels.times import KernelTimes
from treeopt.files.shipped import locate

GEMMS: Final = "gemm/aic_gemm_bf16.csv"
ALL_REDUCES: Final = "gemm/aic_allreduce.csv"
ENGINES: Final = {
    "vllm-0.24.0": "h100-sxm-vllm-0.24",
    "sglang-0.5.14": "h100-sxm-sglang-0.5.14",
    "trtllm-1.3.0rc20": "h100-sxm-trtllm-1.3",
}
BATCHES: Final = range(1, 257)
NODES: Final = np.arange(1, 65)
CALIBRATION: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
# Probability that the r-th guess is right, whatever came before: three synthetic drafters.
ACCEPTANCE: Final = {
    "good": (0.80, 0.08, 0.03, 0.02),
    "ok": (0.65, 0.12, 0.05, 0.03),
    "poor": (0.45, 0.15, 0.07, 0.04),
}
MAX_DEPTH: Final = 8


class Part(NamedTuple):
    """A GEMM and how often a step runs it."""

    weight: Gemm
    times: int


class Model(NamedTuple):
    """The measured GEMMs that stand for a model's, and its messages."""

    name: str
    parts: tuple[Part, ...]
    tp: int = 1
    hidden: int = 0
    messages: int = 0


# Gate and up are taken as the two halves that were measured. No table has the 28672 x 4096 and 4096 x 14336 of
# Llama-3.1-8B: Qwen3-8B, of the same layers otherwise, stands for it.
MODELS: Final = (
    Model(
        "8B, TP1 (Qwen3-8B)",
        (
            *(Part(Gemm(n, 4096), 36 * c) for n, c in ((6144, 1), (4096, 1), (12288, 2))),
            Part(Gemm(4096, 12288), 36),
            Part(Gemm(65536, 4096), 2),
        ),
    ),
    Model(
        "Llama-3.3-70B, TP4",
        (
            *(Part(Gemm(n, k), 80 * c) for n, k, c in ((2560, 8192, 1), (8192, 2048, 1), (7168, 8192, 2))),
            Part(Gemm(8192, 7168), 80),
            Part(Gemm(65536, 8192), 1),
        ),
        tp=4,
        hidden=8192,
        messages=160,
    ),
)

Price = Callable[[FloatArray], FloatArray]


def expected_tokens(ranks: tuple[float, ...]) -> FloatArray:
    """`[64]` E of the best tree of 1..64 nodes, best-first over products of rank probabilities."""
    heap = [(-p, 1) for p in ranks]
    heapq.heapify(heap)
    gains = [1.0]
    while len(gains) < len(NODES):
        f, depth = heapq.heappop(heap)
        gains.append(-f)
        if depth < MAX_DEPTH:
            for p in ranks:
                heapq.heappush(heap, (f * p, depth + 1))
    return np.cumsum(gains)


def engine_rows(file: Path, engine: str) -> Rows:
    """The H100 rows of one engine."""
    table = read_table(file).select([Selection("gpu", "h100_sxm"), Selection("engine", engine)])
    return rows_of(table)[0]


def curve(rows: Rows, sizes: tuple[float, ...], sweep: str, at: tuple[int, ...] = ()) -> Price:
    """Time on a straight log-log line through a shape's rows; `at` keeps only those sweep points."""
    own = (rows.sizes[:, 1:] == sizes).all(axis=1)
    x, y = rows.column(sweep)[own], rows.time_s[own]
    if at:
        x, y = x[np.isin(x, at)], y[np.isin(x, at)]
    order = np.argsort(x)
    return lambda value: np.exp(np.interp(np.log(value), np.log(x[order]), np.log(y[order])))


def summed(model: Model, gemm: Callable[[Gemm], Price], message: Price) -> Price:
    """The step time of a model from the prices of its kernels."""
    priced = [(part.times, gemm(part.weight)) for part in model.parts]

    def price(tokens: FloatArray) -> FloatArray:
        total = sum((times * one(tokens) for times, one in priced), np.zeros(tokens.shape))
        return total + model.messages * message(2.0 * model.hidden * tokens) if model.messages else total

    return price


def levelled(price: Price) -> Price:
    """What a size takes is the least of it and all larger ones: the best that a price can be that never falls."""
    grid = np.unique(np.round(np.geomspace(1, 16384, 4000)))
    least = np.minimum.accumulate(price(grid)[::-1])[::-1]
    return lambda tokens: np.exp(np.interp(np.log(tokens), np.log(grid), np.log(least)))


def profile_rows(fit: KernelFit) -> Rows:
    """The rows that a shipped profile keeps, back from its curves."""
    curves = fit.residuals
    shape, point = np.nonzero(~np.isnan(curves.values))
    outputs, inputs = np.round(np.exp(curves.points[shape])).T
    tokens = np.round(np.exp(curves.sweep[point]))
    time_s = fit.roofline.time_s(gemm_work(tokens, outputs, inputs, 2.0)) * np.exp(curves.values[shape, point])
    none = np.zeros(len(tokens), dtype=np.int64)
    sizes = np.stack([tokens, outputs, inputs], axis=1)
    return Rows(
        family=Family.GEMM,
        dtype=Dtype.BF16,
        sizes=sizes,
        time_s=time_s,
        origin=none,
        lines=none + 1,
        files=("profile",),
    )


def measured(hardware: Hardware, gemm: KernelFit) -> KernelTimes:
    """A profile's times with another GEMM fit."""
    others = [entry for entry in hardware.fits.entries if entry.family is not Family.GEMM]  # type: ignore[union-attr]
    fits = KernelFits(entries=(FitEntry(Family.GEMM, Dtype.BF16, gemm), *others))
    return KernelTimes(name=hardware.name, fits=fits, link_bandwidth_bytes_per_s=1e11)


def without(rows: Rows, weights: list[Gemm]) -> Rows:
    """The rows of all other shapes."""
    own = np.zeros(len(rows), dtype=np.bool_)
    for weight in weights:
        own |= (rows.sizes[:, 1:] == (weight.outputs, weight.inputs)).all(axis=1)
    return rows.where(~own)


def roofline_without_launch(rows: Rows) -> Roofline:
    """`max(bytes / bandwidth, flops / peak)` with both rates fitted to cold weights."""
    tokens, outputs, inputs = rows.sizes.T
    used = (outputs * inputs >= 8_000_000) & (tokens <= 1024)
    work = Work(*(part[used] for part in gemm_work(tokens, outputs, inputs, 2.0)))

    def form(logs: FloatArray) -> Roofline:
        return Roofline(bandwidth_bytes_per_s=float(np.exp(logs[0])), peak_flops=float(np.exp(logs[1])))

    start = np.log([2.5e12, 7.5e14])
    found = least_squares(
        lambda z: np.log(form(z).time_s(work) / rows.time_s[used]), start, loss="soft_l1", f_scale=0.1
    )
    return form(found.x)


def choosers(model: Model, rows: Rows, messages: Rows, hardware: Hardware) -> Iterator[tuple[str, Price]]:
    """Every way to price a step that is judged."""
    truth_message = curve(messages, (float(model.tp),), "message_bytes")
    hard = roofline_without_launch(rows)

    def by_form(form: Roofline) -> Callable[[Gemm], Price]:
        return lambda w: lambda t: form.time_s(gemm_work(t, np.array(1.0 * w.outputs), np.array(1.0 * w.inputs), 2.0))

    def by_times(times: KernelTimes) -> Price:
        return summed(
            model,
            lambda w: lambda t: times.gemm_s(t, w, Dtype.BF16),
            lambda sent: times.all_reduce_s(sent, model.tp),
        )

    weights = [part.weight for part in model.parts]
    kept = profile_rows(hardware.fits.get(Family.GEMM, Dtype.BF16).fit)  # type: ignore[union-attr]
    refit = fit_family(without(kept, weights), processors=132).fit
    small = fit_family(without(rows, weights), processors=132).fit
    sheet = Roofline(bandwidth_bytes_per_s=3.35e12, peak_flops=989e12)
    yield "no knee (flat)", summed(model, lambda w: curve(rows, w[:2], "tokens", (1, 1)), truth_message)
    yield "datasheet roofline", summed(model, by_form(sheet), truth_message)
    yield "hard roofline, fitted", summed(model, by_form(hard), truth_message)
    yield "hard roofline, no all-reduce", summed(model._replace(messages=0), by_form(hard), truth_message)
    yield "form only, shapes left out", summed(model, by_form(refit.roofline), truth_message)
    yield "profile of the 28 shapes, judged ones left out", by_times(measured(hardware, small))
    yield "shipped profile, judged shapes left out", by_times(measured(hardware, refit))
    yield "shipped profile, their own rows", by_times(hardware.kernel_times())  # type: ignore[arg-type]
    yield "truth, each kernel levelled", summed(model, lambda w: levelled(curve(rows, w[:2], "tokens")), truth_message)
    yield "truth, the step levelled", levelled(summed(model, lambda w: curve(rows, w[:2], "tokens"), truth_message))
    yield "9 points of each shape", summed(model, lambda w: curve(rows, w[:2], "tokens", CALIBRATION), truth_message)


def regrets(truth: Price, price: Price, only_measured: FloatArray | None) -> FloatArray:
    """`[768]` lost shares of tokens/s over batch sizes and drafters; `only_measured` limits B x N to those tokens."""
    lost = []
    for ranks in ACCEPTANCE.values():
        expected = expected_tokens(ranks)
        for batch in BATCHES:
            tokens = batch * NODES.astype(np.float64)
            able = tokens <= 4096 if only_measured is None else np.isin(tokens, only_measured)
            if not able.any():
                continue
            gained = np.where(able, expected / truth(tokens), -np.inf)
            choice = int(np.argmax(np.where(able, expected / price(tokens), -np.inf)))
            lost.append(1.0 - gained[choice] / gained.max())
    return np.array(lost)


def main() -> None:
    """Print the table in Markdown."""
    folder = data_folder(GEMM, GEMMS, ALL_REDUCES)
    print("| model | step time from | mean % | p90 | max | B x N at measured tokens only: mean % | max |")
    print("|---|---|---|---|---|---|---|")
    for model in MODELS:
        found: dict[str, list[tuple[FloatArray, FloatArray]]] = {}
        for engine, profile in ENGINES.items():
            rows, messages = engine_rows(folder / GEMMS, engine), engine_rows(folder / ALL_REDUCES, engine)
            hardware = load_hardware(locate("hardware", profile).path)
            message = curve(messages, (float(model.tp),), "message_bytes")
            truth = summed(model, lambda w, rows=rows: curve(rows, w[:2], "tokens"), message)  # type: ignore[misc]
            measured_tokens = np.unique(rows.column("tokens"))
            for name, price in choosers(model, rows, messages, hardware):
                both = (regrets(truth, price, None), regrets(truth, price, measured_tokens))
                found.setdefault(name, []).append(both)
        for name, pairs in found.items():
            every, exact = (100 * np.concatenate(part) for part in zip(*pairs, strict=True))
            numbers = [f"{every.mean():.2f}", f"{np.quantile(every, 0.9):.1f}", f"{every.max():.1f}"]
            numbers += [f"{exact.mean():.2f}", f"{exact.max():.1f}"]
            print(f"| {model.name} | {name} | {' | '.join(numbers)} |")


if __name__ == "__main__":
    sys.exit(main())
