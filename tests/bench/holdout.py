"""Is the prediction honest? By hand, 14 minutes of CPU time: `python tests/bench/holdout.py [TRACE.npz ...]`.

Search on a random half of the documents, predict E, replay on the other half, 100 times per trace and N. The first 25
splits are also used the other way round: the sampling errors of the two directions cancel, and what remains of their
mean is the predictor's own bias. Hits and absolute errors count the 100 first directions only.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from treeopt.arrays import BoolArray
from treeopt.frontier import Limits, best_families
from treeopt.ranks.intervals import independent_difference
from treeopt.ranks.model import PathModel, expected_tokens, path_probabilities
from treeopt.ranks.replay import replay
from treeopt.ranks.smoothing import SmoothedPaths
from treeopt.ranks.starts import Choose, cross_fitted, fixed_point
from treeopt.ranks.trace import Trace, TraceFile
from treeopt.tree import DraftTree

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
KINDS = ("eagle_prose", "eagle_code", "medusa_prose", "medusa_code")
NODES = (4, 8, 16, 32, 64)
SPLITS = 100
BOTH_WAYS = 25
HEADER = """\
| trace | N | replayed E | hits of 100 | mean abs. error | floor | bias | own half | smoothed f | all positions |
|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Tokens per step of one split: replayed on the other half, and predicted in four ways for the same tree.

    `cross_fitted` is the prediction, whose interval `hit` the replay. Beside it what is simpler: the tree's replay on
    the half it was chosen on, its smoothed f at draft starts, its smoothed f over all positions. `known_here` and
    `known_there` replay a tree that both halves know: nothing is searched or predicted, so their difference is the
    sampling of documents alone.
    """

    replayed: float
    hit: bool
    cross_fitted: float
    own_half: float
    smoothed: float
    all_positions: float
    known_here: float
    known_there: float

    @property
    def error(self) -> float:
        return self.cross_fitted / self.replayed - 1

    @property
    def floor(self) -> float:
        return self.known_here / self.known_there - 1


def best_tree(nodes: int) -> Choose:
    def choose(model: PathModel) -> DraftTree:
        return best_families(model, Limits(max_nodes=nodes))[-1].tree(nodes)

    return choose


def model_tokens(model: PathModel, tree: DraftTree) -> float:
    return expected_tokens(path_probabilities(model, tree))


def outcome(trace: Trace, half: BoolArray, known_tree: DraftTree) -> Outcome:
    here, there = trace.select(half), trace.select(~half)
    choose = best_tree(len(known_tree))
    point = fixed_point(here, choose)
    predicted, found = cross_fitted(here, choose), replay(there, point.tree)
    interval = independent_difference(predicted, found)
    assert interval is not None
    return Outcome(
        replayed=found.tokens_per_step,
        hit=interval.includes_zero,
        cross_fitted=predicted.tokens_per_step,
        own_half=replay(here, point.tree).tokens_per_step,
        smoothed=model_tokens(point.model, point.tree),
        all_positions=model_tokens(SmoothedPaths(here.count()), point.tree),
        known_here=replay(here, known_tree).tokens_per_step,
        known_there=replay(there, known_tree).tokens_per_step,
    )


def split(path: Path, trees: list[DraftTree], seed: int) -> list[list[Outcome]]:
    """For every tree size the outcomes of one split: one, or one for each direction."""
    trace = TraceFile(path).load()
    half = np.random.default_rng(seed).permutation(trace.documents) < trace.documents // 2
    directions = [half, ~half] if seed < BOTH_WAYS else [half]
    return [[outcome(trace, direction, tree) for direction in directions] for tree in trees]


def absolute(outcomes: list[list[Outcome]], field: str) -> float:
    return 100 * float(np.mean([abs(getattr(first, field)) for first, *_ in outcomes]))


def bias(outcomes: list[list[Outcome]], field: str) -> tuple[float, float]:
    """Mean of prediction - replay over both directions in percent of the replay, and its standard error."""
    both = [[(o.replayed, getattr(o, field)) for o in pair] for pair in outcomes[:BOTH_WAYS]]
    replayed, predicted = np.moveaxis(np.array(both), 2, 0)
    off = 100 * (predicted - replayed).mean(axis=1) / replayed.mean()
    return float(off.mean()), float(off.std(ddof=1) / np.sqrt(len(off)))


def row(path: Path, nodes: int, outcomes: list[list[Outcome]]) -> str:
    cells = [
        path.stem.removeprefix("smollm2_greedy_"),
        f"{nodes}",
        f"{np.mean([first.replayed for first, *_ in outcomes]):.3f}",
        f"{sum(first.hit for first, *_ in outcomes)}",
        f"{absolute(outcomes, 'error'):.2f} %",
        f"{absolute(outcomes, 'floor'):.2f} %",
        "{:+.2f} ± {:.2f} %".format(*bias(outcomes, "cross_fitted")),
        *(f"{bias(outcomes, field)[0]:+.2f} %" for field in ("own_half", "smoothed", "all_positions")),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or [TRACES / f"smollm2_greedy_{kind}.npz" for kind in KINDS]
    rows: list[list[list[Outcome]]] = []
    print(HEADER)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for path in paths:
            trees = [fixed_point(TraceFile(path).load(), best_tree(nodes)).tree for nodes in NODES]
            splits = list(pool.map(split, repeat(path), repeat(trees), range(SPLITS)))
            for i, nodes in enumerate(NODES):
                rows.append([outcomes[i] for outcomes in splits])
                print(row(path, nodes, rows[-1]), flush=True)
    biases = [bias(outcomes, "cross_fitted")[0] for outcomes in rows]
    print(
        f"\nOver all rows: mean absolute error {np.mean([absolute(outcomes, 'error') for outcomes in rows]):.2f} %, "
        f"mean bias {np.mean(biases):+.2f} %, above the replay in {sum(b > 0 for b in biases)} rows of {len(biases)}."
    )


if __name__ == "__main__":
    main()
