"""The search within what an engine can load, and what its limits cost against the search without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from treeopt.acceptance.intervals import Interval
from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Note
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import OFF, DynamicTrees, chain_length
from treeopt.draft_words import words_for
from treeopt.engines.format import Setup
from treeopt.engines.registry import EngineAt, find_engine
from treeopt.errors import InputError, SearchError, TreeoptError
from treeopt.files.shipped import gpu_profile
from treeopt.planner.engine_questions import FormatQuestion, format_questions
from treeopt.planner.inputs import Inputs
from treeopt.planner.names import SEARCHED_WITHIN
from treeopt.solve.bucket import Bucket
from treeopt.solve.buckets import batches_in_words
from treeopt.solve.choose import paired_gain
from treeopt.solve.options import Option
from treeopt.solve.price import price
from treeopt.solve.problem import Objective, Point, Problem
from treeopt.solve.search import Answer, search


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
    free: Option
    interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Restricted:
    """The answer within one format; `losses` are those at every listed batch size and context."""

    form: FormatQuestion
    answers: tuple[Answer, ...]
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
    def order(self) -> tuple[int, float, float, float]:
        """Less is better: buckets that miss a limit, what is lost over weights, the largest loss, then the mean."""
        return sum(b.meets_limit is False for b in self.buckets), -self.over_weights, self.worst, self.mean

    @property
    def over_weights(self) -> float:
        """Mean tokens/s over the weights of batch sizes, all contexts together; 0 without weights."""
        rates = (
            (weight.share, at)
            for own in self.answers
            for weight in own.problem.weights
            for at in own.bucket.by_batch
            if weight.batch == at.batch
        )
        return sum(share * at.tokens_per_s for share, at in rates)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets of all contexts."""
        return tuple(answer.bucket for answer in self.answers)

    @property
    def drafts(self) -> str:
        """What is drafted at which batch sizes, in words."""
        several, family = len({b.context for b in self.buckets}) > 1, self.form.question.family
        return "; ".join(
            f"{words_for(family, [b.draft]).draft(b.draft)} at {batches_in_words(*b.batch)}"
            + (f", context {b.context.max}" if several else "")
            for b in self.buckets
        )

    def lost_in(self, bucket: Bucket) -> list[Lost]:
        """The losses of one bucket, the largest batch and context last."""
        return [
            lost
            for lost in self.losses
            if bucket.batch.min <= lost.point.batch <= bucket.batch.max
            and bucket.context.min <= lost.point.context <= bucket.context.max
        ]


def restricted_search(
    target: Target,
    questions: Sequence[Problem],
    free: Sequence[Answer],
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
            ours = [Answer(f.question, b) for f in forms for b in search(f.question, evidence, cost, seed=seed)]
        except SearchError as error:
            refusals.append(error)
            continue
        losses = [lost for answer in ours for lost in _losses(answer, free, evidence, cost, seed)]
        found.append(Restricted(form=forms[0], answers=tuple(ours), losses=tuple(losses)))
    if not found:
        raise refusals[0]
    return sorted(found, key=lambda r: r.order)


def _losses(ours: Answer, free: Sequence[Answer], evidence: Traffic, cost: StepCost, seed: int) -> list[Lost]:
    losses, problem, bucket = [], ours.problem, ours.bucket
    for at in bucket.by_batch:
        point = Point(at.batch, problem.context)
        best, own = (price(b.draft, evidence, cost, point) for b in (_at(free, point), bucket))
        interval = None
        if problem.objective is Objective.THROUGHPUT and at.batch == bucket.batch.max:
            gain = paired_gain(own.draft, own.step_time_s, best.draft, best.step_time_s, evidence, seed=seed)
            interval = None if gain is None else Interval(-gain.high, -gain.low)
        losses.append(Lost(point, _share(problem.objective, own, best), best, interval))
    return losses


def _share(objective: Objective, ours: Option, best: Option) -> float:
    if objective is Objective.LENGTH:
        return 1.0 - ours.acceptance_length.value / best.acceptance_length.value
    return 1.0 - ours.tokens_per_s.value / best.tokens_per_s.value


def _at(free: Sequence[Answer], point: Point) -> Bucket:
    buckets = (answer.bucket for answer in free)
    return next(b for b in buckets if b.batch.min <= point.batch <= b.batch.max and b.context.max == point.context)


def foreign_price(target: Target, inputs: Inputs) -> list[Note]:
    """That kernels of another engine price the step, and whose measured profile of the same GPU there is."""
    name, theirs = target.engine.engine.name, inputs.hardware.engine_name
    if inputs.cost is not inputs.kernels or theirs in ("", name) or not target.engine.engine.length_setting:
        return []
    gpu = inputs.hardware.name.partition(f"-{theirs}-")[0]
    own = gpu_profile(gpu, engine=name)
    way = f": pass --hardware {own}" if f"-{name}-" in own else "; two minutes of `treeopt measure` on your server tell"
    measured = inputs.hardware.measurement.engine if inputs.hardware.measurement else theirs
    return [
        Note.warning(f"the step is priced with kernels as {measured} runs them, not {target.engine.engine.title}{way}")
    ]


def engine_notes(target: Target, found: Sequence[Restricted], evidence: Traffic) -> list[str]:
    """What the reader of the best answer must know about its engine."""
    best, engine = found[0], target.engine
    name = engine.words
    notes = [f"{name} loads {best.form.format.limits.words}; {SEARCHED_WITHIN} ({best.form.format.name})"]
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
    lengths = dict.fromkeys(chain_length(b.draft) for b in best.buckets)
    if not best.form.format.limits.per_batch or len(lengths) < 2:
        return []
    notes = [f"{len(lengths)} lengths need as many tiers of captured graphs; --max-trees caps them"]
    if target.engine.engine.name == "sglang":
        notes.append("SGLang pads a batch to its next captured size; each batch is priced at its own size")
    return notes


def _of_floor(target: Target, best: Restricted) -> list[str]:
    off = [b for b in best.buckets if b.draft == OFF]
    if off and best.form.format.limits.per_batch:
        where = ", ".join(dict.fromkeys(batches_in_words(*b.batch) for b in off))
        return [
            f"nothing is drafted at {where}: acceptance was seen to collapse after such a phase, as the drafter's "
            "state ages (NVIDIA/TensorRT-LLM#16888); leave --allow-off out to draft at all batch sizes"
        ]
    listed = [(b, at.speedup) for b in best.buckets for at in b.by_batch if at.speedup is not None]
    slower = [(b, speedup) for b, speedup in listed if speedup < 1.0]
    if not slower or target.allow_off:
        return []
    where = ", ".join(dict.fromkeys(batches_in_words(*b.batch) for b, _ in slower))
    most = max(1.0 / speedup - 1.0 for _, speedup in slower)
    may = best.form.format.limits.refusal(OFF) is None
    way = "add --allow-off to draft nothing there" if may else "the engine cannot be told to draft nothing there"
    return [f"plain decoding would be up to {most:.1%} faster at {where}: {way}"]


def _of_contexts(name: str, best: Restricted) -> list[str]:
    if len({b.context for b in best.buckets}) < 2:
        return []
    return [f"{name} does not look at the context: export the buckets of one with --context L"]
