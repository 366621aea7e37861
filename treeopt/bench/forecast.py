"""What a plan's inputs say of a tree at a batch size and context, with redraws of its acceptance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from treeopt.acceptance.intervals import interval_of
from treeopt.acceptance.traffic import Evidence
from treeopt.arrays import FloatArray
from treeopt.cost.base import StepCost
from treeopt.plan.bucket import Estimate
from treeopt.solve.result import Priced
from treeopt.solve.search import price_tree
from treeopt.tree import DraftTree


class Basis(Protocol):
    """What predictions are made from; `treeopt.planner.inputs.Inputs` is one."""

    @property
    def evidence(self) -> Evidence:
        """How often guesses were right."""

    @property
    def cost(self) -> StepCost:
        """What steps cost."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """A tree's price and E; `drawn [replicates]` is E over redrawn documents, None where the evidence has none."""

    priced: Priced
    drawn: FloatArray | None
    documents: int

    @property
    def tokens(self) -> Estimate:
        """E with the interval that the evidence gives it."""
        value = self.priced.expected_tokens
        interval = None if self.drawn is None else interval_of(self.drawn, self.documents)
        return (
            Estimate(value=value) if interval is None else Estimate(value=value, low=interval.low, high=interval.high)
        )


def forecast(tree: DraftTree, basis: Basis, *, batch: int, context: int, seed: int = 0) -> Forecast:
    """The prediction, made as the search makes it: f where the tree's own drafts start."""
    evidence = basis.evidence
    priced = price_tree(tree, evidence.model_under(tree), basis.cost, batch=batch, context=context)
    drawn = evidence.drawn_tokens(tree, seed) if evidence.can_be_replayed else None
    return Forecast(priced=priced, drawn=drawn, documents=0 if drawn is None else evidence.documents)
