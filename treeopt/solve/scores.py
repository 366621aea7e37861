"""All that one question may choose from, priced where it is judged, with a bound on every better tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.model import PathModel, exact_lengths, path_probabilities
from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Chains, StaticTrees
from treeopt.errors import SearchError
from treeopt.solve.best_trees import Family
from treeopt.solve.bound import Ideal, narrowest, split_by_width
from treeopt.solve.buckets import Bucket, share
from treeopt.solve.candidates import Options, Sizes, concatenate, tree_options
from treeopt.solve.candidates_by_family import offered, tree_of
from treeopt.solve.problem import TIE, Limits, Objective, Point, Problem
from treeopt.solve.result import Choice, Priced, RunnerUp
from treeopt.solve.time_limit import most_steps, steps_needed
from treeopt.tree import DraftTree

# Under a limit on the 99th percentile, options within this share of the best one are judged exactly, so many at a time.
_COUNTED: Final = 0.05
_COUNTED_AT_ONCE: Final = 8


class _Most(NamedTuple):
    """`[points, ...]` what no tree exceeds: the objective within all limits, and the headroom under time limits."""

    value: FloatArray
    headroom: FloatArray


class Space:
    """The options, their prices and the bound on every better one, for one question.

    `value [points, options]` is the objective, -inf where a limit forbids the option; `headroom` is that of
    `TimeLimit.headroom`, -inf where something else forbids it. Points are the ends of all ranges of batch sizes at
    both ends of the contexts.

    Raises:
        SearchError: the limits leave nothing at some batch size.
    """

    def __init__(self, question: Problem, ranks: PathModel, cost: StepCost) -> None:
        self.question, self.ranks, self.cost = question, ranks, cost
        sizes = sorted({size for ends in question.ranges for size in ends})
        contexts = sorted({question.context_min, question.context})
        self.points = [Point(b, c) for c in contexts for b in sizes]
        self._row = {point: row for row, point in enumerate(self.points)}
        found = offered(question.family, ranks, question.caps)
        self.options = found.options
        self._check()
        self._price()
        self.bound = self._bound(found.sizes)
        timed = question.objective is Objective.THROUGHPUT or question.time_limit.limits
        if timed and found.sizes is not None and found.by_width is not None and (self._open > TIE).any():
            self._narrow(found.sizes, found.by_width)

    def choices(self) -> list[Choice]:
        """The answer for every bucket."""
        loss, met = self._loss_and_met()
        buckets = (
            self._longest_first(loss, met)
            if isinstance(self.question.family, Chains) and self.question.family.longest_first
            else self._shared(loss, met)
        )
        return [self._choice(bucket, bool(met[bucket.first : bucket.last + 1].all())) for bucket in buckets]

    def _shared(self, loss: FloatArray, met: BoolArray) -> list[Bucket]:
        tie = TIE if self.question.objective is Objective.THROUGHPUT else 0.0
        return share(loss, size=self.options.nodes, tie=tie, sharing=self.question.sharing, kind=met)

    def _longest_first(self, loss: FloatArray, met: BoolArray) -> list[Bucket]:
        """The buckets in which no later range drafts deeper than the first one.

        Where those without that rule break it, all depths of the first range are tried; as without the rule, fewer
        buckets within the stated loss win, then the smaller largest loss.
        """
        depth, free = self.options.depth, self._shared(loss, met)
        if depth[free[0].option] == max(depth[bucket.option] for bucket in free):
            return free
        tried = []
        for first in np.unique(depth):
            capped = np.where(depth > first, np.inf, loss)
            capped[0, depth != first] = np.inf
            if np.isfinite(capped).any(axis=1).all():
                tried.append(self._shared(capped, met))
        return min(tried, key=self._rank)

    def _rank(self, buckets: Sequence[Bucket]) -> tuple[bool, float, float]:
        most, worst = self.question.sharing.max_loss, max(bucket.loss for bucket in buckets)
        return (worst > most, len(buckets) if worst <= most else 0, worst)

    def smaller(self, loss: float, most: int) -> list[Choice]:
        """For one bucket: the best tree of each smaller size that loses at most `loss` at its largest batch."""
        losses, met = self._loss_and_met()
        if not met.all():
            return []
        value, nodes = self.value[-1], self.options.nodes
        largest = nodes[value.argmax()]
        near = np.flatnonzero((value >= (1.0 - loss) * value.max()) & (nodes < largest))
        best_of_size = {int(nodes[i]): int(i) for i in near[np.argsort(value[near], kind="stable")]}
        worst = losses.max(axis=0)
        options = [option for _, option in sorted(best_of_size.items())]
        spaced = options[:: max(-(-len(options) // most), 1)]
        last = len(met) - 1
        return [self._choice(Bucket(0, last, option, float(worst[option])), True) for option in spaced]

    def values_under(self, cost: StepCost, point: Point) -> FloatArray:
        """`[options]` the objective at one point if steps cost something else, -inf where a limit forbids."""
        time_s = self.options.times_s(cost, [point])
        value, _ = self._allowed(self._objective(self.options.expected_tokens, time_s, [point]), time_s, [point])
        return np.asarray(value[0])

    def _price(self) -> None:
        self.time_s = self.options.times_s(self.cost, self.points)
        self._unlimited = self._objective(self.options.expected_tokens, self.time_s, self.points)
        self._steps = self._needed_steps(self._unlimited)
        self.value, self.headroom = self._allowed(self._unlimited, self.time_s, self.points)

    def _needed_steps(self, value: FloatArray) -> FloatArray:
        """`[options]` steps that 99 % of requests need, or more where that decides nothing; 1 without such a limit.

        Counting them takes most of a search. At each point the options of most `value [points, options]` that may be
        within the limits come first, until the best that are within are known; where none is, those that come closest.
        """
        latency, tokens, depth = self.question.time_limit, self.options.expected_tokens, self.options.depth
        if latency.max_p99_s is None:
            return np.ones(len(tokens))
        most = latency.most_headroom(tokens, self.time_s)
        most[self._forbidden(self.options, self.points)] = -np.inf
        steps = most_steps(tokens, depth, latency.output_tokens)
        known = np.zeros(len(tokens), dtype=np.bool_)
        asked = np.flatnonzero(self.options.nodes == depth + 1)  # the best chain is told beside every answer
        while len(asked):
            steps[asked], known[asked] = self._count_steps(asked), True
            headroom = np.where(np.isfinite(most), latency.headroom(tokens, self.time_s, steps), -np.inf)
            asked = self._undecided(value, headroom, np.where(known, headroom, most), known)
        return steps

    def _undecided(self, value: FloatArray, headroom: FloatArray, most: FloatArray, known: BoolArray) -> IntArray:
        """`[n]` options to count next: a few of each point that may be as good as the best one known there."""
        margin = max(_COUNTED, self.question.sharing.max_loss)
        best = np.where(headroom >= 1.0, value, -np.inf).max(axis=1, keepdims=True)
        closest = headroom.max(axis=1, keepdims=True)
        better = (most >= 1.0) & (headroom < 1.0) & (value >= best * (1.0 - margin))
        closer = (best == -np.inf) & ~better.any(axis=1, keepdims=True) & (most >= closest * (1.0 - margin))
        score = np.where(~known & (better | closer), np.where(better, value, most), -np.inf)
        first = np.argsort(-score, axis=1, kind="stable")[:, :_COUNTED_AT_ONCE]
        return np.unique(first[np.isfinite(np.take_along_axis(score, first, axis=1))])

    def _count_steps(self, options: IntArray) -> IntArray:
        """`[n]` steps that 99 % of requests need with the trees of these options."""
        trees = [tree_of(self.options.draft(option), self.ranks) for option in options.tolist()]
        together = DraftTree(tuple({path for tree in trees for path in tree.paths}))
        f_of = dict(zip(together.nodes, path_probabilities(self.ranks, together), strict=True))
        lengths = np.zeros((len(trees), together.depth + 1))
        for row, tree in zip(lengths, trees, strict=True):
            f = np.array([f_of[path] for path in tree.nodes])
            row[: tree.depth + 1] = exact_lengths(tree, f)
        return steps_needed(lengths, self.question.time_limit.output_tokens)

    def _objective(self, tokens: FloatArray, time_s: FloatArray, points: Sequence[Point]) -> FloatArray:
        if self.question.objective is Objective.LENGTH:
            return np.where(np.isfinite(time_s), tokens, 0.0)
        return np.asarray(_batches(points) * tokens / time_s)

    def _allowed(self, value: FloatArray, time_s: FloatArray, points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        headroom = self.question.time_limit.headroom(self.options.expected_tokens, time_s, self._steps)
        headroom[self._forbidden(self.options, points)] = -np.inf
        return np.where(headroom >= 1.0, value, -np.inf), headroom

    def _check(self) -> None:
        allowed = ~self._forbidden(self.options, self.points)
        if not allowed.any(axis=1).all():
            point = self.points[int(np.argmin(allowed.any(axis=1)))]
            raise SearchError(
                f"the limits leave nothing to draft at batch {point.batch}",
                hint="allow a larger budget or more nodes, or drafting nothing",
            )

    def _forbidden(self, options: Options | Sizes, points: Sequence[Point]) -> BoolArray:
        """`[points, C]` what B x N forbids, or the shape; under a budget plain decoding always may."""
        question, drafts = self.question, options.nodes > 1
        budget = question.budget_tokens
        if budget is None:
            budget = self.cost.ridge_tokens if question.objective is Objective.LENGTH else np.inf
        shallow = question.family.min_depth if isinstance(question.family, StaticTrees) else 0
        wrong = np.where(drafts, options.depth < shallow, not question.off_is_allowed)
        return np.asarray((_batches(points) * options.nodes > budget) & drafts | wrong)

    def _loss_and_met(self) -> tuple[FloatArray, BoolArray]:
        """`[ranges, C]` what each option loses against the best one, at the worst end of each range, and `[ranges]`
        whether some option stays within the latency limits at all ends.

        At a point where nothing stays within them the loss is that of the headroom; where something does, options
        that do not count as losing all and, beyond that, what they exceed.
        """
        best, most = self.value.max(axis=1, keepdims=True), self.headroom.max(axis=1, keepdims=True)
        within, possible = np.isfinite(self.value), np.isfinite(best)
        over = np.where(possible, 2.0 - self.headroom, 1.0 - self.headroom / np.where(possible, 1.0, most))
        loss = np.where(within, 1.0 - self.value / np.where(possible, best, 1.0), over)
        met = reduce(np.logical_and, within[self._corners]).any(axis=1)
        return np.asarray(reduce(np.maximum, loss[self._corners])), met

    def _loss_of(self, option: int, rows: IntArray) -> float:
        """The most that an option loses against the best one of a point, whether it is within the limits or not."""
        possible = np.isfinite(self.value[rows].max(axis=1, keepdims=True))
        best = np.where(possible, self.value[rows], self.headroom[rows]).argmax(axis=1)
        ratio = self._unlimited[rows, option] / self._unlimited[rows, best]
        return float(max(0.0, 1.0 - ratio.min()))

    @property
    def _corners(self) -> IntArray:
        """`[corners, ranges]` the rows of the points that every range is judged at."""
        contexts = dict.fromkeys((self.question.context_min, self.question.context))
        rows = [[self._row[Point(ends[i], c)] for ends in self.question.ranges] for c in contexts for i in (0, 1)]
        return np.array(rows, dtype=np.int64)

    def _bound(self, sizes: Sizes | None) -> _Most:
        """The bound by size; without sizes there are no other trees."""
        if sizes is None:
            return _Most(self.value.max(axis=1), self.headroom.max(axis=1))
        return self._most(sizes, [narrowest(sizes, self.cost, self.points)], self.points)

    def _most(self, sizes: Sizes, ideals: Iterable[Ideal], points: Sequence[Point]) -> _Most:
        """The bound over all classes of trees together; what was found is never above it."""
        rows = [self._row[point] for point in points]
        value, headroom = self.value[rows].max(axis=1), self.headroom[rows].max(axis=1)
        for ideal in ideals:
            most = self._ideal(sizes, ideal, points)
            value = np.maximum(value, most.value.max(axis=1, initial=-np.inf))
            headroom = np.maximum(headroom, most.headroom.max(axis=1, initial=-np.inf))
        return _Most(value, headroom)

    def _ideal(self, sizes: Sizes, ideal: Ideal, points: Sequence[Point]) -> _Most:
        """`[points, C]` what no tree of each class exceeds."""
        headroom = self.question.time_limit.most_headroom(ideal.tokens, ideal.time_s)
        headroom = np.where(self._forbidden(sizes, points), -np.inf, headroom)
        return _Most(np.where(headroom >= 1.0, self._objective(ideal.tokens, ideal.time_s, points), -np.inf), headroom)

    def _narrow(self, sizes: Sizes, by_width: Callable[[Limits], Sequence[Sequence[Family]]]) -> None:
        """Where the gap exceeds a tie: add the best trees of limited width, and bound what lies between them."""
        wide = [self.points[i] for i in np.flatnonzero(self._open > TIE)]
        rivals = sizes.only(np.unique(np.concatenate([self._rivals(sizes, point) for point in wide])))
        largest = replace(self.question.caps, max_nodes=int(rivals.nodes.max()), max_depth=int(rivals.depth.max()))
        widths = by_width(largest)
        narrow = concatenate([tree_options(families, sizes.levels) for families in widths])
        at = set(zip(rivals.nodes.tolist(), rivals.depth.tolist(), strict=True))
        kept = [size in at for size in zip(narrow.nodes.tolist(), narrow.depth.tolist(), strict=True)]
        self.options = concatenate([self.options, narrow.only(np.flatnonzero(kept))])
        self._price()
        for point in wide:
            row, left = self._row[point], rivals.only(self._rivals(rivals, point))
            finer = self._most(left, split_by_width(left, widths, self.cost, point), [point])
            for known, found in zip(self.bound, finer, strict=True):
                known[row] = min(known[row], found[0])

    def _rivals(self, sizes: Sizes, point: Point) -> IntArray:
        """The sizes that could hold a better tree than what was found: few, once the best of every size are known."""
        most, row = self._ideal(sizes, narrowest(sizes, self.cost, [point]), [point]), self._row[point]
        return np.flatnonzero((most.value[0] > self.value[row].max()) | (most.headroom[0] > self.headroom[row].max()))

    @property
    def _open(self) -> FloatArray:
        """`[points]` the gap that matters at each point."""
        return np.where(np.isfinite(self.value.max(axis=1)), self._gap(met=True), self._gap(met=False))

    def _gap(self, *, met: bool) -> FloatArray:
        """`[points]` the share by which a tree could at most beat the best option: in the objective, or in headroom."""
        if not met and not self.question.time_limit.limits:
            return np.zeros(len(self.points))
        bound, found = (self.bound.value, self.value) if met else (self.bound.headroom, self.headroom)
        best = found.max(axis=1)
        known = np.isfinite(best)
        gap = np.where(known, bound, 1.0) / np.where(known, best, 1.0) - 1.0
        return np.where(gap > 1e-9, gap, 0.0)

    def _choice(self, bucket: Bucket, met: bool) -> Choice:
        option = bucket.option
        batch_min, batch_max = self.question.ranges[bucket.first][0], self.question.ranges[bucket.last][1]
        contexts = (self.question.context_min, self.question.context)
        lows, high = [self._row[Point(batch_min, c)] for c in contexts], self._row[Point(batch_max, contexts[1])]
        within = np.array([batch_min <= point.batch <= batch_max for point in self.points])
        draft, scores = self.options.draft(option), (self.value if met else self.headroom)[high]
        tree = tree_of(draft, self.ranks)
        is_chain = (self.options.nodes == self.options.depth + 1) & (self.options.nodes > 1) & np.isfinite(scores)
        chains = np.where(is_chain, scores, -np.inf)
        plain = self._priced(high, 0)
        return Choice(
            batch_min=batch_min,
            batch_max=batch_max,
            tree=tree,
            path_probabilities=path_probabilities(self.ranks, tree),
            best=self._priced(high, option),
            chain=self._priced(high, int(chains.argmax())) if is_chain.any() else plain,
            plain=plain,
            runner_up=self._runner_up(high, option, scores),
            break_even_at_min=float((self.time_s[lows, option] / self.time_s[lows, 0]).max()),
            sharing_loss=self._loss_of(option, self._corners[:, bucket.first : bucket.last + 1].ravel()),
            gap=float(self._open[within].max()),
            meets_limit=met,
            dynamic=None if isinstance(draft, DraftTree) else draft,
        )

    def _runner_up(self, row: int, option: int, scores: FloatArray) -> RunnerUp | None:
        nodes, depth = self.options.nodes, self.options.depth
        others = np.where((nodes == nodes[option]) & (depth == depth[option]), -np.inf, scores)
        other = int(others.argmax())
        if not np.isfinite(others[other]) or not np.isfinite(self.time_s[row, other]):
            return None  # nothing else, or nothing that has a time
        objective = self._objective(self.options.expected_tokens, self.time_s[row : row + 1], [self.points[row]])[0]
        loss = float(1.0 - objective[other] / objective[option])
        return RunnerUp(draft=self.options.draft(other), option=self._priced(row, other), loss=loss)

    def _priced(self, row: int, option: int) -> Priced:
        time_s = float(self.time_s[row, option])
        tokens = float(self.options.expected_tokens[option])
        return Priced(
            nodes=int(self.options.nodes[option]),
            depth=int(self.options.depth[option]),
            expected_tokens=tokens,
            step_time_s=time_s,
            tokens_per_s=self.points[row].batch * tokens / time_s,
        )


def _batches(points: Sequence[Point]) -> FloatArray:
    """`[points, 1]` B."""
    return np.array([point.batch for point in points], dtype=np.float64)[:, None]
