"""The search within what an engine can load, and what its limits cost against the search without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from treeopt.acceptance.intervals import Interval
from treeopt.acceptance.traffic import Traffic
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import OFF, Draft, DynamicTrees, chain_length, in_words
from treeopt.engines.format import Setup
from treeopt.engines.registry import EngineAt, find_engine
from treeopt.errors import InputError, SearchError, TreeoptError
from treeopt.planner.engine_questions import FormatQuestion, format_questions
from treeopt.solve.buckets import batches_in_words
from treeopt.solve.fixed_point import Settled, paired_gain, settled_search
from treeopt.solve.problem import Objective, Point, Problem
from treeopt.solve.result import Priced


class Target(NamedTuple):
    """The engine to search for, the drafter that it runs, and whether it may draft nothing at some batch sizes."""

    engine: EngineAt
    drafter: str
    allow_off: bool = False

    @classmethod
    def find(cls, text: str, *, allow_off: bool = False, drafter: str | None = None) -> Target:
        """The engine that `NAME` or `NAME==VERSION` means; without a drafter its usual one.

        Raises:
            UnknownNameError: no such engine.
            InputError: not a version, or one that is not known, or an engine whose drafter must be named.
        """
        engine = find_engine(text)
        usual = engine.usual_drafter
        if drafter is None and usual == "model":
            raise InputError(f"{engine.words} drafts with a model", hint="name it with --drafter model:NAME")
        return cls(engine, drafter or usual, allow_off)

    @property
    def has_triples(self) -> bool:
        """Whether it loads dynamic trees, whose value recorded confidence tells."""
        return any(isinstance(form.limits, DynamicTrees) for form in self.engine.formats)


class Lost(NamedTuple):
    """What the engine's draft loses at one point: the share of the objective, and what it is measured against."""

    point: Point
    share: float
    draft: Draft
    free: Priced
    interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Restricted:
    """The answer within one format; `losses` are those at every listed batch size and context."""

    form: FormatQuestion
    settled: tuple[Settled, ...]
    losses: tuple[Lost, ...]

    @property
    def worst(self) -> float:
        """The largest loss."""
        return max(lost.share for lost in self.losses)

    @property
    def mean(self) -> float:
        """The mean loss over the listed batch sizes."""
        return sum(lost.share for lost in self.losses) / len(self.losses)

    @property
    def order(self) -> tuple[int, float, float]:
        """Less is better: buckets that miss a limit, then the largest loss, then the mean."""
        return sum(not s.choice.meets_limit for s in self.settled), self.worst, self.mean

    @property
    def drafts(self) -> str:
        """What is drafted at which batch sizes, in words."""
        several = len({s.question.context for s in self.settled}) > 1
        return "; ".join(
            f"{in_words(s.choice.draft)} at {batches_in_words(s.choice.batch_min, s.choice.batch_max)}"
            + (f", context {s.question.context}" if several else "")
            for s in self.settled
        )

    def lost_in(self, settled: Settled) -> list[Lost]:
        """The losses of one bucket, the largest batch and context last."""
        choice, question = settled.choice, settled.question
        return [
            lost
            for lost in self.losses
            if choice.batch_min <= lost.point.batch <= choice.batch_max
            and question.context_min <= lost.point.context <= question.context
        ]


def restricted_search(
    target: Target,
    questions: Sequence[Problem],
    free: Sequence[Settled],
    evidence: Traffic,
    cost: StepCost,
    seed: int,
) -> list[Restricted]:
    """The answers within every format of an engine, the best first: the smallest largest loss, then the mean.

    Args:
        target: the engine.
        questions: one per range of contexts.
        free: the answers without an engine's limits.
        evidence: the acceptance.
        cost: the price.
        seed: that of the bootstrap behind the intervals.

    Raises:
        SearchError: the limits leave nothing that the engine loads.
        InputError: the engine does not run the drafter.
    """
    found: list[Restricted] = []
    refusals: list[TreeoptError] = []
    formats = target.engine.formats_for(Setup(drafter=target.drafter))
    asked = [format_questions(question, formats, allow_off=target.allow_off) for question in questions]
    for forms in zip(*asked, strict=True):
        try:
            settled = [s for f in forms for s in settled_search(f.question, evidence, cost, seed=seed)]
        except SearchError as error:
            refusals.append(error)
            continue
        losses = [lost for f in forms for lost in _losses(f.question, free, settled, evidence, cost, seed)]
        found.append(Restricted(form=forms[0], settled=tuple(settled), losses=tuple(losses)))
    if not found:
        raise refusals[0]
    return sorted(found, key=lambda r: r.order)


