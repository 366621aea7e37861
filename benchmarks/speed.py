"""Speed of the main job, by hand: `python benchmarks/speed.py > docs/speed.md` (a quiet machine, one core)."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from treeopt.acceptance.intervals import tokens_interval
from treeopt.acceptance.replay import replay
from treeopt.acceptance.table import DepthRankModel
from treeopt.acceptance.trace import Trace
from treeopt.acceptance.traffic import Traffic
from treeopt.planner.inputs import load_inputs
from treeopt.planner.names import Names
from treeopt.planner.traffic_input import load_traffic
from treeopt.solve.problem import Limits, Problem
from treeopt.solve.search import search
from treeopt.tree import DraftTree

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def median_s(work: Callable[[], object], runs: int = 7) -> float:
    times = []
    for _ in range(runs + 1):  # the first run warms caches and is dropped
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def plan_of_nine() -> float:
    """9 batch sizes, N <= 256, D <= 16, 32 ranks."""
    rates = 0.7 * 0.35 ** np.arange(32)
    model = DepthRankModel(np.tile(rates / rates.sum() * 0.9, (16, 1)))
    inputs = load_inputs(Names())
    part = replace(inputs.evidence.parts[0], trace=None, model=model)
    question = Problem(batches=BATCHES, limits=Limits(max_nodes=256))
    return median_s(lambda: search(question, Traffic(parts=(part,)), inputs.cost))


def plan_of_nine_from_paths() -> float:
    inputs = load_inputs(Names())
    question = Problem(batches=BATCHES, limits=Limits(max_nodes=256))
    return median_s(lambda: search(question, load_traffic(Names.ranks)[0], inputs.cost))


def command() -> tuple[float, float]:
    """Wall seconds of `treeopt search --batch 32`, and the peak memory of it in MB."""
    args = [sys.executable, "-c", "from treeopt.cli import main; main()", "search", "--batch", "32"]
    wall = median_s(lambda: subprocess.run(args, capture_output=True, check=True))
    return wall, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3


def yardstick() -> float:
    """Wall seconds of a process that imports numpy: machines, and hours on a shared one, differ by factors."""
    return median_s(lambda: subprocess.run([sys.executable, "-c", "import numpy"], check=True))


def counting(positions: int) -> tuple[float, float]:
    """Seconds to count a trace of that many positions on disk, and the peak memory of the process in MB."""
    rng = np.random.default_rng(0)
    source = np.load(Path(__file__).parents[1] / "profiles" / "ranks" / "smollm2-135m-eagle.npz")["rank"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.npz"
        np.savez_compressed(path, rank=source[rng.integers(0, len(source), positions)])
        code = (
            "import resource, sys, time; from pathlib import Path; from treeopt.acceptance.shards import TraceFiles\n"
            "start = time.perf_counter(); TraceFiles.find(Path(sys.argv[1])).count()\n"
            "print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)"
        )
        out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    seconds, megabytes = map(float, out.stdout.split())
    return seconds, megabytes


def synthetic(positions: int, documents: int) -> Trace:
    """A trace of that size from the shipped one's rows."""
    rng = np.random.default_rng(0)
    source = np.load(Path(__file__).parents[1] / "profiles" / "ranks" / "smollm2-135m-eagle.npz")["rank"]
    source = source[(source != -2).all(axis=1)]
    length = positions // documents
    return Trace(
        rank=source[rng.integers(0, len(source), length * documents)],
        doc_id=np.repeat(np.arange(documents), length),
        pos=np.tile(np.arange(length), documents),
    )


def replaying(positions: int, documents: int) -> float:
    trace, tree = synthetic(positions, documents), DraftTree.from_widths([4, 2, 1, 1])
    return median_s(lambda: replay(trace, tree), runs=1)


def bootstrapping(positions: int, documents: int) -> float:
    replayed = replay(synthetic(positions, documents), DraftTree.from_widths([4, 2, 1, 1]))
    seeds = count()  # draws are kept for the next tree of the same seed
    return median_s(lambda: tokens_interval(replayed, seed=next(seeds)), runs=3)


def line(what: str, measured: float, shown: str, unit: str, limit: float | None = None) -> None:
    """One line of the table; what is shown is what is judged."""
    number = format(measured, shown)
    wanted, met = ("", "") if limit is None else (f"{limit:g} {unit}", "yes" if float(number) <= limit else "**no**")
    print(f"| {what} | {wanted} | {number} {unit} | {met} |")


def main() -> None:
    wall, memory = command()
    seconds, peak = counting(10_000_000)
    print("# Speed of the main job\n")
    print("Made by `python benchmarks/speed.py > docs/speed.md` on 2 cores of a shared x86-64 server. Medians.\n")
    print("| what | limit | measured | met |\n|---|---|---|---|")
    line("`python -c 'import numpy'`, wall, for scale", yardstick(), ".2f", "s")
    line("plan of 9 batch sizes, N <= 256, D <= 16, 32 ranks, in process", plan_of_nine(), ".3f", "s", 0.1)
    line("the same from path counts (depth 6)", plan_of_nine_from_paths(), ".3f", "s")
    line("`treeopt search --batch 32`, wall", wall, ".2f", "s", 0.5)
    line("the same, peak memory", memory, ".0f", "MB", 150)
    line("10 million trace positions to path counts, from a compressed NPZ", seconds, ".1f", "s", 10)
    line("the same, peak memory", peak, ".0f", "MB")
    line("replay of 10 million positions, 50,000 documents", replaying(10_000_000, 50_000), ".1f", "s", 10)
    line("replay of 10 million positions, one document", replaying(10_000_000, 1), ".1f", "s", 10)
    line("1,000 bootstrap replicates, 10^6 positions", bootstrapping(1_000_000, 5_000), ".2f", "s", 2)


if __name__ == "__main__":
    main()
