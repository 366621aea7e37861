"""Does a recorded chain tell what a wider tree would accept? By hand: `python benchmarks/recorded.py TRACE.npz ...`.

What the recorder in a serving engine sees of a chain of 3 to 6 is cut out of a whole trace: per document the chain's
own drafts, each up to and including its first miss. From half of the documents the chain is widened by its 1, 2, 4 or 8
likeliest siblings at the misses, E and its interval are made as `treeopt search` makes them, and the whole trace's
replay on the other half judges: 100 splits, each in both directions for the bias (see `benchmarks/holdout.py`). "From
the first token" is the bias against a decoder that starts there only, as an engine does; replays start at each of the
first six. `--turns` tells what guesses behind a wrong turn are worth against the chain's.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np
from holdout import covers

from treeopt.acceptance.chain import ChainCounter, ChainRanks
from treeopt.acceptance.intervals import Interval, counted_interval, tokens_interval
from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.acceptance.replay import Replay, accepted_on, draft_starts, replay_accepted
from treeopt.acceptance.trace import PAST_END, Trace
from treeopt.arrays import BoolArray, IntArray
from treeopt.solve.report import estimate
from treeopt.tree import DraftTree

CHAINS: Final = (3, 4, 5, 6)
ADDED: Final = (1, 2, 4, 8)
BRANCHED: Final = 4  # siblings that get a first guess of their own, in the trees that are judged with "branches"
SPLITS: Final = 100
WIDEST: Final = 3
HEADER: Final = """\
| trace | chain | E | least covered | covered | inside | largest bias | bias | from the first token | widest | width |
|---|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One tree of one split: printed from the recorded half, replayed on the other one, `full` on the same half."""

    printed: float
    interval: Interval
    replayed: float
    replayed_interval: Interval
    from_first: float
    full: Interval

    @property
    def covered(self) -> bool:
        return covers(self.printed, self.interval, self.replayed, self.replayed_interval)

    @property
    def inside(self) -> bool:
        return self.interval.low <= self.replayed <= self.interval.high

    @property
    def width(self) -> float:
        return self.interval.half_width / self.full.half_width


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The drafts of a chain that decodes a trace: each one's document, and its ranks up to the first miss."""

    documents: IntArray
    drafts: list[list[int]]

    def of(self, documents: BoolArray) -> ChainRanks:
        counter = ChainCounter()
        for i in np.flatnonzero(documents[self.documents]).tolist():
            counter.add(int(self.documents[i]), self.drafts[i])
        return counter.result()


def recorded(trace: Trace, chain: int) -> Recorded:
    """What the recorder would have seen of an engine that decodes each document once, by chains of that length."""
    documents, drafts = [], []
    ranks = trace.rank[:, :chain]
    for number, start, end in zip(trace.numbers, trace.bounds[:-1], trace.bounds[1:], strict=True):
        at = int(start)
        while at < end and ranks[at, -1] != PAST_END:
            wrong = np.flatnonzero(ranks[at])
            accepted = int(wrong[0]) if len(wrong) else chain
            drafts.append(ranks[at, : accepted + 1].tolist())
            documents.append(int(number))
            at += accepted + 1
    return Recorded(documents=np.array(documents), drafts=drafts)


def widened(evidence: ChainRanks, chain: int, added: int) -> DraftTree:
    """The chain with its likeliest siblings, as the evidence has them."""
    rates = evidence.model().rates[:chain]
    before = np.concatenate([[1.0], np.cumprod(rates[:-1, 0])])
    f = before[:, None] * rates[:, 1:]
    depth, rank = np.unravel_index(np.argsort(-f, axis=None, kind="stable")[:added], f.shape)
    beside = [(*(0,) * d, r + 1) for d, r in zip(depth.tolist(), rank.tolist(), strict=True)]
    return DraftTree((*((0,) * d for d in range(1, chain + 1)), *beside))


def branched(evidence: ChainRanks, chain: int) -> DraftTree:
    """The widened chain with first guesses behind its siblings, down to the chain's depth: what was never seen."""
    paths = set(widened(evidence, chain, BRANCHED).paths)
    for path in list(paths):
        if any(path):
            paths |= {(*path, *(0,) * n) for n in range(1, chain - len(path) + 1)}
    return DraftTree(tuple(paths))


def of_documents(result: Replay, documents: BoolArray) -> Replay:
    return Replay(
        phases=result.phases,
        tokens=np.where(documents, result.tokens, 0),
        steps=np.where(documents, result.steps, 0),
        position_tokens=np.where(documents, result.position_tokens, 0),
        positions=np.where(documents, result.positions, 0),
    )


def from_first(trace: Trace, tree: DraftTree) -> IntArray:
    """`[2, documents]` tokens and steps of a decoder that starts at the first token of each document."""
    sums, accepted = np.zeros((2, trace.documents), dtype=np.int64), np.append(accepted_on(trace, tree), 0)
    open_, at, end = np.append(trace.complete, False), trace.bounds[:-1].copy(), trace.bounds[1:]
    while True:
        goes_on = (at < end) & open_[at]
        if not goes_on.any():
            return sums
        emitted = np.where(goes_on, accepted[at] + 1, 0)
        sums[:, trace.numbers] += emitted, goes_on
        at += emitted


