"""One step time that a serving engine was seen to take, and whether its tree paid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.dynamic_tree import dynamic_tree_widths
from treeopt.arrays import FloatArray
from treeopt.cost.step_cost import StepCost
from treeopt.files.evidence_lines import Place
from treeopt.tree import MAX_DEPTH


@dataclass(frozen=True, kw_only=True)
class ServedStep:
    """A measured step of `batch` requests that verify `nodes` tokens each.

    Attributes:
        batch: running requests B.
        nodes: tokens a request verifies, root included; 1 is plain decoding.
        depth: drafter passes D.
        widths: nodes with children per depth, what each drafter pass runs.
        step_time_s: seconds of the step, drafting included.
        tokens_per_step: mean accepted length, the bonus token counted, where the file says it.
        place: where the row stands.
        off: a pause in a schedule of drafts: the drafter still fills its cache, so this is no plain decoding.
        by_rate: only tokens/s were measured, so `step_time_s` is that of a step whose every draft is right.
    """

    batch: int
    nodes: int
    depth: int
    widths: tuple[int, ...]
    step_time_s: float
    tokens_per_step: float | None = None
    place: Place
    off: bool = False
    by_rate: bool = False

    @property
    def tokens(self) -> int:
        """B x N."""
        return self.batch * self.nodes

    @property
    def is_chain(self) -> bool:
        """Whether each depth has one node, drafted by one; plain decoding is a chain of none."""
        return self.nodes == self.depth + 1 and max(self.widths, default=1) == 1

    @property
    def shape(self) -> tuple[int, int, tuple[int, ...]]:
        """What the drafter and the target ran, apart from the batch size."""
        return self.nodes, self.depth, self.widths

    def named(self) -> str:
        """The row in words."""
        tree = f"N={self.nodes} D={self.depth} drafted {max(self.widths, default=0)} wide"
        return f"batch {self.batch} " + ("plain" if self.nodes == 1 else f"K={self.depth}" if self.is_chain else tree)

    def say(self, message: str) -> str:
        """A sentence with the file and line in front."""
        return str(self.place.error(message, hint=""))


def drafted_widths(steps: int, topk: int = 1, *, place: Place) -> tuple[int, ...]:
    """What the drafter runs in each of its passes, as a row holds it; a chain has one node per depth.

    Raises:
        FileFormatError: more passes than any drafter makes.
    """
    if steps > MAX_DEPTH:
        raise place.error(f"{steps} drafted tokens in a row", hint=f"no drafter drafts more than {MAX_DEPTH}")
    return tuple(dynamic_tree_widths(steps, topk, levels=steps).tolist())


def medians(rows: Iterable[ServedStep]) -> list[ServedStep]:
    """One row per batch size and shape: the median of its times and the mean of its lengths, in whatever order."""
    groups: dict[object, list[ServedStep]] = {}
    for row in rows:
        groups.setdefault((row.batch, row.shape), []).append(row)
    return [_median(group) for group in groups.values()]


def _median(group: list[ServedStep]) -> ServedStep:
    lengths = [row.tokens_per_step for row in group if row.tokens_per_step is not None]
    mean = fmean(lengths) if lengths else None
    return replace(group[0], step_time_s=median(row.step_time_s for row in group), tokens_per_step=mean)


def chain_cells(rows: Iterable[ServedStep]) -> dict[tuple[int, int], float]:
    """Seconds by (batch, K) of rows that are chains, the median where a point was measured again."""
    return {(row.batch, row.depth): row.step_time_s for row in medians(rows)}


class StepArrays:
    """The rows as `[R]` arrays (widths `[R, D]`), as `StepCost` takes them."""

    def __init__(self, rows: Sequence[ServedStep]) -> None:
        self.batch = _column(row.batch for row in rows)
        self.nodes = _column(row.nodes for row in rows)
        self.depth = _column(row.depth for row in rows)
        self.tokens = self.batch * self.nodes
        self.step_time_s = np.array([row.step_time_s for row in rows], dtype=np.float64)
        self.widths = np.zeros((len(rows), max((row.depth for row in rows), default=0) or 1), dtype=np.int64)
        for i, row in enumerate(rows):
            self.widths[i, : row.depth] = row.widths

    def priced(self, cost: StepCost, context: int) -> FloatArray:
        """`[R]` seconds that a cost model expects of the same steps."""
        return cost.step_time_s(self.batch, self.nodes, self.depth, self.widths, context)


@dataclass(frozen=True, kw_only=True)
class Payoff:
    """A speculative step beside the plain step of the same batch size: what it must accept, and what it does."""

    step: ServedStep
    plain: ServedStep

    WRITTEN: ClassVar = ("batch", "nodes", "depth", "break_even_length", "acceptance_length", "speedup", "pays")

    @property
    def batch(self) -> int:
        """B of both."""
        return self.step.batch

    @property
    def nodes(self) -> int:
        """N of the speculative step."""
        return self.step.nodes

    @property
    def depth(self) -> int:
        """D of the speculative step."""
        return self.step.depth

    @property
    def acceptance_length(self) -> float | None:
        """E of the speculative step, where it was measured."""
        return self.step.tokens_per_step

    @property
    def break_even_length(self) -> float:
        """The acceptance length that the step must exceed to pay: 1.5 where it takes 1.5 times the plain one."""
        return self.step.step_time_s / self.plain.step_time_s

    @property
    def speedup(self) -> float | None:
        """Tokens/s over plain decoding, where the accepted length was measured."""
        tokens = self.acceptance_length
        return None if tokens is None else tokens / self.break_even_length

    @property
    def pays(self) -> bool:
        """Whether it can pay at all, and does where the accepted length was measured."""
        speedup = self.speedup
        return self.break_even_length < self.step.depth + 1 if speedup is None else speedup > 1.0


def payoffs(rows: Sequence[ServedStep]) -> list[Payoff]:
    """Every speculative row in the order of the file, beside the median plain row of its batch size if there is one."""
    plain = {row.batch: row for row in medians(row for row in rows if row.nodes == 1)}
    return [Payoff(step=row, plain=plain[row.batch]) for row in rows if row.nodes > 1 and row.batch in plain]


def _column(values: Iterable[int]) -> npt.NDArray[np.int64]:
    return np.array(list(values), dtype=np.int64)
