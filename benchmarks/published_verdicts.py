"""Whether the answer is right on published sweeps, by hand: `python benchmarks/published_verdicts.py FOLDER`.

Writes docs/verdicts.md. A row is one question whose answers were all measured: draft K tokens, a tree, or nothing? Its
loss is what the answer loses against the best measured one; up to 3 % counts as right. Sweeps over batch sizes are
answered from constants or tables of every second batch size; runs at one batch size from kernels and the constants of
other sources, with each row's own acceptance. FOLDER is that of `measured_data.py`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np
import published_speedups as priced
from measured_data import data_folder
from published_runs import FILES, SOURCES, Run, rows_of, runs

from treeopt.arrays import FloatArray
from treeopt.cost.fit.engine_profile import Served, fit_served
from treeopt.cost.step_cost import StepCost
from treeopt.cost.tables.loading import load_cost_table

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "docs" / "verdicts.md"
RIGHT: Final = 0.03
BLOG: Final = "drafters/throughput.csv"
ACCEPTED: Final = "measured/acceptance_by_position.csv"
NONE: Final = "none"


class Judged(NamedTuple):
    """One question: what was answered, the best measured answer, and the share of tokens/s lost to it."""

    source: str
    question: str
    answer: str
    best: str
    loss: float


def judged(source: str, question: str, priced: Mapping[str, float], measured: Mapping[str, float]) -> Judged:
    """The answer of most priced tokens/s, by the measured ones."""
    answer, best = (max(rates, key=rates.__getitem__) for rates in (priced, measured))
    return Judged(source, question, answer, best, 1.0 - measured[answer] / measured[best])


def halves(batches: Iterable[int]) -> Iterator[tuple[list[int], list[int]]]:
    """What is fitted and what is judged: every second batch size, then the others."""
    ordered = sorted(batches)
    yield ordered[::2], ordered[1::2]
    yield ordered[1::2], ordered[::2]


def of_steps(folder: Path) -> Iterator[Judged]:
    """The fork's step times by batch and K, priced by kernels with constants of every second batch size."""
    rows = [row for row in rows_of(folder, "vllm_step_ms_by_batch_k") if row["batch"] != "4"]  # repeats batch 1
    ms = {(int(row["batch"]), int(row["k"])): float(row["step_ms"]) for row in rows}
    served = Served.named("h100-sxm-vllm-0.24", "llama-3.1-8b", "eagle", context=300)
    for kept, left in halves({batch for batch, _ in ms}):
        step = served_step(served, {at: time for at, time in ms.items() if at[0] in kept})
        for method in ("EAGLE-1", "EAGLE-3"):
            length = lengths_of(folder, method)
            for batch in left:
                ks = [k for b, k in ms if b == batch]
                priced = {name(k): length[k] / seconds(step, batch, k, 300) for k in ks}
                measured = {name(k): length[k] / ms[batch, k] for k in ks}
                yield judged("vLLM PR 32374's fork", f"{method}, batch {batch}", priced, measured)


def served_step(served: Served, ms: Mapping[tuple[int, int], float]) -> StepCost:
    """What `profile fit --steps` makes of milliseconds by (batch, K)."""
    with TemporaryDirectory() as work:
        file = Path(work) / "steps.csv"
        file.write_text("\n".join(["batch,k,step_ms", *(f"{b},{k},{t}" for (b, k), t in ms.items())]) + "\n")
        return replace(served, hardware=fit_served([file], served, name="fitted").hardware).step


def lengths_of(folder: Path, method: str) -> FloatArray:
    """`[K + 1]` E of chains of the fork's Llama-3.1-8B, from its rates by position."""
    with (folder / ACCEPTED).open() as file:
        rates = [
            float(row["rate"])
            for row in csv.DictReader(file)
            if (row["method"], row["kind"], row["target"]) == (method, "cumulative", "Llama-3.1-8B-Instruct")
        ]
    return np.concatenate([[1.0], 1.0 + np.cumsum(rates)])


def name(k: int) -> str:
    """An answer in words."""
    return f"K = {k}" if k else NONE


def of_paper(found: Sequence[Run]) -> Iterator[Judged]:
    """The EAGLE-3 paper's sweeps: its one chain or nothing, with constants of every second batch size.

    The paper has speedups only: plain steps are taken as priced, the others by their ratio to them.
    """
    sweeps = sorted({(run.source, run.drafter) for run in found if run.source.startswith("EAGLE-3 paper")})
    for source, drafter in sweeps:
        own = [run for run in found if (run.source, run.drafter) == (source, drafter)]
        K, context = own[0].depth, own[0].context
        served = Served.named(own[0].hardware, own[0].model, drafter, context=context)
        plain = {run.batch: 1e3 * seconds(served.step, run.batch, 0, context) for run in own}
        for kept, left in halves(plain):
            ms = {(b, 0): plain[b] for b in kept} | {
                (r.batch, K): r.ratio * plain[r.batch] for r in own if r.batch in kept
            }
            step = served_step(served, ms)
            for run in (run for run in own if run.batch in left):
                gain = run.length * seconds(step, run.batch, 0, context) / seconds(step, run.batch, K, context)
                measured = {NONE: 1.0, name(K): run.speedup}
                yield judged(source, f"{drafter}, batch {run.batch}", {NONE: 1.0, name(K): gain}, measured)


