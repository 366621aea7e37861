"""A plan's tree against what somebody runs today: a path list, a chain, nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from treeopt.documents import read_document
from treeopt.errors import InputError
from treeopt.inputs import Inputs
from treeopt.plan import Plan
from treeopt.plan_file import is_plan, parse_plan, parse_tree
from treeopt.ranks.intervals import Interval
from treeopt.search import TIE, Priced, price_tree
from treeopt.settle import paired_gain
from treeopt.tree import DraftTree


class Verdict(StrEnum):
    """How the plan does against an alternative."""

    BETTER = "better"
    TIE = "tie"
    WORSE = "worse"


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Something to compare with: a name and its tree for a batch size (a whole plan has one per bucket)."""

    name: str
    tree: DraftTree | None = None
    plan: Plan | None = None

    def tree_for(self, batch: int) -> DraftTree:
        """The rival's tree at a batch size."""
        return self.plan.tree_for(batch) if self.plan is not None else self.tree or DraftTree(())


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One rival at one bucket's largest batch; `gain` is the plan's tokens/s over the rival's, minus 1,
    `interval` its 95 % interval where traces allow one.

    `unmeasured` nodes of the rival lie beyond the evidence and count as never accepted.
    """

    batch: int
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
    """Read `none`, `chain:K`, or the path of a plan, a tree file or a path list.

    Raises:
        InputError: none of these.
    """
    if text == "none":
        return Rival(name="none", tree=DraftTree(()))
    if text.startswith("chain:"):
        digits = text.removeprefix("chain:")
        if not digits.isdecimal() or int(digits) > 1000:
            raise InputError(f"'{text}' is not a chain", hint="write chain:K with K draft tokens, for example chain:4")
        return Rival(name=text, tree=DraftTree.chain(int(digits)))
    path = Path(text)
    if not path.exists():
        raise InputError(
            f"'{text}' is nothing to compare with", hint="give none, chain:K, or a file: a plan, a tree or a path list"
        )
    document = read_document(path, what="plan or tree")
    if is_plan(document):
        return Rival(name=path.name, plan=parse_plan(document))
    return Rival(name=path.name, tree=parse_tree(document))


def compare(plan: Plan, rival: Rival, inputs: Inputs) -> list[Comparison]:
    """The plan against a rival at every bucket's largest batch, both priced anew from the plan's evidence."""
    found = []
    for bucket in plan.buckets:
        batch = bucket.batch_max
        tree = rival.tree_for(batch)
        # Each where its own drafts start: a longer tree jumps further and starts elsewhere.
        ours, theirs = (
            price_tree(t, inputs.evidence.model_under(t), inputs.cost, batch=batch, context=plan.context)
            for t in (bucket.tree, tree)
        )
        ranks = inputs.evidence.all_positions
        outside = sum(len(path) > ranks.depth or max(path) >= ranks.ranks for path in tree.paths)
        interval = paired_gain(bucket.tree, ours.step_time_s, tree, theirs.step_time_s, inputs.evidence)
        found.append(
            Comparison(batch=batch, rival=rival.name, plan=ours, other=theirs, interval=interval, unmeasured=outside)
        )
    return found
