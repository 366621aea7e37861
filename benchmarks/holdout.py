"""Does the printed E hold on new documents? By hand: `python benchmarks/holdout.py [FOLDER or TRACE.npz ...]`.

Search on a random half of a trace's documents as `treeopt search --holdout 0.5` does, at a fixed number of nodes, and
replay the tree on the other half: 100 times per trace and N, each split in both directions. The sampling errors of
the two directions cancel, and what remains of their mean is the prediction's own bias. Hits and absolute errors count
the first directions only. Without an argument the shipped trace is judged; of a folder, every NPZ in it.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Final

import numpy as np

from treeopt.acceptance.intervals import Interval
from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Estimate
from treeopt.arrays import FloatArray
from treeopt.cost.step_cost import IntLike
from treeopt.planner.traffic_input import load_traffic
from treeopt.solve.bucket import Bucket
from treeopt.solve.problem import Limits, Objective, Problem
from treeopt.solve.report import held_out_length
from treeopt.solve.search import search
from treeopt.tree import DraftTree

SHIPPED: Final = Path(__file__).resolve().parents[1] / "profiles" / "ranks" / "smollm2-135m-eagle.npz"
NODES: Final = (4, 8, 16, 32, 64)
SPLITS: Final = 100
HEADER: Final = """\
| trace | N | replayed E | covered of 100 | inside of 100 | mean abs. error | floor | bias | own half | all positions |
|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Tokens per step of one split: printed on the half searched on, and replayed on the other half.

    Beside the printed number what is simpler for the same tree: its replay on the half it was chosen on, and its f over
    all positions. `known_here` and `known_there` replay a tree that both halves know: nothing is searched or predicted,
    so their difference is the sampling of documents alone.
    """

    replayed: float
    replayed_interval: Interval
    printed: float
    printed_interval: Interval
    own_half: float
    all_positions: float
    known_here: float
    known_there: float

    @property
    def error(self) -> float:
        """The printed number against the replay, as a share of it."""
        return self.printed / self.replayed - 1

    @property
    def floor(self) -> float:
        """What the two halves differ by under one and the same tree."""
        return self.known_here / self.known_there - 1

    @property
    def inside(self) -> bool:
        """Whether the other half's replay lies in the printed interval, as if that replay were exact."""
        return self.printed_interval.low <= self.replayed <= self.printed_interval.high

    @property
    def covered(self) -> bool:
        """The same with the other half's own sampling error."""
        return covers(self.printed, self.printed_interval, self.replayed, self.replayed_interval)


def covers(printed: float, printed_interval: Interval, replayed: float, replayed_interval: Interval) -> bool:
    """Whether the interval of printed - replayed holds 0, made of the two sides' own intervals.

    Its ends are those of Zou and Donner (2008): on either side the distances of the two intervals' facing ends from
    their estimates, added in quadrature, as for independent errors.
    """
    if replayed > printed:
        ours, theirs = printed_interval.high - printed, replayed - replayed_interval.low
    else:
        ours, theirs = printed - printed_interval.low, replayed_interval.high - replayed
    return abs(replayed - printed) <= float(np.hypot(ours, theirs))


class OnePrice:
    """Every step costs the same: with the nodes fixed, the price chooses nothing."""

    ridge_tokens = 1.0

    def step_time_s(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: np.ndarray, context: IntLike
    ) -> FloatArray:
        return np.ones(np.broadcast_shapes(np.shape(batch), np.shape(nodes), np.shape(depth)))


def searched(evidence: Traffic, nodes: int) -> Bucket:
    """The product's answer with `nodes` nodes."""
    limits = Limits(max_nodes=nodes)
    question = Problem(batches=(1,), limits=limits, objective=Objective.LENGTH, budget_tokens=nodes)
    return search(question, evidence, OnePrice())[0]


def known(value: Estimate) -> Interval:
    assert value.low is not None, "fewer than 8 documents in a half"
    assert value.high is not None
    return Interval(value.low, value.high)


