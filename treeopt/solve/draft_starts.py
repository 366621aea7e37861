"""Every rival priced under the acceptance that it brings about itself.

Where a draft starts depends on the tree, and acceptance depends on where drafts start: each draft has its own. So a
search under one draft's starts only lists rivals; what each gives is its own replay, and the most of these wins. Then
rivals are listed under the winner's starts, and so on until no list brings a better one. Counts and tables without a
trace stay as they were measured: there one list is all.

Not every listed rival is replayed: E under the lister's starts, times the most that any replayed rival gained over
that, says which could win. The more acceptance depends on the starts, the more are replayed. Chains all are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

import numpy as np

from treeopt.acceptance.model import PathModel, exact_lengths, path_probabilities
from treeopt.acceptance.traffic import Traffic
from treeopt.arrays import BoolArray, FloatArray, IntArray, distinct
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import OFF, Chains, Draft, DynamicTrees
from treeopt.solve.bound import Bounded, bounded
from treeopt.solve.bucket import Option, depth_of, nodes_of
from treeopt.solve.candidates import Candidates
from treeopt.solve.candidates_by_family import list_candidates, tree_of
from treeopt.solve.price import option, widths_of
from treeopt.solve.prices import Lengths, Prices, price_candidates
from treeopt.solve.problem import Point, Problem
from treeopt.tree import DraftTree

# So often a list is made under another winner's starts.
_LISTS: Final = 24
# A list stands for all drafts that give by this share what they give in it.
_NEAR: Final = 0.003
# Replayed at once; the replayed rivals of next larger and smaller E that tell what another may give, and the share by
# which it may give more than any of them.
_AT_ONCE: Final = 4
_NEAREST: Final = 3
_SLACK: Final = 0.003
# Of the drafts that a batch size may lose little by sharing, so many sizes are replayed.
_SHARED_SIZES: Final = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Rivals:
    """Candidates with E at their own draft starts, plain decoding first, and `[points]` the gap at each.

    `lists [points]` are those that each point's rivals came from. `all_priced`: no draft of the
    family is left out. Trees are, where acceptance depends on draft starts: one that no list holds may be better,
    by 1 % in one of the random traces of the tests.
    """

    prices: Prices
    gap: FloatArray
    lists: tuple[_List, ...]
    traffic: Traffic
    all_priced: bool

    def fastest(self, cost: StepCost, row: int = 0) -> Option:
        """The best draft at a point within all limits if steps cost something else, every rival at its own starts."""
        point, own = self.prices.points[row], self.lists[row]
        known, listed = self.prices.at([point], cost), own.prices.at([point], cost)
        best = screened(own, listed, 0, float(known.scores[0].max()), bool(known.met[0]), self.traffic)
        if best is None:
            found, i = known, int(known.scores[0].argmax())
            return option(
                found.candidates.draft(i), float(found.candidates.tokens[i]), float(found.time_s[0, i]), point.batch
            )
        draft = listed.candidates.draft(best)
        return option(draft, self.traffic.tokens(draft), float(listed.time_s[0, best]), point.batch)


def priced_rivals(
    problem: Problem,
    points: Sequence[Point],
    traffic: Traffic,
    cost: StepCost,
    *,
    share: float = 0.0,
    known: Sequence[Draft] = (),
) -> Rivals:
    """All drafts that may be the best one at some point, each at its own draft starts.

    Args:
        problem: what is asked; its batch sizes do not matter here.
        points: where.
        traffic: the acceptance.
        cost: the price.
        share: drafts that lose up to this share at a point are wanted too, for neighbours to share.
        known: drafts that are priced in any case.

    Raises:
        SearchError: the limits leave nothing at some point.
    """
    if traffic.depends_on_the_tree:
        return _Search(problem, tuple(points), traffic, cost, share).run(known)
    prices, gap = bounded = _listed(problem, points, traffic, None, cost)
    own = _List(bounded=bounded, ratio=np.ones(len(prices.candidates.nodes)))
    lists = (own,) * len(points)
    return Rivals(prices=prices, gap=gap, lists=lists, traffic=traffic, all_priced=not gap.any())


def rivals_at(problem: Problem, point: Point, traffic: Traffic, cost: StepCost) -> Rivals:
    """The drafts that may be the best one for one batch size and context."""
    return priced_rivals(problem.at(point), [point], traffic, cost)


def _model(problem: Problem, traffic: Traffic, draft: Draft | None) -> PathModel:
    """f where a draft's own drafts start, with the E of dynamic trees where those are asked for."""
    return traffic.valued_under(draft) if isinstance(problem.family, DynamicTrees) else traffic.model_under(draft)


