"""The choice under the acceptance that it brings about itself, with what is known about the number.

Where a draft starts depends on the tree, and the tree depends on the acceptance at draft starts. From a trace both are
settled together (`treeopt.ranks.starts`); counts and tables stay as they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from treeopt.buckets import Sharing
from treeopt.cost.base import StepCost
from treeopt.errors import InputError
from treeopt.plan import Category
from treeopt.ranks.intervals import Interval, bootstrap_tokens, counted_interval, interval_of
from treeopt.ranks.mixture import Mixture
from treeopt.ranks.model import FloatArray, PathModel, expected_tokens, path_probabilities
from treeopt.ranks.paths import PathCounts
from treeopt.ranks.profile import RankProfile
from treeopt.ranks.replay import Replay, replay
from treeopt.ranks.smoothing import SmoothedPaths
from treeopt.ranks.starts import draft_start_counts, settled_model
from treeopt.ranks.table import DepthRanks
from treeopt.ranks.trace import Trace
from treeopt.search import Choice, Objective, Priced, Question, price_tree, search, search_with_smaller
from treeopt.tree import BoolArray, DraftTree

# Smaller trees within this share of the best are asked whether the trace can tell them apart, at most so many.
_RIVAL_LOSS = 0.02
_RIVALS = 8


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of traffic: its evidence, and its share of the drafts."""

    name: str
    weight: float
    profile: RankProfile
    trace: Trace | None = None

    def model_under(self, tree: DraftTree | None) -> PathModel:
        """f where the tree's drafts start; over all positions without a tree or without a trace."""
        if tree is None or self.trace is None:
            return self.profile.model()
        return SmoothedPaths(draft_start_counts(self.trace, _within(tree, self.trace.depth)))


@dataclass(frozen=True, kw_only=True)
class Settled:
    """A choice, the 95 % interval of its E (None where the evidence allows none) and what each category gets.

    `resolvable` is the smallest share of tokens/s between the choice and its runner-up that the documents can tell.
    """

    choice: Choice
    tokens: Interval | None
    resolvable: float | None
    categories: tuple[Category, ...]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All kinds of traffic that a plan is for; the weights sum to 1."""

    parts: tuple[Part, ...]

    def model_under(self, tree: DraftTree | None) -> PathModel:
        """f of the mixture where the tree's drafts start (see `Part.model_under`)."""
        if tree not in self._models:
            models = tuple(part.model_under(tree) for part in self.parts)
            weights = tuple(part.weight for part in self.parts)
            self._models[tree] = models[0] if len(models) == 1 else Mixture(models, weights)
        return self._models[tree]

    @property
    def all_positions(self) -> PathModel:
        """f of the mixture as it was measured."""
        return self.model_under(None)

    def drawn_tokens(self, tree: DraftTree, seed: int) -> FloatArray:
        """`[replicates]` E of the tree over redrawn documents, parts independently; rows of two trees are paired."""
        if (tree, seed) not in self._drawn:
            drawn = [bootstrap_tokens([r], seed=(seed, i))[:, 0] for i, r in enumerate(self.replays(tree))]
            weighted = [part.weight * d for part, d in zip(self.parts, drawn, strict=True)]
            self._drawn[tree, seed] = np.asarray(sum(weighted))
        return self._drawn[tree, seed]

    # The same tree is asked for again and again while its bucket is settled.
    @cached_property
    def _models(self) -> dict[DraftTree | None, PathModel]:
        return {}

    @cached_property
    def _drawn(self) -> dict[tuple[DraftTree, int], FloatArray]:
        return {}

    @property
    def documents(self) -> int:
        """Of the part that has the fewest."""
        return min(part.trace.documents for part in self.parts if part.trace is not None)

    @property
    def depends_on_the_tree(self) -> bool:
        """Whether there is a trace to find a tree's draft starts in."""
        return any(part.trace is not None for part in self.parts)

    def split(self, held_out: float, seed: int) -> tuple[Evidence, Evidence]:
        """The evidence of random documents to search on, and that of the `held_out` share of them to judge by.

        Raises:
            InputError: a share outside (0, 1), evidence without documents, or too few of them.
        """
        if not 0.0 < held_out < 1.0:
            raise InputError(f"--holdout {held_out:g} is no share", hint="give the share to hold out, such as 0.5")
        pairs = [_split(part, held_out, seed) for part in self.parts]
        return Evidence(parts=tuple(a for a, _ in pairs)), Evidence(parts=tuple(b for _, b in pairs))

    @property
    def can_be_replayed(self) -> bool:
        """Whether every part has a trace."""
        return all(part.trace is not None for part in self.parts)

    def replays(self, tree: DraftTree) -> list[Replay]:
        """The tree replayed on every part that has a trace, nodes below the recorded depth left out."""
        traces = [part.trace for part in self.parts if part.trace is not None]
        return [replay(trace, _within(tree, trace.depth)) for trace in traces]