def shape(run: Run) -> str:
    """A run's draft in words."""
    return name(run.depth) if run.topk == 1 else f"tree {run.depth},{run.topk},{run.nodes}"


def of_blog(folder: Path) -> Iterator[Judged]:
    """vLLM's blog on DSpark: tokens/s by batch and K, as `--cost` reads them, of every second batch size.

    The smallest and the largest stay: nothing is said beyond a table.
    """
    with (folder / BLOG).open() as file:
        rows = [r for r in csv.DictReader(file) if r["source"] == "vllm_blog_dspark_adaptive" and r["k"]]
    rate = {(int(r["concurrency"]), int(r["k"])): float(r["value"]) for r in rows if r["policy"] in ("none", "fixed")}
    batches = sorted({batch for batch, _ in rate})
    for left in (batches[1:-1:2], batches[2:-1:2]):
        with TemporaryDirectory() as work:
            file = Path(work) / "rates.csv"
            lines = [f"{b},{k},{t}" for (b, k), t in sorted(rate.items()) if b not in left]
            file.write_text("\n".join(["batch,k,tok_s", *lines]) + "\n")
            step = load_cost_table(file).step()
        for batch in left:
            ks = [k for b, k in rate if b == batch]
            priced = {name(k): batch * (k + 1) / seconds(step, batch, k, 0) for k in ks}
            yield judged("vLLM blog, DSpark", f"batch {batch}", priced, {name(k): rate[batch, k] for k in ks})


def seconds(step: StepCost, batch: int, k: int, context: int) -> float:
    """A step of a chain."""
    widths = np.ones(max(k, 1), dtype=np.int64) * (k > 0)
    return float(step.step_time_s(batch, k + 1, k, widths, context))


def of_kernels(rows: Sequence[priced.Judged], source: str) -> Iterator[Judged]:
    """Runs at one batch size: the best of all measured drafts, then each run or nothing, priced as if unseen."""
    for row in (row for row in rows if row.source == source):
        gains = {run: run.length / steps for run, steps in zip(row.runs, row.priced, strict=True)}
        for question in dict.fromkeys(run.question for run in row.runs):
            asked = [run for run in row.runs if run.question == question]
            promised = {NONE: 1.0} | {shape(run): float(gains[run]) for run in asked}
            measured = {NONE: 1.0} | {shape(run): run.speedup for run in asked}
            where = f"{question}, batch {asked[0].batch}"
            yield judged(source, where, promised, measured)
            for own_shape in list(promised)[1:]:
                alone = ({NONE: 1.0, own_shape: rates[own_shape]} for rates in (promised, measured))
                yield judged(f"{source}, each run or nothing", where, *alone)


def table(found: Sequence[Judged]) -> Iterator[str]:
    """One line per source, then all; what is judged twice counts once in all."""
    for source in (*dict.fromkeys(row.source for row in found), "all"):
        own = [row for row in found if source == row.source or (source == "all" and ", each" not in row.source)]
        same = sum(row.answer == row.best for row in own)
        right = sum(row.loss <= RIGHT for row in own)
        losses = np.array([row.loss for row in own])
        share, mean, most = right / len(own), losses.mean(), losses.max()
        yield f"| {source} | {len(own)} | {same} | {right} ({share:.0%}) | {mean:.1%} | {most:.1%} |"


def main() -> None:
    """Write the document."""
    folder = data_folder(SOURCES, *FILES, ACCEPTED, BLOG)
    every = runs(folder)
    of_others = priced.as_answered(list(priced.judged(every)))
    found = [
        *of_steps(folder),
        *of_paper(every),
        *of_blog(folder),
        *of_kernels(of_others, "SpecBundle"),
        *of_kernels(of_others, "vLLM issue 20780"),
    ]
    wrong = [row for row in found if row.loss > RIGHT]
    lines = [f"| {r.source} | {r.question} | {r.answer} | {r.best} | {r.loss:.1%} |" for r in wrong]
    DOCUMENT.write_text(HEAD + "\n".join(table(found)) + WRONG + "\n".join(lines) + "\n")
    print(f"wrote {DOCUMENT}")


HEAD: Final = """# Is the answer right?

`python benchmarks/published_verdicts.py FOLDER`: every row is a question whose answers were all measured and published,
drafting K tokens, a tree, or nothing. Right is an answer that loses at most 3 % of the measured tokens/s of the best
one. The batch sweeps are answered from every second batch size, the others judged, then the other way round: the fork's
step times and the paper's speedups by kernels and fitted constants, the blog's tokens/s as a table (`--cost`; the
smallest and largest batch size stay in it). SpecBundle and vLLM issue 20780 are answered by kernels, each row's own
acceptance and constants that had not seen them ([price-error.md](price-error.md)): once among all drafts that were
measured with one drafter on one data set, and once for each run by itself.

| source | questions | the best one itself | right | mean loss | worst |
| --- | ---: | ---: | ---: | ---: | ---: |
"""
WRONG: Final = """

Those that were wrong:

| source | question | answer | best measured | loses |
| --- | --- | --- | --- | ---: |
"""


if __name__ == "__main__":
    main()
