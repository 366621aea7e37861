"""Several ways to decode the same prompts, in lanes side by side, so that whatever moves the machine hits all alike.

The lane that has emitted the fewest tokens takes the next step: at any moment all lanes are about equally far in the
texts, so their steps are compared at the same time and at the same context lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from treeopt.acceptance.model import PathModel
from treeopt.decode.decoder import Decoder, Decoding, same_tree
from treeopt.decode.drafting import Drafter
from treeopt.decode.models import CausalModel
from treeopt.decode.reports import StepReport
from treeopt.plan.plan import Plan
from treeopt.planner.compare import Rival
from treeopt.tree import DraftTree

PLAN: Final = "plan"
CHAIN: Final = "best chain"
PLAIN: Final = "plain"


@dataclass(frozen=True, kw_only=True)
class Method:
    """A tree under all the names that it goes by: the plan's tree may be the best chain, or plain decoding."""

    names: tuple[str, ...]
    tree: DraftTree

    @property
    def name(self) -> str:
        """The names together."""
        return ", ".join(self.names)


def ways_for(plan: Plan, batch: int, context: int, rivals: Sequence[Rival], ranks: PathModel) -> tuple[Method, ...]:
    """Each different tree once, plain decoding first.

    Raises:
        InputError: the plan or a rival has no such batch size.
    """
    bucket = plan.bucket_for(batch, context)
    named = [
        (PLAIN, DraftTree(())),
        (CHAIN, DraftTree.chain(bucket.best_chain.depth)),
        (PLAN, bucket.tree),
        *((rival.name, rival.tree_for(batch, context, ranks)) for rival in rivals),
    ]
    trees = dict.fromkeys(tree for _, tree in named)
    return tuple(Method(names=tuple(name for name, own in named if own == tree), tree=tree) for tree in trees)


Advance = Callable[[int], None]
"""Told how many tokens a step emitted."""


@dataclass(frozen=True, kw_only=True)
class DecodingSetup:
    """What decodes, and the seconds by which it is timed.

    Args:
        drafter: makes a drafter for one way; drafters remember what they read.
        prompts: token ids, one document each.
    """

    target: CausalModel
    drafter: Callable[[], Drafter]
    decoding: Decoding
    prompts: tuple[tuple[int, ...], ...]
    clock: Callable[[], float] = time.perf_counter

    def document(self, request: int) -> int:
        """The prompt that a request continues: where a batch needs more requests, prompts are taken again."""
        return request % len(self.prompts)

    def requests(self, batch: int) -> list[tuple[int, ...]]:
        """Every prompt at least once, and enough of them to fill the batch."""
        return [self.prompts[self.document(i)] for i in range(max(batch, len(self.prompts)))]


class StepEntry(NamedTuple):
    """One request's part of a step: tokens it had written before, and tokens that it emitted."""

    request: int
    written: int
    emitted: int


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A decoding step; `full` where the whole batch verified the whole tree.

    Args:
        progress: tokens that all requests of the pass had written before it.
        context: mean committed length of its requests.
    """

    time_s: float
    full: bool
    progress: int
    context: float
    entries: tuple[StepEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One way through all prompts.

    Args:
        written: the continuation of every request.
    """

    tree: DraftTree
    steps: tuple[TimedStep, ...]
    written: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """That were written."""
        return sum(map(len, self.written))


class RunPlan(NamedTuple):
    """A tree to decode with, and at most how many requests at a time."""

    tree: DraftTree
    batch: int


def run_side_by_side(
    subject: DecodingSetup,
    lanes: Sequence[RunPlan],
    *,
    warm_up: int = 2,
    advance: Advance | None = None,
) -> list[Run]:
    """Decode all prompts in every lane, step by step in turn.

    Args:
        warm_up: decoding steps of each lane that run before and are not timed.

    Raises:
        InputError: an empty prompt, or no room in the batch.
    """
    for lane in lanes if warm_up else ():
        runner = _Runner(subject, lane)
        while len(runner.steps) < warm_up and runner.advance():
            pass
    runners = [_Runner(subject, lane) for lane in lanes]
    running = list(runners)
    while running:
        runner = min(running, key=lambda runner: runner.progress)
        before = runner.progress
        if not runner.advance():
            running.remove(runner)
        elif advance is not None:
            advance(runner.progress - before)
    return [runner.finished() for runner in runners]


class _Runner:
    """A lane at work: its decoder, and what its requests have written."""

    def __init__(self, subject: DecodingSetup, lane: RunPlan) -> None:
        tree, batch = lane
        self.steps: list[TimedStep] = []
        self.progress = 0
        self._tree, self._batch, self._clock = tree, batch, subject.clock
        self._prompts = subject.requests(batch)
        self._written: list[list[int]] = [[] for _ in self._prompts]
        decoder = Decoder(subject.target, subject.drafter() if tree.depth else None, decoding=subject.decoding)
        self._reports = decoder.steps(self._prompts, same_tree(tree), batch=batch)

    def advance(self) -> bool:
        """Take one step; False where there was none left."""
        began = self._clock()
        report = next(self._reports, None)
        time_s = self._clock() - began
        if report is None:
            return False
        if report.kind == "verify":
            self.steps.append(self._timed(report, time_s))
        for request, tokens in zip(report.requests, report.emitted, strict=True):
            self._written[request].extend(tokens)
            self.progress += len(tokens)
        return True

    def finished(self) -> Run:
        """What it did."""
        return Run(tree=self._tree, steps=tuple(self.steps), written=tuple(map(tuple, self._written)))

    def _timed(self, report: StepReport, time_s: float) -> TimedStep:
        parts = zip(report.requests, report.emitted, strict=True)
        # The root is not committed yet.
        committed = [len(self._prompts[r]) + len(self._written[r]) - 1 for r in report.requests]
        return TimedStep(
            time_s=time_s,
            full=report.nodes == (len(self._tree),) * self._batch,
            progress=self.progress,
            context=sum(committed) / len(committed),
            entries=tuple(StepEntry(r, len(self._written[r]), len(tokens)) for r, tokens in parts),
        )
