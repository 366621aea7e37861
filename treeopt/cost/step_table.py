"""Step times from a table of measured ones, in place of a model of the GPU, or corrected and carried on by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from treeopt.arrays import FloatArray, IntArray, distinct
from treeopt.cost.step_cost import IntLike, StepCost
from treeopt.draft_family import DynamicTree, in_words
from treeopt.errors import InputError

_FAR: Final = 1 << 32  # beyond any K


class Anchor(NamedTuple):
    """The chain nearest to a step that a table has a time for: `[...]` batch and nodes."""

    batch: IntArray
    nodes: IntArray


class StepTable(Protocol):
    """Measured step times, interpolated between the points and never beyond them."""

    def seconds(self, batch: IntArray, nodes: IntArray, depth: IntArray) -> FloatArray:
        """`[...]` seconds; NaN where the table does not reach."""

    def anchor(self, batch: IntArray, nodes: IntArray) -> Anchor:
        """The nearest chain for which `seconds` is known; the same for every depth."""

    @property
    def max_tokens(self) -> int:
        """The most tokens per step that it has a time for."""

    def reach(self) -> str:
        """What it covers, in words."""


@dataclass(frozen=True, kw_only=True)
class TableStep:
    """`StepCost` from a table.

    Where the table does not reach, a step takes for ever: it is never chosen. With `carried_by`, that model prices it,
    times what the table measured over what the model says at the nearest chain that the table has.

    Attributes:
        name: where the table is from.
        context: L that it was measured at; None where it does not say.
        carried_by: the model, if any.
    """

    table: StepTable
    name: str
    context: int | None = None
    carried_by: StepCost | None = None

    @property
    def ridge_tokens(self) -> float:
        """The model's ridge; of a table alone, which knows none, the most tokens that it has a time for."""
        return self.table.max_tokens if self.carried_by is None else self.carried_by.ridge_tokens

    def measures_plain(self, batch: int) -> bool:
        """Whether a plain step at this batch size, or at the nearest of the table, was measured."""
        # By tokens alone plain steps are steps that draft.
        return isinstance(self.table, ChainTable | TreeTable) and self._knows_plain(batch)

    def was_timed(self, batch: int, nodes: int, depth: int) -> bool:
        """Whether a step of just these sizes was measured, rather than lies between measured ones."""
        if isinstance(self.table, TreeTable):
            return batch in self.table.batches and self._knows(batch, nodes, depth)
        return isinstance(self.table, ChainTable) and nodes == depth + 1 and (batch, depth) in self.table.timed

    def _reaches(self, batch: int) -> bool:
        if isinstance(self.table, ChainTable | TreeTable):
            return self.table.batches[0] <= batch <= self.table.batches[-1]
        return self._knows(batch, 1, 0)

    def _knows_plain(self, batch: int) -> bool:
        at, one = np.array(batch), np.array(1)
        if self.carried_by is not None:
            at, nodes = self.table.anchor(at, one)
            return not isinstance(self.table, ChainTable) or int(nodes) == 1
        return self._knows(batch, 1, 0)

    def _knows(self, batch: int, nodes: int, depth: int) -> bool:
        return not bool(np.isnan(self.table.seconds(np.array(batch), np.array(nodes), np.array(depth))))

    def step_time_s(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: IntArray, context: IntLike
    ) -> FloatArray:
        """Seconds per step for every element of the broadcast inputs, for ever where nobody knows; see `StepCost`.

        Raises:
            InputError: a batch size that the table does not reach and no model carries it to.
        """
        shape = np.broadcast_shapes(*map(np.shape, (batch, nodes, depth, context)), widths.shape[:-1])
        B, N, D = (np.broadcast_to(np.asarray(x, dtype=np.int64), shape) for x in (batch, nodes, depth))
        if self.carried_by is not None:
            return self._carried(self.carried_by, B, N, D, widths, context)
        for size in distinct(B).tolist():
            if not self._reaches(size):
                raise InputError(
                    f"{self.name} has no times at batch {size}",
                    hint=f"it has {self.table.reach()}: ask within that, or let a model carry it on",
                )
        seconds = self.table.seconds(B, N, D)
        return np.asarray(np.where(np.isnan(seconds), np.inf, seconds))

    def notes(self, *, batch: int, nodes: int, context: int) -> list[str]:
        """What the reader of steps of up to `batch`, `nodes` and `context` must know, one sentence each."""
        notes = []
        beyond = "trees and what lies beyond are priced by the model, scaled to the table"
        if self.carried_by is None:
            beyond = "what lies beyond it is never chosen"
        if batch * nodes > self.table.max_tokens:
            notes.append(f"{self.name} has {self.table.reach()}: {beyond}")
        if not isinstance(self.table, ChainTable | TreeTable):
            notes.append(
                f"{self.name} has times by tokens alone, whatever drafted them: plain decoding counts as a step that "
                "drafts, so take sizes from it and no speedup"
            )
        if self.context is None:
            notes.append(f"{self.name} does not say at what context it was measured: its times count for any")
        elif self.carried_by is None and self.context != context:
            notes.append(f"{self.name} was measured at context {self.context}, and counts for {context} unchanged")
        return notes

    def _carried(
        self, model: StepCost, B: IntArray, N: IntArray, D: IntArray, widths: IntArray, context: IntLike
    ) -> FloatArray:
        seconds = self.table.seconds(B, N, D)
        at = self.table.anchor(B, N)
        measured = self.table.seconds(at.batch, at.nodes, at.nodes - 1)
        there = context if self.context is None else self.context
        modelled = model.step_time_s(B, N, D, widths, context)
        ratio = measured / model.step_time_s(at.batch, at.nodes, at.nodes - 1, _chain_widths(at.nodes), there)
        if self.context is not None:
            # Measured elsewhere: the model says how the time of the same step changes with the context.
            seconds = seconds * modelled / model.step_time_s(B, N, D, widths, there)
        carried = np.where((N == 1) & (at.nodes > 1), np.inf, modelled * ratio)  # drafting steps say nothing of plain
        seconds = np.where(np.isnan(seconds), carried, seconds)
        return np.asarray(np.where(np.isnan(seconds), np.inf, seconds))