def settled_search(question: Question, evidence: Evidence, cost: StepCost, *, seed: int = 0) -> list[Settled]:
    """Search all batch sizes, then settle each bucket under its own tree's draft starts.

    The buckets are formed under f at the draft starts of the middle batch size's tree.
    """
    return _Settler(question, evidence, cost, seed).all()


def held_out_tokens(tree: DraftTree, evidence: Evidence, *, seed: int = 0) -> tuple[float, Interval | None]:
    """E of a tree on documents that it was not chosen on, and its interval."""
    replays = evidence.replays(tree)
    tokens = sum(part.weight * r.tokens_per_step for part, r in zip(evidence.parts, replays, strict=True))
    return tokens, interval_of(evidence.drawn_tokens(tree, seed), evidence.documents)


def _split(part: Part, held_out: float, seed: int) -> tuple[Part, Part]:
    if part.trace is None:
        raise InputError(f"{part.name} has no documents to hold out", hint="give a trace (NPZ) with doc_id and pos")
    trace = part.trace
    count = round(held_out * trace.documents)
    if not 0 < count < trace.documents:
        raise InputError(f"{trace.documents} documents do not split at {held_out:g}", hint="record more documents")
    out = np.zeros(trace.documents, dtype=np.bool_)
    out[np.random.default_rng(seed).permutation(trace.documents)[:count]] = True

    def keep(documents: BoolArray) -> Part:
        kept = trace.select(documents)
        profile = replace(part.profile, evidence=kept.count(), documents=kept.documents)
        return replace(part, profile=profile, trace=kept)

    return keep(~out), keep(out)