class Judge:
    """A trace, and its replays of the trees that were asked for."""

    def __init__(self, path: Path) -> None:
        self.trace = read_trace(path)
        self.replay = cache(lambda tree: replay_accepted(self.trace, accepted_on(self.trace, tree)))
        self.from_first = cache(lambda tree: from_first(self.trace, tree))

    def outcome(self, evidence: ChainRanks, tree: DraftTree, here: BoolArray) -> Outcome:
        value = expected_tokens(path_probabilities(evidence.model(), tree))
        printed = estimate(value, counted_interval(evidence, tree))
        ours, theirs = (of_documents(self.replay(tree), half) for half in (here, ~here))
        return Outcome(
            printed=value,
            interval=known(printed.low, printed.high),
            replayed=theirs.tokens_per_step,
            replayed_interval=known(*(tokens_interval(theirs) or (None, None))),
            from_first=float(np.divide(*self.from_first(tree)[:, ~here].sum(axis=1))),
            full=known(*(tokens_interval(ours) or (None, None))),
        )

    def splits(self, chain: int) -> list[list[tuple[Outcome, Outcome]]]:
        """For every number of added nodes, and last for the branched tree, the outcomes of all splits both ways."""
        seen = recorded(self.trace, chain)
        found: list[list[tuple[Outcome, Outcome]]] = [[] for _ in (*ADDED, BRANCHED)]
        for seed in range(SPLITS):
            here = np.zeros(self.trace.documents, dtype=np.bool_)
            order = np.random.default_rng(seed).permutation(self.trace.documents)
            here[order[: self.trace.documents // 2]] = True
            halves = [(seen.of(half), half) for half in (here, ~here)]
            trees = [[*(widened(own, chain, n) for n in ADDED), branched(own, chain)] for own, _ in halves]
            for cells, *pair in zip(found, *trees, strict=True):
                one, other = (self.outcome(own, tree, half) for (own, half), tree in zip(halves, pair, strict=True))
                cells.append((one, other))
        return found


def turned(trace: Trace) -> list[float]:
    """How often first guesses behind a wrong turn were right, over what the chain's rates at their depths say.

    At the starts of the longest chain's drafts, for wrong turns of rank 1 to 3: those one token deep, two, and all.
    """
    first, depth = trace.rank == 0, trace.depth
    weight = draft_starts(trace, accepted_on(trace, DraftTree(tuple((0,) * d for d in range(1, depth + 1)))))
    right, due = np.zeros(depth), np.zeros(depth)
    for d in range(1, depth):
        seen = trace.rank[:, d] != PAST_END
        above, along = trace.rank[:, :d], first[:, :d].all(axis=1) & seen
        behind = ((above >= 0) & (above <= WIDEST)).all(axis=1) & ~along & seen
        rate = float((weight * along * first[:, d]).sum() / max((weight * along).sum(), 1))
        right[d], due[d] = (weight * behind * first[:, d]).sum(), rate * (weight * behind).sum()
    return [float(right[1] / due[1]), float(right[2] / due[2]), float(right.sum() / due.sum())]


def known(low: float | None, high: float | None) -> Interval:
    assert low is not None, "fewer than 8 documents in a half"
    assert high is not None
    return Interval(low, high)


def bias(outcomes: list[tuple[Outcome, Outcome]], judge: str = "replayed") -> float:
    """Mean of printed - replayed over both directions, in percent of the replay."""
    pairs = [[(o.printed, getattr(o, judge)) for o in pair] for pair in outcomes]
    printed, replayed = np.moveaxis(np.array(pairs), 2, 0)
    return float(100 * (printed.mean() / replayed.mean() - 1))


def row(name: str, chain: str, cells: list[list[tuple[Outcome, Outcome]]]) -> str:
    covered = [sum(first.covered for first, _ in outcomes) for outcomes in cells]
    biases = [bias(outcomes) for outcomes in cells]
    widths = [float(np.mean([first.width for first, _ in outcomes])) for outcomes in cells]
    E = [np.mean([first.replayed for first, _ in outcomes]) for outcomes in cells]
    inside = np.mean([[first.inside for first, _ in outcomes] for outcomes in cells])
    worst, own = max(biases, key=abs), max((bias(outcomes, "from_first") for outcomes in cells), key=abs)
    return (
        f"| {name} | {chain} | {min(E):.2f} to {max(E):.2f} | {min(covered)} | {mean(covered):.1f} "
        f"| {100 * inside:.1f} | {worst:+.2f} % | {mean(biases):+.2f} % | {own:+.2f} % "
        f"| {max(widths):.2f} | {mean(widths):.2f} |"
    )


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--turns"]
    paths = [path for given in map(Path, words) for path in (sorted(given.glob("*.npz")) or [given])]
    if len(words) < len(sys.argv[1:]):
        print("| trace | depth 2 | depth 3 | all |\n|---|---|---|---|")
        for path in paths:
            shares = " | ".join(f"{share:.2f}" for share in turned(read_trace(path)))
            print(f"| {path.stem.removeprefix('smollm2_')} | {shares} |")
        return
    print(HEADER)
    for path in paths:
        judge = Judge(path)
        for length in CHAINS:
            *cells, side = judge.splits(length)
            name = path.stem.removeprefix("smollm2_")
            print(row(name, f"{length}", cells), row(name, f"{length}, branches", [side]), sep="\n", flush=True)


if __name__ == "__main__":
    main()