@dataclass(frozen=True, kw_only=True)
class ChainTable:
    """Seconds by batch size and K, the drafts of a chain: `step_s[i, k]` at `batches[i]`, NaN where K was not measured.

    Linear between measured K of 1 and more, and between batch sizes of which both have a time. Not between plain
    decoding and the first K: a step that drafts starts with a jump, which a line would make look cheap. `timed` are the
    (batch, K) that were measured, where that is known.
    """

    batches: tuple[int, ...]
    step_s: FloatArray
    timed: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def from_cells(cls, cells: dict[tuple[int, int], float]) -> ChainTable:
        """The table of seconds by (batch, K), filled in between the measured K of each batch size."""
        batches = sorted({batch for batch, _ in cells})
        step_s = np.full((len(batches), 1 + max(K for _, K in cells)), np.nan)
        for row, batch in zip(step_s, batches, strict=True):
            row[0] = cells.get((batch, 0), np.nan)
            ks = sorted(K for b, K in cells if b == batch and K)
            if ks:
                times = [cells[batch, K] for K in ks]
                row[1:] = np.interp(np.arange(1, len(row)), ks, times, left=np.nan, right=np.nan)
        return cls(batches=tuple(batches), step_s=step_s, timed=frozenset(cells))

    def seconds(self, batch: IntArray, nodes: IntArray, depth: IntArray) -> FloatArray:
        """`[...]` seconds of chains; NaN for trees and beyond the table."""
        known = (nodes == depth + 1) & (nodes <= self.step_s.shape[1])
        K = np.where(known, nodes - 1, 0)
        low = np.clip(np.searchsorted(self.batches, batch, side="right") - 1, 0, None)
        high = np.minimum(low + 1, len(self.batches) - 1)
        grid = np.array(self.batches)
        span = np.maximum(grid[high] - grid[low], 1)
        share = (batch - grid[low]) / span
        # A batch size of the table does not need its neighbour.
        between = self.step_s[low, K] + np.where(share > 0, share * (self.step_s[high, K] - self.step_s[low, K]), 0.0)
        inside = known & (batch >= grid[0]) & (batch <= grid[-1])
        return np.asarray(np.where(inside, between, np.nan))

    def anchor(self, batch: IntArray, nodes: IntArray) -> Anchor:
        """The batch size within the table's, and the K nearest to N - 1 that it has there: plain only beside plain."""
        near = np.clip(batch, self.batches[0], self.batches[-1])
        ks = np.arange(self.step_s.shape[1])
        sizes, row = np.unique(near, return_inverse=True)
        wanted, column = np.unique(np.minimum(nodes - 1, ks[-1]), return_inverse=True)
        known = ~np.isnan(self.seconds(sizes[:, None], ks + 1, ks))
        # A step that drafts is beside one that drafts, wherever there is one.
        distance = np.abs(ks - wanted[:, None]) + _FAR * ((ks > 0) != (wanted[:, None] > 0))
        distance = np.where(known[:, None, :], distance, np.iinfo(np.int64).max)
        best = distance.argmin(axis=-1)
        return Anchor(near, best[row.reshape(near.shape), column.reshape(nodes.shape)] + 1)

    @property
    def max_tokens(self) -> int:
        """The most tokens per step that it has a time for."""
        known = ~np.isnan(self.step_s)
        return max(b * (1 + int(np.flatnonzero(row)[-1])) for b, row in zip(self.batches, known, strict=True))

    def reach(self) -> str:
        """What it covers, in words."""
        known = np.flatnonzero((~np.isnan(self.step_s)).any(axis=0))
        return f"batch {self.batches[0]} to {self.batches[-1]}, chains of K = {known[0]} to {known[-1]}"