def _losses(
    question: Problem, free: Sequence[Settled], ours: Sequence[Settled], evidence: Traffic, cost: StepCost, seed: int
) -> list[Lost]:
    losses = []
    for batch in question.batches:
        point = Point(batch, question.context)
        their, our = _at(free, point), _at(ours, point)
        best, own = (evidence.price(s.choice.draft, cost, point) for s in (their, our))
        interval = None
        if question.objective is Objective.THROUGHPUT and batch == our.choice.batch_max:
            drafts = (our.choice.draft, own.step_time_s, their.choice.draft, best.step_time_s)
            gain = paired_gain(*drafts, evidence, seed=seed)
            interval = None if gain is None else Interval(-gain.high, -gain.low)
        losses.append(Lost(point, _share(question.objective, own, best), their.choice.draft, best, interval))
    return losses


def _share(objective: Objective, ours: Priced, best: Priced) -> float:
    if objective is Objective.LENGTH:
        return 1.0 - ours.expected_tokens / best.expected_tokens
    return 1.0 - ours.tokens_per_s / best.tokens_per_s


def _at(settled: Sequence[Settled], point: Point) -> Settled:
    return next(
        s
        for s in settled
        if s.choice.batch_min <= point.batch <= s.choice.batch_max and s.question.context == point.context
    )


def engine_notes(target: Target, found: Sequence[Restricted], evidence: Traffic) -> list[str]:
    """What the reader of the best answer must know about its engine."""
    best, engine = found[0], target.engine
    name = engine.words
    notes = [f"{name} loads {best.form.format.limits.words}; searched within that ({best.form.format.name})"]
    return [
        *notes,
        *_of_triples(found, evidence),
        *_of_lengths(target, best),
        *_of_floor(target, best),
        *_of_contexts(name, best),
    ]


def _of_triples(found: Sequence[Restricted], evidence: Traffic) -> list[str]:
    if not any(isinstance(r.form.question.family, DynamicTrees) for r in found):
        return []
    if evidence.has_confidence:
        return [f"dynamic trees are valued {evidence.valued_under(None).values.basis}"]
    return [
        "dynamic trees are valued from ranks: the drafter is taken to be as sure in every step as its guesses are "
        "right on average, so what choosing anew gains is left out; a trace with topk_prob tells"
    ]


def _of_lengths(target: Target, best: Restricted) -> list[str]:
    """How many sizes of graphs a schedule needs, and what its borders are not priced for."""
    lengths = dict.fromkeys(chain_length(s.choice.draft) for s in best.settled)
    if not best.form.format.limits.per_batch or len(lengths) < 2:
        return []
    notes = [f"{len(lengths)} lengths need as many tiers of captured graphs; --max-trees caps them"]
    if target.engine.engine.name == "sglang":
        notes.append("SGLang pads a batch to its next captured size; each batch is priced at its own size")
    return notes


def _of_floor(target: Target, best: Restricted) -> list[str]:
    off = [s for s in best.settled if s.choice.draft == OFF]
    if off and best.form.format.limits.per_batch:
        where = ", ".join(batches_in_words(s.choice.batch_min, s.choice.batch_max) for s in off)
        return [
            f"nothing is drafted at {where}: acceptance was seen to collapse after such a phase, as the drafter's "
            "state ages (NVIDIA/TensorRT-LLM#16888); leave --allow-off out to draft at all batch sizes"
        ]
    slower = [s for s in best.settled if s.choice.speedup < 1.0]
    if not slower or target.allow_off:
        return []
    where = ", ".join(batches_in_words(s.choice.batch_min, s.choice.batch_max) for s in slower)
    most = max(1.0 / s.choice.speedup - 1.0 for s in slower)
    may = best.form.format.limits.refusal(OFF) is None
    way = "add --allow-off to draft nothing there" if may else "the engine cannot be told to draft nothing there"
    return [f"plain decoding would be up to {most:.1%} faster at {where}: {way}"]


def _of_contexts(name: str, best: Restricted) -> list[str]:
    if len({s.question.context for s in best.settled}) < 2:
        return []
    return [f"{name} does not look at the context: export the buckets of one with --context L"]
