"""A plan's tree against what somebody runs today: a path list, a chain, nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import ClassVar

from treeopt.acceptance.dynamic_tree import dynamic_tree_shape
from treeopt.acceptance.model import PathModel
from treeopt.acceptance.traffic import Traffic
from treeopt.answer import PRICE_LEVEL, Estimate, Note
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Draft, DynamicTree, in_words
from treeopt.draft_words import NODES, DraftWords
from treeopt.engines.importing import load_drafts, parse_spec
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError
from treeopt.files.typed import Count, Whole
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan
from treeopt.planner.inputs import Inputs, inputs_of
from treeopt.planner.price_interval import speedup_over
from treeopt.planner.wording import price_warnings, words_in
from treeopt.solve.choose import paired_gain
from treeopt.solve.options import Option
from treeopt.solve.price import price
from treeopt.solve.problem import TIE, Point
from treeopt.solve.report import estimate
from treeopt.tree import DraftTree


class Standing(StrEnum):
    """How the plan does against an alternative."""

    BETTER = "better"
    TIE = "tie"
    WORSE = "worse"
    NOT_KNOWN = "not known"

    @classmethod
    def of(cls, gain: Estimate) -> Standing:
        """From a gain in tokens/s: +0.4 % is a tie, +2 % [-1 %, +5 %] too, +2 % [+1 %, +3 %] is better.

        Where the interval has the price's error in it, +9 % [-27 %, +41 %] is not known.
        """
        unclear = gain.low is not None and gain.high is not None and gain.low <= 0.0 <= gain.high
        if abs(gain.value) <= TIE:
            return cls.TIE
        if unclear:
            return cls.NOT_KNOWN if gain.level == PRICE_LEVEL else cls.TIE
        return cls.BETTER if gain.value > 0.0 else cls.WORSE


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Something to compare with: a name and its drafts (a plan has one tree per bucket)."""

    name: str
    drafts: Plan | DraftSchedule

    def draft_for(self, batch: int, context: int) -> Draft:
        """What the rival drafts at a batch size and context.

        Raises:
            InputError: a plan lacks the batch size or the context.
        """
        if isinstance(self.drafts, Plan):
            return self.drafts.bucket_for(batch, context).draft
        return self.drafts.at(batch)

    def tree_for(self, batch: int, context: int, model: PathModel) -> DraftTree:
        """The rival's tree at a batch size and context; of a dynamic tree, the one that `model` lets it build.

        Raises:
            InputError: see `draft_for`.
        """
        draft = self.draft_for(batch, context)
        return dynamic_tree_shape(model, draft) if isinstance(draft, DynamicTree) else draft

    @property
    def is_dynamic(self) -> bool:
        """Whether it shapes its trees anew in every step: recorded confidence tells what that gains."""
        drafts = self.drafts.buckets if isinstance(self.drafts, Plan) else self.drafts.steps
        return any(isinstance(step.draft, DynamicTree) for step in drafts)

    def assumption(self, evidence: Traffic) -> str | None:
        """What the prices take for granted about a dynamic tree."""
        if not self.is_dynamic:
            return None
        if evidence.has_confidence:
            return f"{self.name} is valued {evidence.valued_under(None).values.basis}"
        return f"{self.name} shapes its tree anew in every step; priced is the tree it builds on average confidence"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One rival at one bucket's largest batch and context, each priced at its own draft starts.

    `gain` is the plan's tokens/s over the rival's, minus 1: with its 95 % interval where traces allow one, and against
    plain decoding with the 80 % interval of a speedup, which has the price's error in it.
    `unmeasured_nodes` of the rival lie beyond the evidence and count as never accepted.
    """

    WRITTEN: ClassVar[tuple[str, ...]] = (
        "batch",
        "context",
        "rival",
        "verdict",
        "gain",
        "plan",
        "other",
        "unmeasured_nodes",
    )
    batch: Count
    context: Whole
    rival: str
    gain: Estimate
    plan: Option
    other: Option
    unmeasured_nodes: Whole

    @property
    def verdict(self) -> Standing:
        """A tie within 0.5 %, or where the documents cannot tell the two apart; not known where the price cannot."""
        return Standing.of(self.gain)


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """A plan against all its rivals, what the prices take for granted, and how its engine counts drafts."""

    FORMAT: ClassVar[str] = "treeopt.compare/2"
    WRITTEN: ClassVar[tuple[str, ...]] = ("comparisons", "notes")
    comparisons: tuple[Comparison, ...]
    notes: tuple[Note, ...] = ()
    words: DraftWords = NODES


def compare(
    plan: Plan | str | Path,
    *rivals: str | Plan | DraftTree,
    ranks: str | None = None,
    cost: StepCost | None = None,
) -> Comparisons:
    """A plan against what else might run, priced anew from the plan's own evidence: what `treeopt compare` gives.

    Args:
        plan: the plan or its file.
        *rivals: `none`, `chain:K`, `sglang:3,4,16`, the path of a plan, a tree or an engine's file, or a plan or tree.
        ranks: where the plan's rank profile is now.
        cost: the step times of a plan that was made with an object of your own.

    Raises:
        InputError: a rival is none of these, or a file that the plan was made from is gone or has changed.
    """
    loaded = plan if isinstance(plan, Plan) else load_plan(plan)
    others = [rival_of(rival) for rival in rivals]
    inputs = inputs_of(loaded, ranks=ranks, confidence=any(other.is_dynamic for other in others), cost=cost)
    found = [c for other in others for c in compare_with(loaded, other, inputs)]
    return Comparisons(
        comparisons=tuple(found),
        notes=(*price_warnings(loaded), *comparison_notes(found, others, inputs)),
        words=words_in(loaded),
    )


def comparison_notes(found: Iterable[Comparison], rivals: Iterable[Rival], inputs: Inputs) -> tuple[Note, ...]:
    """What the reader of comparisons must know of the rivals."""
    said = [rival.assumption(inputs.evidence) for rival in rivals]
    outside = {c.rival: c.unmeasured_nodes for c in found if c.unmeasured_nodes}
    notes = [
        *filter(None, said),
        *(
            f"{count} nodes of {name} lie beyond the measured depth or ranks and count as never accepted"
            for name, count in outside.items()
        ),
    ]
    return tuple(map(Note.note, notes))


def rival_of(rival: str | Plan | DraftTree) -> Rival:
    """Something to compare with, by its words, its file, or itself.

    Raises:
        InputError: words that are none of these.
    """
    if isinstance(rival, Plan):
        return Rival(name="plan", drafts=rival)
    if isinstance(rival, DraftTree):
        return Rival(name=in_words(rival), drafts=DraftSchedule.constant(rival))
    return parse_rival(rival)


def parse_rival(text: str) -> Rival:
    """Read `none`, `chain:K`, a triple such as `sglang:3,4,16`, or the path of a plan, a tree or any engine's file.

    Raises:
        InputError: none of these.
    """
    drafts = load_drafts(text)
    return Rival(name=text if parse_spec(text) is not None else Path(text).name, drafts=drafts)


def compare_with(plan: Plan, rival: Rival, inputs: Inputs) -> list[Comparison]:
    """The plan against a rival at every bucket's largest batch and context, priced anew from the plan's evidence.

    Raises:
        InputError: the rival has no step time there.
    """
    found = []
    for bucket in plan.buckets:
        point, evidence = Point(bucket.batch.max, bucket.context.max), inputs.evidence
        draft, reach = rival.draft_for(*point), evidence.all_positions
        # Each where its own drafts start: a longer tree jumps further and starts elsewhere.
        ours, theirs = (price(d, evidence, inputs.cost, point) for d in (bucket.draft, draft))
        if not isfinite(theirs.step_time_s):
            raise InputError(
                f"the step times have none for {rival.name} at batch {point.batch}",
                hint="compare with a measured draft, or name the --model and --hardware that carry the table on",
            )
        outside = sum(len(path) > reach.depth or max(path) >= reach.ranks for path in evidence.tree_of(draft).paths)
        found.append(
            Comparison(
                batch=point.batch,
                context=point.context,
                rival=rival.name,
                gain=_gain(replace(ours, acceptance_length=bucket.acceptance_length), theirs, inputs),
                plan=ours,
                other=theirs,
                unmeasured_nodes=outside,
            )
        )
    return found


def _gain(ours: Option, theirs: Option, inputs: Inputs) -> Estimate:
    """Tokens/s over the other's, minus 1.

    Two drafts share most of their price's error, and documents tell them apart. Between a draft and none it stays, as
    in the plan's speedup: 1.09 [0.73, 1.41] times plain decoding are +9 % [-27 %, +41 %], and plain decoding's gain
    over that draft is -8 % [-29 %, +37 %].
    """
    if inputs.price_error is None or (ours.depth > 0) == (theirs.depth > 0):
        interval = paired_gain(ours.draft, ours.step_time_s, theirs.draft, theirs.step_time_s, inputs.evidence)
        return estimate(ours.tokens_per_s.value / theirs.tokens_per_s.value - 1.0, interval)
    draft, plain = (ours, theirs) if ours.depth else (theirs, ours)
    ratio = speedup_over(draft, plain, inputs.price_error)
    assert ratio.low is not None
    assert ratio.high is not None
    if ours.depth:
        return replace(ratio, value=ratio.value - 1.0, low=ratio.low - 1.0, high=ratio.high - 1.0)
    return replace(ratio, value=1.0 / ratio.value - 1.0, low=1.0 / ratio.high - 1.0, high=1.0 / ratio.low - 1.0)