class _Settler:
    """One question to one body of evidence."""

    def __init__(self, question: Question, evidence: Evidence, cost: StepCost, seed: int) -> None:
        self.question, self.evidence, self.cost, self.seed = question, evidence, cost, seed
        self._alone: dict[int, Choice] = {}
        self._models: dict[tuple[tuple[int, int], ...], PathModel] = {}

    def all(self) -> list[Settled]:
        evidence = self.evidence
        settled = []
        for own in self._buckets():
            traced = evidence.depends_on_the_tree
            choice = self._settle(own) if traced else search(own, evidence.all_positions, self.cost)[0]
            settled.append(
                Settled(
                    choice=choice,
                    tokens=_tokens_interval(choice, evidence, self.seed),
                    resolvable=_resolvable(choice, evidence, self.seed),
                    categories=_categories(choice, own, evidence, self.cost),
                )
            )
        return settled

    def _buckets(self) -> list[Question]:
        """One question for every bucket, which are formed at the draft starts of the middle batch size's tree."""
        question, batches = self.question, self.question.batches
        if len(batches) == 1:
            return [replace(question, sharing=Sharing(max_trees=1))]
        found = search(question, self._model(self._of(batches[len(batches) // 2])), self.cost)
        return [
            replace(
                question,
                batches=tuple(b for b in batches if choice.batch_min <= b <= choice.batch_max),
                first_batch=choice.batch_min,
                sharing=Sharing(max_loss=question.sharing.max_loss, max_trees=1),
            )
            for choice in found
        ]

    def _of(self, batch: int) -> Question:
        return replace(self.question, batches=(batch,), first_batch=None, sharing=Sharing(max_trees=1))

    def _model(self, question: Question) -> PathModel:
        if not self.evidence.depends_on_the_tree:
            return self.evidence.all_positions
        if question.ranges not in self._models:
            choose = lambda model: search(question, model, self.cost)[0].tree  # noqa: E731
            self._models[question.ranges] = settled_model(self.evidence.model_under, choose)
        return self._models[question.ranges]

    def _settle(self, question: Question) -> Choice:
        """The bucket's choice at its own draft starts; for one batch size the smallest that cannot be told from it."""
        model, ends = self._model(question), (question.ranges[0][0], question.ranges[-1][1])
        if ends[0] == ends[1]:
            choice, smaller = search_with_smaller(question, model, self.cost, loss=_RIVAL_LOSS, most=_RIVALS)
            if question.objective is Objective.THROUGHPUT and self.evidence.can_be_replayed:
                choice = _smallest_tie(choice, smaller, self.evidence, self.seed)
            return self._at_own_starts(choice)
        together = replace(question, sharing=Sharing(max_trees=1))
        choice = self._at_own_starts(search(together, model, self.cost)[0])
        return replace(choice, sharing_loss=max(self._loss(choice.tree, batch) for batch in ends))

    def _loss(self, tree: DraftTree, batch: int) -> float:
        """What the tree loses at a batch size against the best one there, each at its own draft starts."""
        if batch not in self._alone:
            question = self._of(batch)
            self._alone[batch] = self._at_own_starts(search(question, self._model(question), self.cost)[0])
        best, ours = self._alone[batch].best, self._price(tree, batch)
        return max(0.0, 1.0 - self._value(ours) / self._value(best))

    def _price(self, tree: DraftTree, batch: int) -> Priced:
        model = self.evidence.model_under(tree)
        return price_tree(tree, model, self.cost, batch=batch, context=self.question.context)

    def _value(self, option: Priced) -> float:
        length = self.question.objective is Objective.LENGTH
        return option.expected_tokens if length else option.tokens_per_s

    def _at_own_starts(self, choice: Choice) -> Choice:
        """Every tree of the choice priced where its own drafts start: what a decoder would get from each."""
        best, runner_up = self._price(choice.tree, choice.batch_max), choice.runner_up
        if runner_up is not None:
            option = self._price(runner_up.tree, choice.batch_max)
            runner_up = replace(runner_up, option=option, loss=1.0 - self._value(option) / self._value(best))
        return replace(
            choice,
            best=best,
            path_probabilities=path_probabilities(self.evidence.model_under(choice.tree), choice.tree),
            chain=self._price(DraftTree.chain(choice.chain.depth), choice.batch_max),
            runner_up=runner_up,
        )


def _smallest_tie(settled: Choice, smaller: Sequence[Choice], evidence: Evidence, seed: int) -> Choice:
    """The smallest tree whose tokens/s the documents cannot tell from the best one's (paired 95 % interval)."""
    for rival in smaller:
        difference = paired_gain(
            settled.tree, settled.best.step_time_s, rival.tree, rival.best.step_time_s, evidence, seed=seed
        )
        if difference is not None and difference.includes_zero:
            return rival
    return settled


def _within(tree: DraftTree, depth: int) -> DraftTree:
    return tree if tree.depth <= depth else DraftTree(tuple(p for p in tree.paths if len(p) <= depth))


def paired_gain(
    ours: DraftTree, our_time_s: float, theirs: DraftTree, their_time_s: float, evidence: Evidence, *, seed: int = 0
) -> Interval | None:
    """The 95 % interval of our tokens/s over theirs, minus 1, on the same documents; None without traces."""
    if not evidence.can_be_replayed:
        return None
    ratio = (evidence.drawn_tokens(ours, seed) / our_time_s) / (evidence.drawn_tokens(theirs, seed) / their_time_s)
    return interval_of(ratio - 1.0, evidence.documents)


def _resolvable(choice: Choice, evidence: Evidence, seed: int) -> float | None:
    rival = choice.runner_up
    if rival is None:
        return None
    ours, theirs = choice.best.step_time_s, rival.option.step_time_s
    gain = paired_gain(choice.tree, ours, rival.tree, theirs, evidence, seed=seed)
    return None if gain is None else gain.half_width


def _tokens_interval(choice: Choice, evidence: Evidence, seed: int) -> Interval | None:
    """By document from traces, by draft from one table of counts, none otherwise."""
    if not choice.speculate:
        return Interval(1.0, 1.0)
    if evidence.can_be_replayed:
        return interval_of(evidence.drawn_tokens(choice.tree, seed), evidence.documents)
    counts = evidence.parts[0].profile.evidence
    if len(evidence.parts) == 1 and isinstance(counts, DepthRanks | PathCounts):
        return counted_interval(counts, choice.tree, seed=seed)
    return None


def _categories(choice: Choice, question: Question, evidence: Evidence, cost: StepCost) -> tuple[Category, ...]:
    """What each category gets from the common tree, at the bucket's largest batch; nothing to tell for only one."""
    if len(evidence.parts) == 1:
        return ()
    found = []
    alone = replace(question, batches=(choice.batch_max,), first_batch=None)
    for part in evidence.parts:
        model = part.model_under(choice.tree)
        tokens = expected_tokens(path_probabilities(model, choice.tree))
        best = search(alone, model, cost)[0].best
        rate = tokens / choice.best.step_time_s * choice.batch_max
        loss = 1.0 - rate / best.tokens_per_s
        if question.objective is Objective.LENGTH:
            loss = 1.0 - tokens / best.expected_tokens
        found.append(Category(name=part.name, weight=part.weight, expected_tokens=tokens, loss=max(loss, 0.0)))
    return tuple(found)
