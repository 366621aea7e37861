"""Rivals listed under one draft's starts, and which of them could win.

Not every listed rival is replayed: E under the lister's starts, times the most that any replayed rival gained over
that, says which could win. The more acceptance depends on the starts, the more are replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from treeopt.acceptance.model import PathModel, exact_lengths, path_probabilities
from treeopt.acceptance.traffic import Traffic
from treeopt.arrays import FloatArray, IntArray
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Draft, DynamicTrees
from treeopt.solve.bound import Bounded, bounded
from treeopt.solve.candidates_by_family import list_candidates, tree_of
from treeopt.solve.prices import Lengths, Prices, price_candidates
from treeopt.solve.problem import Point, Problem
from treeopt.tree import DraftTree

# Replayed at once; the replayed rivals of next larger and smaller E that tell what another may give, and the share by
# which it may give more than any of them.
_AT_ONCE: Final = 4
_NEAREST: Final = 3
_SLACK: Final = 0.003


@dataclass(eq=False)
class RivalList:
    """The drafts listed under one draft's starts; `ratio [C]` is what each really gives over that, NaN if not replayed.

    `screened` are the points at which all that may win were replayed.
    """

    bounded: Bounded
    ratio: FloatArray = field(init=False)
    screened: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ratio = np.full(len(self.prices.candidates.nodes), np.nan)

    @property
    def prices(self) -> Prices:
        """The prices under those starts."""
        return self.bounded.prices

    def replay(self, asked: Iterable[int], replays: OwnStarts) -> None:
        """Learn what candidates really give."""
        candidates = self.prices.candidates
        for i in asked:
            self.ratio[i] = replays.tokens(candidates.draft(i)) / candidates.tokens[i]

    def most(self) -> FloatArray:
        """`[C]` the most that each candidate may give over its listed E, by the replayed ones of the nearest E."""
        known = np.flatnonzero(~np.isnan(self.ratio))
        tokens = self.prices.candidates.tokens
        order = known[np.argsort(tokens[known], kind="stable")]
        padded = np.pad(self.ratio[order], _NEAREST, mode="edge")
        highest = np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEAREST).max(axis=1)
        return np.asarray(highest[np.searchsorted(tokens[order], tokens)] * (1.0 + _SLACK))


class OwnStarts(Protocol):
    """What tells E where each draft's own drafts start."""

    def tokens(self, draft: Draft) -> float:
        """E at the draft's own starts."""


def _model(problem: Problem, traffic: Traffic, draft: Draft | None) -> PathModel:
    """f where a draft's own drafts start, with the E of dynamic trees where those are asked for."""
    return traffic.valued_under(draft) if isinstance(problem.family, DynamicTrees) else traffic.model_under(draft)


def list_rivals(
    problem: Problem, points: Sequence[Point], traffic: Traffic, draft: Draft | None, cost: StepCost
) -> RivalList:
    """The family's candidates under a draft's starts (None: at all positions), priced.

    Raises:
        SearchError: the limits leave nothing at some point.
    """
    model, family, caps = _model(problem, traffic, draft), problem.family, problem.caps
    listed = traffic.recall(("candidates", family, caps, draft), lambda: list_candidates(family, model, caps))
    lengths = lengths_under(model)
    prices = price_candidates(problem, points, listed.candidates, cost, lengths)
    return RivalList(bounded=bounded(prices, listed, cost, lengths))


def lengths_under(model: PathModel) -> Lengths:
    """How many tokens steps of drafts accept under one f for all."""

    def lengths(drafts: Sequence[Draft]) -> FloatArray:
        trees = [tree_of(draft, model) for draft in drafts]
        together = DraftTree(tuple({path for tree in trees for path in tree.paths}))
        f_of = dict(zip(together.nodes, path_probabilities(model, together), strict=True))
        found = np.zeros((len(trees), together.depth + 1))
        for row, tree in zip(found, trees, strict=True):
            row[: tree.depth + 1] = exact_lengths(tree, np.array([f_of[path] for path in tree.nodes]))
        return found

    return lengths


def screened(
    own: RivalList,
    listed: Prices,
    row: int,
    best: float,
    met: bool,
    replayed: OwnStarts,
    *,
    without: IntArray | None = None,
) -> int | None:
    """The listed candidate that beats the best one known at a point, None if none does; the likeliest come first.

    Args:
        own: the list, which learns what each replayed candidate gives over what it is listed with.
        listed: its candidates, priced.
        row: the point.
        best: the best score known there.
        met: whether that is within the time limits.
        replayed: what tells E at a draft's own starts.
        without: candidates that do not count.
    """
    winner, left = None, np.ones(len(own.ratio), dtype=np.bool_)
    left[[] if without is None else without] = False
    while True:
        known = ~np.isnan(own.ratio)
        found = np.where(known & left, _scores(listed, row, own.ratio, met), -np.inf)
        if np.isfinite(found.max()) and found.max() > best:
            best, winner = float(found.max()), int(found.argmax())
        hoped = np.where(known | ~left, -np.inf, _scores(listed, row, own.most(), met))
        asked = [i for i in np.argsort(-hoped, kind="stable")[:_AT_ONCE].tolist() if hoped[i] > best]
        if not asked:
            return winner
        own.replay(asked, replayed)


def _scores(listed: Prices, row: int, ratio: FloatArray, met: bool) -> FloatArray:
    """`[C]` what is best at a point if each candidate gives `ratio` times what it is listed with (`Prices.scores`)."""
    value, headroom = listed.objective[row] * ratio, listed.headroom[row] * ratio
    return np.where(headroom >= 1.0, value if met else np.inf, -np.inf if met else headroom)