def _listed(
    problem: Problem, points: Sequence[Point], traffic: Traffic, draft: Draft | None, cost: StepCost
) -> Bounded:
    """The family's candidates under a draft's starts, priced."""
    model, family, caps = _model(problem, traffic, draft), problem.family, problem.caps
    listed = traffic.recall(("candidates", family, caps, draft), lambda: list_candidates(family, model, caps))
    lengths = _lengths_under(model)
    prices = price_candidates(problem, points, listed.candidates, cost, lengths)
    return bounded(prices, listed, cost, lengths)


def _lengths_under(model: PathModel) -> Lengths:
    def lengths(drafts: Sequence[Draft]) -> FloatArray:
        trees = [tree_of(draft, model) for draft in drafts]
        together = DraftTree(tuple({path for tree in trees for path in tree.paths}))
        f_of = dict(zip(together.nodes, path_probabilities(model, together), strict=True))
        found = np.zeros((len(trees), together.depth + 1))
        for row, tree in zip(found, trees, strict=True):
            row[: tree.depth + 1] = exact_lengths(tree, np.array([f_of[path] for path in tree.nodes]))
        return found

    return lengths


def _own_lengths(traffic: Traffic) -> Lengths:
    def lengths(drafts: Sequence[Draft]) -> FloatArray:
        own = [traffic.lengths(draft) for draft in drafts]
        width = max(len(row) for row in own)
        return np.stack([np.pad(row, (0, width - len(row))) for row in own])

    return lengths


@dataclass(eq=False)
class _List:
    """The drafts listed under one draft's starts; `ratio [C]` is what each really gives over that, NaN if not replayed.

    `screened` are the points at which all that may win were replayed.
    """

    bounded: Bounded
    ratio: FloatArray
    screened: set[int] = field(default_factory=set)

    @property
    def prices(self) -> Prices:
        """The prices under those starts."""
        return self.bounded.prices

    def most(self) -> FloatArray:
        """`[C]` the most that each candidate may give over its listed E, by the replayed ones of the nearest E."""
        known = np.flatnonzero(~np.isnan(self.ratio))
        tokens = self.prices.candidates.tokens
        order = known[np.argsort(tokens[known], kind="stable")]
        padded = np.pad(self.ratio[order], _NEAREST, mode="edge")
        highest = np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEAREST).max(axis=1)
        return np.asarray(highest[np.searchsorted(tokens[order], tokens)] * (1.0 + _SLACK))


class _Replays(Protocol):
    def tokens(self, draft: Draft) -> float:
        """E at the draft's own starts."""


class _Standing(NamedTuple):
    """What was replayed, priced, and the best of it at each point."""

    prices: Prices
    winners: list[Draft]


