"""Plain, chain and tree decoding of the same prompts, step by step, with times: what a benchmark compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.decode.decoder import Decoder, Decoding, same_tree
from treeopt.decode.drafting import Drafter
from treeopt.decode.models import Model
from treeopt.decode.reports import StepReport
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One way to decode the prompts at one batch size.

    Args:
        name: of the way, as the caller calls it.
        written: the continuation of every prompt.
        steps: decoding steps in their order, prefills left out.
    """

    name: str
    tree: DraftTree
    batch: int
    written: tuple[tuple[int, ...], ...]
    steps: tuple[StepReport, ...]

    @cached_property
    def full_steps(self) -> tuple[StepReport, ...]:
        """Steps of the whole batch with the whole tree; as prompts run out batches shrink, at their end trees do."""
        whole = (len(self.tree),) * self.batch
        return tuple(step for step in self.steps if step.nodes == whole)

    @property
    def tokens_per_step(self) -> float:
        """Tokens per request and full step; NaN without one."""
        lengths = [len(e) for step in self.full_steps for e in step.emitted]
        return float(np.mean(lengths)) if lengths else float("nan")

    @property
    def step_times_s(self) -> FloatArray:
        """`[steps]` times of the full steps."""
        return np.array([step.times.total_s for step in self.full_steps])

    @property
    def step_time_s(self) -> float:
        """Median time of a full step; NaN without one."""
        return float(np.median(self.step_times_s)) if self.full_steps else float("nan")

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the whole batch per second of full steps; NaN without one."""
        tokens = sum(len(e) for step in self.full_steps for e in step.emitted)
        return tokens / float(self.step_times_s.sum()) if self.full_steps else float("nan")


def run_each(
    target: Model,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    trees: Mapping[str, DraftTree],
    *,
    batch: int,
    decoding: Decoding,
    warm_up: int = 1,
    advance: Callable[[str, StepReport], None] | None = None,
) -> tuple[Run, ...]:
    """Decode the prompts with each tree: `DraftTree(())` is plain decoding, `DraftTree.chain(k)` a chain.

    Args:
        warm_up: decoding steps of each way that run before and are not reported.
        advance: called after every reported step, with the name of the way.

    Raises:
        InputError: an empty prompt, or no room in the batch.
    """
    runs = []
    for name, tree in trees.items():
        decoder = Decoder(target, drafter, decoding=decoding)
        _warm_up(decoder, prompts, tree, batch, warm_up)
        written: list[list[int]] = [[] for _ in prompts]
        steps = []
        for report in decoder.steps(prompts, same_tree(tree), batch=batch):
            for number, tokens in zip(report.requests, report.emitted, strict=True):
                written[number].extend(tokens)
            if report.kind == "verify":
                steps.append(report)
                if advance is not None:
                    advance(name, report)
        runs.append(Run(name=name, tree=tree, batch=batch, written=tuple(map(tuple, written)), steps=tuple(steps)))
    return tuple(runs)


def _warm_up(decoder: Decoder, prompts: Sequence[Sequence[int]], tree: DraftTree, batch: int, steps: int) -> None:
    left = steps
    for report in decoder.steps(prompts[:batch], same_tree(tree), batch=batch) if steps else ():
        left -= report.kind == "verify"
        if left <= 0:
            return
