"""The choice under the acceptance that it brings about itself, with what is known about the number.

Where a draft starts depends on the tree, and the tree depends on the acceptance at draft starts. From a trace both are
settled together (`treeopt.acceptance.starts`); counts and tables stay as they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treeopt.acceptance.intervals import Interval, counted_interval, interval_of
from treeopt.acceptance.model import PathModel, path_probabilities
from treeopt.acceptance.starts import settled_model
from treeopt.acceptance.traffic import Traffic
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Chains, Draft, DynamicTrees
from treeopt.solve.bucket import Category
from treeopt.solve.buckets import Sharing
from treeopt.solve.problem import Objective, Point, Problem
from treeopt.solve.result import Choice, Priced
from treeopt.solve.search import search, search_with_smaller
from treeopt.solve.time_limit import TimePerToken, documents_p99, steps_needed, time_per_token
from treeopt.tree import DraftTree

# Smaller trees within this share of the best are asked whether the trace can tell them apart, at most so many.
_RIVAL_LOSS = 0.02
_RIVALS = 8


@dataclass(frozen=True, kw_only=True)
class Settled:
    """A choice with its question, the 95 % interval of its E (None where the evidence allows none) and its time per
    token at the largest batch and context.

    `resolvable` is the smallest share of tokens/s between the choice and its runner-up that the documents can tell.
    """

    question: Problem
    choice: Choice
    tokens: Interval | None
    time_per_token: TimePerToken
    resolvable: float | None
    categories: tuple[Category, ...]


def settled_search(question: Problem, evidence: Traffic, cost: StepCost, *, seed: int = 0) -> list[Settled]:
    """Search all batch sizes, then settle each bucket under its own tree's draft starts.

    The buckets are formed under f at the draft starts of the middle batch size's tree; one that loses more by sharing
    under its own than was allowed is divided.
    """
    return _Settler(question, evidence, cost, seed).all()


def held_out_tokens(draft: Draft, evidence: Traffic, *, seed: int = 0) -> tuple[float, Interval | None]:
    """E of a draft on documents that it was not chosen on, and its interval."""
    replays = evidence.replays(draft)
    tokens = sum(part.weight * r.tokens_per_step for part, r in zip(evidence.parts, replays, strict=True))
    return tokens, interval_of(evidence.drawn_tokens(draft, seed), evidence.documents)


class _Settler:
    """One question to one body of evidence."""

    def __init__(self, question: Problem, evidence: Traffic, cost: StepCost, seed: int) -> None:
        self.question, self.evidence, self.cost, self.seed = question, evidence, cost, seed
        self._alone: dict[Point, Choice] = {}
        self._models: dict[tuple[object, ...], PathModel] = {}

    def all(self) -> list[Settled]:
        evidence, question = self.evidence, self.question
        settled: list[Settled] = []
        waiting = self._buckets()
        spare = min(question.sharing.max_trees or len(question.batches), len(question.batches)) - len(waiting)
        while waiting:
            own = waiting.pop(0)
            if settled and isinstance(question.family, Chains) and question.family.longest_first:
                own = _no_deeper(own, settled[0].choice.tree.depth)
            traced = evidence.depends_on_the_tree
            choice = self._settle(own) if traced else search(own, self._under(None), self.cost)[0]
            if spare > 0 and len(own.batches) > 1 and choice.sharing_loss > question.sharing.max_loss:
                waiting[:0] = self._divided(own)
                spare -= 1
                continue
            times = self._times(choice, own)
            settled.append(
                Settled(
                    question=own,
                    choice=replace(choice, meets_limit=all(map(question.time_limit.within, times))),
                    time_per_token=times[-1],
                    tokens=_tokens_interval(choice, evidence, self.seed),
                    resolvable=_resolvable(choice, evidence, self.seed),
                    categories=_categories(choice, own, evidence, self.cost),
                )
            )
        return settled

    def _buckets(self) -> list[Problem]:
        """One question for every bucket, which are formed at the draft starts of the middle batch size's tree."""
        question, batches = self.question, self.question.batches
        if len(batches) == 1:
            return [self._of_batches(*question.ranges[0])]
        middle = question.at(Point(batches[len(batches) // 2], question.context))
        found = search(question, self._model(middle), self.cost)
        return [self._of_batches(choice.batch_min, choice.batch_max) for choice in found]

    def _divided(self, own: Problem) -> list[Problem]:
        """A bucket in two, where its own draft starts say that both lose least, else in the middle."""
        two = replace(own, sharing=Sharing(max_loss=0.0, max_trees=2))
        ends = [choice.batch_max for choice in search(two, self._model(own), self.cost)][:-1]
        end = ends[0] if ends else own.batches[len(own.batches) // 2 - 1]
        low, high = own.ranges[0][0], own.batches[-1]
        return [self._of_batches(low, end), self._of_batches(end + 1, high)]

    def _of_batches(self, low: int, high: int) -> Problem:
        """The question for one tree for the listed batch sizes from `low` to `high`."""
        listed = tuple(b for b in self.question.batches if low <= b <= high)
        one_tree = replace(self.question.sharing, max_trees=1)
        return replace(self.question, batches=listed, first_batch=low, sharing=one_tree)

    def _under(self, draft: Draft | None) -> PathModel:
        """f where a draft's own drafts start, with the E of dynamic trees where those are asked for."""
        evidence = self.evidence
        return evidence.valued_under(draft) if self._dynamic else evidence.model_under(draft)

    @property
    def _dynamic(self) -> bool:
        return isinstance(self.question.family, DynamicTrees)

    def _model(self, question: Problem) -> PathModel:
        if not self.evidence.depends_on_the_tree:
            return self._under(None)
        key = (question.ranges, question.ends)
        if key not in self._models:
            one_tree = replace(question, sharing=replace(question.sharing, max_trees=1))
            choose = lambda model: search(one_tree, model, self.cost)[0].draft  # noqa: E731
            self._models[key] = settled_model(self._under, choose, self.evidence.tokens)
        return self._models[key]

    def _settle(self, question: Problem) -> Choice:
        """The bucket's choice at its own draft starts; for one batch size the smallest that cannot be told from it."""
        model = self._model(question)
        if len(question.ends) == 1:
            choice, smaller = search_with_smaller(question, model, self.cost, loss=_RIVAL_LOSS, most=_RIVALS)
            if question.objective is Objective.THROUGHPUT and self.evidence.can_be_replayed:
                choice = _smallest_tie(choice, smaller, self.evidence, self.seed)
            return self._at_own_starts(choice)
        choice = self._at_own_starts(search(question, model, self.cost)[0])
        return replace(choice, sharing_loss=max(self._loss(choice.draft, point) for point in question.ends))

    def _loss(self, draft: Draft, point: Point) -> float:
        """What the draft loses at a point against the best one there, each at its own draft starts."""
        if point not in self._alone:
            question = self.question.at(point)
            self._alone[point] = self._at_own_starts(search(question, self._model(question), self.cost)[0])
        best, ours = self._alone[point].best, self._price(draft, point)
        return max(0.0, 1.0 - self._value(ours) / self._value(best))

    def _price(self, draft: Draft, point: Point) -> Priced:
        return self.evidence.price(draft, self.cost, point)

    def _times(self, choice: Choice, question: Problem) -> list[TimePerToken]:
        """The time per token at the ends of the choice's range; all of them only where a limit asks."""
        ends = question.ends if question.time_limit.limits else question.ends[-1:]
        times = [self._time(choice, end, question.time_limit.output_tokens) for end in ends]
        if len(self.evidence.parts) == 1 and self.evidence.can_be_replayed:
            steps = documents_p99(self.evidence.replays(choice.draft)[0])
            own_s = None if steps is None else steps * self._price(choice.draft, ends[-1]).step_time_s
            times[-1] = times[-1]._replace(documents_p99_s=own_s)
        return times

    def _time(self, choice: Choice, point: Point, output_tokens: int) -> TimePerToken:
        priced = self._price(choice.draft, point)
        if choice.dynamic is None:
            return time_per_token(choice.tree, choice.path_probabilities, priced.step_time_s, output_tokens)
        steps = int(steps_needed(self.evidence.lengths(choice.dynamic)[None], output_tokens)[0])
        mean_s = priced.step_time_s / priced.expected_tokens
        return TimePerToken(mean_s=mean_s, p99_s=steps * priced.step_time_s / output_tokens)

    def _value(self, option: Priced) -> float:
        length = self.question.objective is Objective.LENGTH
        return option.expected_tokens if length else option.tokens_per_s

    def _at_own_starts(self, choice: Choice) -> Choice:
        """Every tree of the choice priced where its own drafts start: what a decoder would get from each."""
        last, runner_up = Point(choice.batch_max, self.question.context), choice.runner_up
        best = self._price(choice.draft, last)
        if runner_up is not None:
            option = self._price(runner_up.draft, last)
            runner_up = replace(runner_up, option=option, loss=1.0 - self._value(option) / self._value(best))
        return replace(
            choice,
            best=best,
            path_probabilities=path_probabilities(self.evidence.model_under(choice.draft), choice.tree),
            chain=self._price(DraftTree.chain(choice.chain.depth), last),
            runner_up=runner_up,
        )


def _no_deeper(question: Problem, depth: int) -> Problem:
    return replace(question, limits=replace(question.limits, max_depth=depth))


def _smallest_tie(settled: Choice, smaller: Sequence[Choice], evidence: Traffic, seed: int) -> Choice:
    """The smallest tree whose tokens/s the documents cannot tell from the best one's (paired 95 % interval)."""
    for rival in smaller:
        difference = paired_gain(
            settled.draft, settled.best.step_time_s, rival.draft, rival.best.step_time_s, evidence, seed=seed
        )
        if difference is not None and difference.includes_zero:
            return rival
    return settled


def paired_gain(
    ours: Draft, our_time_s: float, theirs: Draft, their_time_s: float, evidence: Traffic, *, seed: int = 0
) -> Interval | None:
    """The 95 % interval of our tokens/s over theirs, minus 1, on the same documents; None without traces."""
    if not evidence.can_be_replayed:
        return None
    ratio = (evidence.drawn_tokens(ours, seed) / our_time_s) / (evidence.drawn_tokens(theirs, seed) / their_time_s)
    return interval_of(ratio - 1.0, evidence.documents)


def _resolvable(choice: Choice, evidence: Traffic, seed: int) -> float | None:
    rival = choice.runner_up
    if rival is None:
        return None
    ours, theirs = choice.best.step_time_s, rival.option.step_time_s
    gain = paired_gain(choice.draft, ours, rival.draft, theirs, evidence, seed=seed)
    return None if gain is None else gain.half_width


def _tokens_interval(choice: Choice, evidence: Traffic, seed: int) -> Interval | None:
    """By document from traces, by draft from one table of counts, none otherwise."""
    if not choice.speculate:
        return Interval(1.0, 1.0)
    if evidence.can_be_replayed:
        return interval_of(evidence.drawn_tokens(choice.draft, seed), evidence.documents)
    if len(evidence.parts) == 1:
        return counted_interval(evidence.parts[0].profile.evidence, choice.tree, seed=seed)
    return None


def _categories(choice: Choice, question: Problem, evidence: Traffic, cost: StepCost) -> tuple[Category, ...]:
    """What each category gets from the common tree, at the bucket's largest batch; nothing to tell for only one."""
    if len(evidence.parts) == 1:
        return ()
    found = []
    alone = question.at(question.ends[-1])
    for part in evidence.parts:
        own = Traffic(parts=(replace(part, weight=1.0),))
        dynamic = isinstance(question.family, DynamicTrees)
        tokens = own.tokens(choice.draft)
        model = own.valued_under(choice.draft) if dynamic else own.model_under(choice.draft)
        best = search(alone, model, cost)[0].best
        rate = tokens / choice.best.step_time_s * choice.batch_max
        loss = 1.0 - rate / best.tokens_per_s
        if question.objective is Objective.LENGTH:
            loss = 1.0 - tokens / best.expected_tokens
        found.append(Category(name=part.name, weight=part.weight, acceptance_length=tokens, loss=max(loss, 0.0)))
    return tuple(found)