@dataclass(eq=False)
class _Search:
    """Drafts replayed so far, in the order of their coming, and the lists made."""

    problem: Problem
    points: tuple[Point, ...]
    traffic: Traffic
    cost: StepCost
    share: float
    found: dict[Draft, float] = field(default_factory=dict)
    widths: list[IntArray] = field(default_factory=list)
    lists: dict[Draft, _List] = field(default_factory=dict)

    def run(self, known: Sequence[Draft]) -> Rivals:
        for draft in (OFF, *known):
            self.tokens(draft)
        # Only where to start from: without the children cap, which is the dearest to list under.
        free = replace(self.problem, limits=replace(self.problem.limits, max_children=None))
        start = _listed(free, self.points, self.traffic, None, self.cost).prices
        middle = len(self.points) // 2
        self._list_under(start.candidates.draft(int(start.scores[middle].argmax())))
        while True:
            standing = self._standing()
            near = [self._near(winner) for winner in standing.winners]
            unlisted = [winner for winner, own in zip(standing.winners, near, strict=True) if own is None]
            if unlisted and len(self.lists) < _LISTS:
                self._list_under(unlisted[0])
                continue
            rows = [(row, own) for row, own in enumerate(near) if own is not None and row not in own.screened]
            if not rows:
                break
            for row, own in rows:
                self._screen(own, row, standing)
        last = list(self.lists.values())[-1]
        lists = tuple(own or last for own in near)
        if self.share > 0.0:
            for row, own in enumerate(lists):
                self._replay_neighbours(own, row, standing)
        gap = np.array([own.bounded.gap[row] for row, own in enumerate(lists)])
        return Rivals(
            prices=self._prices(),
            gap=gap,
            lists=lists,
            traffic=self.traffic,
            all_priced=isinstance(self.problem.family, Chains),
        )

    def tokens(self, draft: Draft) -> float:
        """E at the draft's own starts, which makes it one of the candidates."""
        if draft not in self.found:
            self.found[draft] = self.traffic.tokens(draft)
            self.widths.append(widths_of(draft, max(depth_of(draft), 1)))
        return self.found[draft]

    def _list_under(self, draft: Draft) -> None:
        """List rivals under a draft's starts; chains, the draft itself and each point's best are replayed at once."""
        own = _listed(self.problem, self.points, self.traffic, draft, self.cost)
        candidates = own.prices.candidates
        self.lists[draft] = made = _List(bounded=own, ratio=np.full(len(candidates.nodes), np.nan))
        chains = np.flatnonzero(candidates.nodes == candidates.depth + 1)
        asked = np.concatenate([chains, candidates.of_size(nodes_of(draft), depth_of(draft))])
        self._replay_listed(made, distinct(np.append(asked, own.prices.scores.argmax(axis=1))))

    def _replay_listed(self, own: _List, asked: IntArray) -> None:
        candidates = own.prices.candidates
        for i in asked.tolist():
            own.ratio[i] = self.tokens(candidates.draft(i)) / candidates.tokens[i]

    def _prices(self) -> Prices:
        """All that was replayed, as it was replayed."""
        drafts = tuple(self.found)
        levels = max(len(row) for row in self.widths)
        candidates = Candidates(
            nodes=np.array([nodes_of(draft) for draft in drafts], dtype=np.int64),
            depth=np.array([depth_of(draft) for draft in drafts], dtype=np.int64),
            widths=np.stack([np.pad(row, (0, levels - len(row))) for row in self.widths]),
            tokens=np.array(list(self.found.values())),
            makers=tuple(_always(draft) for draft in drafts),
        )
        return price_candidates(self.problem, self.points, candidates, self.cost, _own_lengths(self.traffic))

    def _standing(self) -> _Standing:
        prices = self._prices()
        best = prices.scores.argmax(axis=1)
        return _Standing(prices, [prices.candidates.draft(int(i)) for i in best])

    def _near(self, winner: Draft) -> _List | None:
        """The list under whose starts a draft gives about what it really gives, if there is one."""
        if winner in self.lists:
            return self.lists[winner]
        off = [(abs(self._ratio(winner, own) - 1.0), i) for i, own in enumerate(self.lists.values())]
        least, at = min(off)
        return list(self.lists.values())[at] if least <= _NEAR else None

    def _ratio(self, draft: Draft, own: _List) -> float:
        candidates = own.prices.candidates
        same = candidates.of_size(nodes_of(draft), depth_of(draft))
        return self.found[draft] / float(candidates.tokens[same].max()) if len(same) else np.inf

    def _screen(self, own: _List, row: int, standing: _Standing) -> None:
        """Replay whatever may be better at a point than the best that was replayed."""
        scores, met = standing.prices.scores[row], bool(standing.prices.met[row])
        screened(own, own.prices, row, float(scores.max()), met, self)
        # The best draft of another size is told beside the answer.
        sized, listed, winner = standing.prices.candidates, own.prices.candidates, int(scores.argmax())
        nodes, depth = int(sized.nodes[winner]), int(sized.depth[winner])
        second = np.where((sized.nodes == nodes) & (sized.depth == depth), -np.inf, scores).max(initial=-np.inf)
        screened(own, own.prices, row, float(second), met, self, without=listed.of_size(nodes, depth))
        own.screened.add(row)

    def _replay_neighbours(self, own: _List, row: int, standing: _Standing) -> None:
        """Replay drafts of several sizes that lose little at a point: another point may share one of them."""
        listed, best = own.prices, float(standing.prices.scores[row].max())
        near: BoolArray = listed.scores[row] >= best * (1.0 - self.share)
        value, nodes = listed.scores[row], listed.candidates.nodes
        if len(self.points) == 1:  # nobody to share with: a smaller one may be as good as can be told
            near &= nodes < nodes_of(standing.winners[row])
        options = np.flatnonzero(near)
        of_size = {int(nodes[i]): int(i) for i in options[np.argsort(value[options], kind="stable")]}
        sizes = np.array([of_size[n] for n in sorted(of_size)], dtype=np.int64)
        self._replay_listed(own, sizes[:: max(-(-len(sizes) // _SHARED_SIZES), 1)])


def screened(
    own: _List,
    listed: Prices,
    row: int,
    best: float,
    met: bool,
    replayed: _Replays,
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
        for i in asked:
            own.ratio[i] = replayed.tokens(listed.candidates.draft(i)) / listed.candidates.tokens[i]


def _scores(listed: Prices, row: int, ratio: FloatArray, met: bool) -> FloatArray:
    """`[C]` what is best at a point if each candidate gives `ratio` times what it is listed with (`Prices.scores`)."""
    value, headroom = listed.objective[row] * ratio, listed.headroom[row] * ratio
    return np.where(headroom >= 1.0, value if met else np.inf, -np.inf if met else headroom)


def _always(draft: Draft) -> Callable[[], Draft]:
    return lambda: draft
