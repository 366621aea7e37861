"""A plan's tree against what somebody runs today: a path list, a chain, nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from treeopt.acceptance.dynamic_tree import dynamic_tree_shape
from treeopt.acceptance.intervals import Interval
from treeopt.acceptance.model import PathModel
from treeopt.acceptance.traffic import Traffic
from treeopt.draft_family import Draft, DynamicTree
from treeopt.engines.importing import load_drafts, parse_spec
from treeopt.engines.schedule import DraftSchedule
from treeopt.plan.plan import Plan
from treeopt.planner.inputs import Inputs
from treeopt.solve.fixed_point import paired_gain
from treeopt.solve.problem import TIE, Point
from treeopt.solve.result import Priced
from treeopt.tree import DraftTree


class Verdict(StrEnum):
    """How the plan does against an alternative."""

    BETTER = "better"
    TIE = "tie"
    WORSE = "worse"


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
    """One rival at one bucket's largest batch and context; `gain` is the plan's tokens/s over the rival's, minus 1,
    `interval` its 95 % interval where traces allow one.

    `unmeasured` nodes of the rival lie beyond the evidence and count as never accepted.
    """

    batch: int
    context: int
    rival: str
    plan: Priced
    other: Priced
    interval: Interval | None
    unmeasured: int

    @property
    def gain(self) -> float:
        """Positive where the plan is faster."""
        return self.plan.tokens_per_s / self.other.tokens_per_s - 1.0

    @property
    def verdict(self) -> Verdict:
        """A tie within 0.5 %, or where the documents cannot tell the two apart."""
        unclear = self.interval is not None and self.interval.includes_zero
        if abs(self.gain) <= TIE or unclear:
            return Verdict.TIE
        return Verdict.BETTER if self.gain > 0.0 else Verdict.WORSE


def parse_rival(text: str) -> Rival:
    """Read `none`, `chain:K`, a triple such as `sglang:3,4,16`, or the path of a plan, a tree or any engine's file.

    Raises:
        InputError: none of these.
    """
    drafts = load_drafts(text)
    return Rival(name=text if parse_spec(text) is not None else Path(text).name, drafts=drafts)


def compare(plan: Plan, rival: Rival, inputs: Inputs) -> list[Comparison]:
    """The plan against a rival at every bucket's largest batch and context, priced anew from the plan's evidence."""
    found = []
    for bucket in plan.buckets:
        batch, context = bucket.batch_max, bucket.context_max
        draft, evidence, ranks = rival.draft_for(batch, context), inputs.evidence, inputs.evidence.all_positions
        # Each where its own drafts start: a longer tree jumps further and starts elsewhere.
        ours, theirs = (evidence.price(d, inputs.cost, Point(batch, context)) for d in (bucket.draft, draft))
        outside = sum(len(path) > ranks.depth or max(path) >= ranks.ranks for path in evidence.tree_of(draft).paths)
        interval = paired_gain(bucket.draft, ours.step_time_s, draft, theirs.step_time_s, evidence)
        found.append(
            Comparison(
                batch=batch,
                context=context,
                rival=rival.name,
                plan=ours,
                other=theirs,
                interval=interval,
                unmeasured=outside,
            )
        )
    return found