def outcome(here: Traffic, there: Traffic, known_tree: DraftTree) -> Outcome:
    found = searched(here, len(known_tree))
    tree, judged = found.tree, held_out_length(found.tree, there)
    return Outcome(
        replayed=judged.value,
        replayed_interval=known(judged),
        printed=found.acceptance_length.value,
        printed_interval=known(found.acceptance_length),
        own_half=held_out_length(tree, here).value,
        all_positions=expected_tokens(path_probabilities(here.all_positions, tree)),
        known_here=held_out_length(known_tree, here).value,
        known_there=held_out_length(known_tree, there).value,
    )


def split(path: Path, trees: list[DraftTree], seed: int) -> list[tuple[Outcome, Outcome]]:
    """For every tree size the outcomes of one split in both directions."""
    here, there = load_traffic(str(path))[0].split(0.5, seed)
    return [(outcome(here, there, tree), outcome(there, here, tree)) for tree in trees]


def absolute(outcomes: list[tuple[Outcome, Outcome]], field: str) -> float:
    return 100 * float(np.mean([abs(getattr(first, field)) for first, _ in outcomes]))


def bias(outcomes: list[tuple[Outcome, Outcome]], field: str) -> tuple[float, float]:
    """Mean of prediction - replay over both directions in percent of the replay, and its standard error."""
    both = [[(o.replayed, getattr(o, field)) for o in pair] for pair in outcomes]
    replayed, predicted = np.moveaxis(np.array(both), 2, 0)
    off = 100 * (predicted - replayed).mean(axis=1) / replayed.mean()
    return float(off.mean()), float(off.std(ddof=1) / np.sqrt(len(off)))


def row(path: Path, nodes: int, outcomes: list[tuple[Outcome, Outcome]]) -> str:
    cells = [
        path.stem.removeprefix("smollm2_greedy_"),
        f"{nodes}",
        f"{np.mean([first.replayed for first, _ in outcomes]):.3f}",
        *(f"{sum(getattr(first, field) for first, _ in outcomes)}" for field in ("covered", "inside")),
        *(f"{absolute(outcomes, field):.2f} %" for field in ("error", "floor")),
        "{:+.2f} ± {:.2f} %".format(*bias(outcomes, "printed")),
        *(f"{bias(outcomes, field)[0]:+.2f} %" for field in ("own_half", "all_positions")),
    ]
    return f"| {' | '.join(cells)} |"


def summary(rows: list[list[tuple[Outcome, Outcome]]]) -> str:
    """What holds over all rows, in one sentence."""
    biases = [bias(outcomes, "printed") for outcomes in rows]
    covered, inside = (
        np.mean([[getattr(first, field) for first, _ in outcomes] for outcomes in rows])
        for field in ("covered", "inside")
    )
    error, floor = (np.mean([absolute(outcomes, field) for outcomes in rows]) for field in ("error", "floor"))
    return (
        f"Over all rows: covered {covered:.1%}, inside {inside:.1%}, mean absolute error {error:.2f} %, floor "
        f"{floor:.2f} %, mean bias {np.mean([b for b, _ in biases]):+.2f} %, above the replay in "
        f"{sum(b > 0 for b, _ in biases)} rows of {len(biases)}."
    )


def traces() -> list[Path]:
    """The files of the command line, of a folder all; the shipped trace without any."""
    found = []
    for given in map(Path, sys.argv[1:] or [SHIPPED]):
        inside = sorted(given.glob("*.npz")) if given.is_dir() else [given]
        if not inside or not inside[0].is_file():
            sys.exit(
                f"no trace at {given}: give NPZ files as profiles/ranks/README.md describes them. Those behind "
                "docs/acceptance.md are not part of the project; it says what they hold"
            )
        found += inside
    return found


def main() -> None:
    paths, rows = traces(), []
    print(HEADER)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for path in paths:
            evidence = load_traffic(str(path))[0]
            trees = [searched(evidence, nodes).choice.draft for nodes in NODES]
            splits = list(pool.map(split, repeat(path), repeat(trees), range(SPLITS)))
            for i, nodes in enumerate(NODES):
                rows.append([outcomes[i] for outcomes in splits])
                print(row(path, nodes, rows[-1]), flush=True)
    print(f"\n{summary(rows)}")


if __name__ == "__main__":
    main()
