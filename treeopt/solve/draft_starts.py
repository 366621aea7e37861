"""Every rival priced under the acceptance that it brings about itself.

Where a draft starts depends on the tree, and acceptance depends on where drafts start: each draft has its own. So a
search under one draft's starts only lists rivals; what each gives is its own replay, and the most of these wins. Then
rivals are listed under the winner's starts, and so on until no list brings a better one, and no tree of one node more
or less is better. Counts and tables without a trace stay as they were measured: there one list is all.

Of listed rivals those that may win are replayed (`rivals`), chains all are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.traffic import Traffic
from treeopt.arrays import BoolArray, FloatArray, IntArray, distinct
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import OFF, Chains, Draft, StaticTrees
from treeopt.solve.candidates import Candidates
from treeopt.solve.neighbours import list_neighbours
from treeopt.solve.options import Option, depth_of, nodes_of
from treeopt.solve.price import option, widths_of
from treeopt.solve.prices import Lengths, Prices, price_candidates
from treeopt.solve.problem import TIE, Point, Problem
from treeopt.solve.rivals import RivalList, list_rivals, screened
from treeopt.tree import DraftTree

# So often a list is made under another winner's starts.
_LISTS: Final = 24
# A list stands for all drafts that give by this share what they give in it.
_NEAR: Final = 0.003
# The neighbours of so many winners are looked at, and at least so many of each; less than a tie is not looked for.
_WINNERS: Final = 64
_NEIGHBOURS: Final = 3
# Of the drafts that a batch size may lose little by sharing, so many sizes are replayed.
_SHARED_SIZES: Final = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Rivals:
    """Candidates with E at their own draft starts, plain decoding first, and `[points]` the gap at each.

    `lists [points]` are those that each point's rivals came from. `listed_only`: the gap is to drafts of these lists.
    Where acceptance depends on draft starts a tree that stands in none, or was not replayed, may be better.
    """

    prices: Prices
    gap: FloatArray
    lists: tuple[RivalList, ...]
    traffic: Traffic
    listed_only: bool

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
    own = list_rivals(problem, points, traffic, None, cost)
    own.ratio[:] = 1.0
    prices, gap = own.bounded
    lists = (own,) * len(points)
    return Rivals(prices=prices, gap=gap, lists=lists, traffic=traffic, listed_only=False)


def rivals_at(problem: Problem, point: Point, traffic: Traffic, cost: StepCost) -> Rivals:
    """The drafts that may be the best one for one batch size and context."""
    return priced_rivals(problem.at(point), [point], traffic, cost)


def _own_lengths(traffic: Traffic) -> Lengths:
    def lengths(drafts: Sequence[Draft]) -> FloatArray:
        own = [traffic.lengths(draft) for draft in drafts]
        width = max(len(row) for row in own)
        return np.stack([np.pad(row, (0, width - len(row))) for row in own])

    return lengths


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
    lists: dict[Draft, RivalList] = field(default_factory=dict)
    around: dict[DraftTree, RivalList] = field(default_factory=dict)

    def run(self, known: Sequence[Draft]) -> Rivals:
        for draft in (OFF, *known):
            self.tokens(draft)
        # Only where to start from: without the children cap, which is the dearest to list under.
        free = replace(self.problem, limits=replace(self.problem.limits, max_children=None))
        start = list_rivals(free, self.points, self.traffic, None, self.cost).prices
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
            for row, own in rows:
                self._screen(own, row, standing)
            if not rows and not self._screen_neighbours(standing):
                break
        last = list(self.lists.values())[-1]
        lists = tuple(own or last for own in near)
        if self.share > 0.0:
            for row, own in enumerate(lists):
                self._replay_shared(own, row, standing)
        gap = np.array([own.bounded.gap[row] for row, own in enumerate(lists)])
        return Rivals(
            prices=self._prices(),
            gap=gap,
            lists=lists,
            traffic=self.traffic,
            listed_only=not isinstance(self.problem.family, Chains),
        )

    def tokens(self, draft: Draft) -> float:
        """E at the draft's own starts, which makes it one of the candidates."""
        if draft not in self.found:
            self.found[draft] = self.traffic.tokens(draft)
            self.widths.append(widths_of(draft, max(depth_of(draft), 1)))
        return self.found[draft]

    def _list_under(self, draft: Draft) -> None:
        """List rivals under a draft's starts; chains, the draft itself and each point's best are replayed at once."""
        self.lists[draft] = own = list_rivals(self.problem, self.points, self.traffic, draft, self.cost)
        candidates = own.prices.candidates
        chains = np.flatnonzero(candidates.nodes == candidates.depth + 1)
        asked = np.concatenate([chains, candidates.of_size(nodes_of(draft), depth_of(draft))])
        own.replay(distinct(np.append(asked, own.prices.scores.argmax(axis=1))).tolist(), self)

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

    def _near(self, winner: Draft) -> RivalList | None:
        """The list under whose starts a draft gives about what it really gives, if there is one."""
        if winner in self.lists:
            return self.lists[winner]
        off = [(abs(self._ratio(winner, own) - 1.0), i) for i, own in enumerate(self.lists.values())]
        least, at = min(off)
        return list(self.lists.values())[at] if least <= _NEAR else None

    def _ratio(self, draft: Draft, own: RivalList) -> float:
        candidates = own.prices.candidates
        same = candidates.of_size(nodes_of(draft), depth_of(draft))
        return self.found[draft] / float(candidates.tokens[same].max()) if len(same) else np.inf

    def _screen(self, own: RivalList, row: int, standing: _Standing) -> None:
        """Replay whatever may be better at a point than the best that was replayed."""
        scores, met = standing.prices.scores[row], bool(standing.prices.met[row])
        screened(own, own.prices, row, float(scores.max()), met, self)
        # The best draft of another size is told beside the answer.
        sized, listed, winner = standing.prices.candidates, own.prices.candidates, int(scores.argmax())
        nodes, depth = int(sized.nodes[winner]), int(sized.depth[winner])
        second = np.where((sized.nodes == nodes) & (sized.depth == depth), -np.inf, scores).max(initial=-np.inf)
        screened(own, own.prices, row, float(second), met, self, without=listed.of_size(nodes, depth))
        own.screened.add(row)

    def _screen_neighbours(self, standing: _Standing) -> bool:
        """Replay the winners' neighbours that may be better; whether there was a winner that had not been looked at."""
        if not isinstance(self.problem.family, StaticTrees):  # lists hold the whole family
            return False
        looked = False
        for row, winner in enumerate(standing.winners):
            own = self._around(winner) if isinstance(winner, DraftTree) and winner.paths else None
            if own is None or row in own.screened:
                continue
            first = np.argsort(-own.prices.scores[row], kind="stable")[:_NEIGHBOURS]
            own.replay([0, *first.tolist()], self)
            best, met = float(standing.prices.scores[row].max()), bool(standing.prices.met[row])
            screened(own, own.prices, row, best * (1.0 + TIE), met, self)
            own.screened.add(row)
            looked = True
        return looked

    def _around(self, winner: DraftTree) -> RivalList | None:
        """The winner and its neighbours; None where enough were looked at."""
        if winner not in self.around and len(self.around) < _WINNERS:
            self.around[winner] = list_neighbours(self.problem, self.points, self.traffic, winner, self.cost)
        return self.around.get(winner)

    def _replay_shared(self, own: RivalList, row: int, standing: _Standing) -> None:
        """Replay drafts of several sizes that lose little at a point: another point may share one of them."""
        listed, best = own.prices, float(standing.prices.scores[row].max())
        near: BoolArray = listed.scores[row] >= best * (1.0 - self.share)
        value, nodes = listed.scores[row], listed.candidates.nodes
        if len(self.points) == 1:  # nobody to share with: a smaller one may be as good as can be told
            near &= nodes < nodes_of(standing.winners[row])
        options = np.flatnonzero(near)
        of_size = {int(nodes[i]): int(i) for i in options[np.argsort(value[options], kind="stable")]}
        sizes = np.array([of_size[n] for n in sorted(of_size)], dtype=np.int64)
        own.replay(sizes[:: max(-(-len(sizes) // _SHARED_SIZES), 1)].tolist(), self)


def _always(draft: Draft) -> Callable[[], Draft]:
    return lambda: draft