@dataclass(frozen=True, kw_only=True)
class TreeTable:
    """Seconds of one tree and of plain decoding by batch size: `[batches]`, linear between those that were measured.

    NaN where one was not measured. The tree is known by its nodes and depth; no other has a time.
    """

    batches: tuple[int, ...]
    plain_s: FloatArray
    tree: DynamicTree
    tree_s: FloatArray

    def seconds(self, batch: IntArray, nodes: IntArray, depth: IntArray) -> FloatArray:
        """`[...]` seconds; NaN for other trees and beyond the table."""
        found = np.full(np.broadcast_shapes(np.shape(batch), np.shape(nodes), np.shape(depth)), np.nan)
        shapes = ((1, 0, self.plain_s), (self.tree.num_draft_tokens, self.tree.num_steps, self.tree_s))
        for N, D, known in shapes:
            there = ~np.isnan(known)
            at = _interpolated(batch, tuple(np.array(self.batches)[there].tolist()), tuple(known[there].tolist()))
            found = np.where((nodes == N) & (depth == D), at, found)
        return found

    def anchor(self, batch: IntArray, nodes: IntArray) -> Anchor:
        """The plain step at a batch size within the table's."""
        near = np.clip(batch, self.batches[0], self.batches[-1])
        return Anchor(near, np.ones(np.broadcast_shapes(np.shape(near), np.shape(nodes)), dtype=np.int64))

    @property
    def max_tokens(self) -> int:
        """The most tokens per step that it has a time for."""
        return int(np.array(self.batches)[~np.isnan(self.tree_s)].max()) * self.tree.num_draft_tokens

    def reach(self) -> str:
        """What it covers, in words."""
        return f"batch {self.batches[0]} to {self.batches[-1]}, plain decoding and {in_words(self.tree)}"


@dataclass(frozen=True, kw_only=True)
class TokenTable:
    """Seconds by the tokens of a step, B x N, however they were drafted: `[P]` rising tokens, their seconds; linear."""

    tokens: tuple[int, ...]
    step_s: tuple[float, ...]

    def seconds(self, batch: IntArray, nodes: IntArray, depth: IntArray) -> FloatArray:
        """`[...]` seconds; NaN outside the tokens."""
        return _interpolated(batch * nodes, self.tokens, self.step_s)

    def anchor(self, batch: IntArray, nodes: IntArray) -> Anchor:
        """The number of nodes nearest to N with which B x N is in the table."""
        return _token_anchor(np.minimum(batch, self.tokens[-1]), nodes, self.tokens)

    @property
    def max_tokens(self) -> int:
        """The most tokens per step that it has a time for."""
        return self.tokens[-1]

    def reach(self) -> str:
        """What it covers, in words."""
        return f"{self.tokens[0]} to {self.tokens[-1]} tokens per step"


@dataclass(frozen=True, kw_only=True)
class AdditiveTable:
    """Seconds as `bias_s` + a part by batch size + a part by the tokens of the step; each linear between its points."""

    bias_s: float
    batches: tuple[int, ...]
    batch_s: tuple[float, ...]
    tokens: tuple[int, ...]
    token_s: tuple[float, ...]

    def seconds(self, batch: IntArray, nodes: IntArray, depth: IntArray) -> FloatArray:
        """`[...]` seconds; NaN outside either range."""
        by_batch = _interpolated(batch, self.batches, self.batch_s)
        return self.bias_s + by_batch + _interpolated(batch * nodes, self.tokens, self.token_s)

    def anchor(self, batch: IntArray, nodes: IntArray) -> Anchor:
        """The batch size within the table's, and the number of nodes nearest to N with which B x N is in it."""
        near = np.clip(batch, self.batches[0], min(self.batches[-1], self.tokens[-1]))
        return _token_anchor(near, nodes, self.tokens)

    @property
    def max_tokens(self) -> int:
        """The most tokens per step that it has a time for."""
        return self.tokens[-1]

    def reach(self) -> str:
        """What it covers, in words."""
        batches = f"batch {self.batches[0]} to {self.batches[-1]}"
        return f"{batches} and {self.tokens[0]} to {self.tokens[-1]} tokens per step"


def known_times(cost: StepCost, batches: IntArray, nodes: IntArray, context: int) -> FloatArray:
    """`[batches, nodes]` seconds of chains as a cost model prices them, nodes with the root.

    Raises:
        InputError: a step that it has no time for.
    """
    B, N = batches[:, None], nodes[None, :]
    step_s = cost.step_time_s(B, N, N - 1, _chain_widths(N), context)
    if not np.isfinite(step_s).all():
        raise InputError("the cost has no time for some of these steps", hint="ask within what it covers")
    return step_s


def _interpolated(at: IntArray, points: tuple[int, ...], values: tuple[float, ...]) -> FloatArray:
    return np.asarray(np.interp(at, points, values, left=np.nan, right=np.nan))


def _token_anchor(batch: IntArray, nodes: IntArray, tokens: tuple[int, ...]) -> Anchor:
    lowest = -(-tokens[0] // batch)
    return Anchor(batch, np.clip(nodes, lowest, np.maximum(tokens[-1] // batch, lowest)))


def _chain_widths(nodes: IntArray) -> IntArray:
    depths = np.arange(max(int(nodes.max(initial=1)) - 1, 1))
    return np.asarray(depths < nodes[..., None] - 1, dtype=np.int64)
