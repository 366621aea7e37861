"""What keeping the old tree costs: the search repeated under the acceptance that was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from treeopt.acceptance.conversions import conditional_from_survival
from treeopt.acceptance.model import ModelOver, PathModel
from treeopt.acceptance.traffic import Traffic
from treeopt.arrays import FloatArray, IntArray
from treeopt.check.matching import planned_survival
from treeopt.check.report import Compared, Regret
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Chains
from treeopt.plan.plan import Plan
from treeopt.planner.inputs import Inputs
from treeopt.solve.draft_starts import rivals_at
from treeopt.solve.options import Option
from treeopt.solve.price import price
from treeopt.solve.problem import Problem, parse_objective


@dataclass(frozen=True)
class Scaled(ModelOver):
    """A path model with every guess of a depth made likelier or less likely by one factor, `[D]` by depth.

    Counters of a running tree tell acceptance by depth, not by rank: that all ranks of a depth changed alike is this
    model's assumption. Depths beyond the factors take the last one.
    """

    factors: FloatArray

    def conditional(self, paths: IntArray) -> FloatArray:
        """The model's rows by the depth's factor, no row above 1 in all."""
        rows = self.model.conditional(paths) * self.factors[min(paths.shape[1], len(self.factors) - 1)]
        return np.asarray(rows / np.maximum(rows.sum(axis=1, keepdims=True), 1.0))


def regret_of(compared: Compared, inputs: Inputs, plan: Plan, *, chains_only: bool) -> Regret:
    """The bucket's tree against the best one (or chain) within the plan's caps, at its largest batch and context.

    Raises:
        InputError: an objective that is not known.
    """
    bucket = compared.bucket
    model = _fresh(compared, inputs)
    question = Problem(
        batches=(bucket.batch.max,),
        context=bucket.context.max,
        limits=plan.limits,
        budget_tokens=plan.budget_tokens,
        time_limit=plan.time_limit,
        objective=parse_objective(plan.objective),
    )
    traffic = Traffic(parts=(replace(inputs.evidence.parts[0], weight=1.0, trace=None, model=model),))
    kept = price(bucket.tree, traffic, inputs.cost, question.ends[-1]).tokens_per_s.value
    best = _best(question, traffic, inputs.cost, chains_only=chains_only)
    return Regret(
        kept_tokens_per_s=kept,
        best_tokens_per_s=max(best.tokens_per_s.value, kept),
        nodes=best.nodes,
        depth=best.depth,
    )


def _best(question: Problem, traffic: Traffic, cost: StepCost, *, chains_only: bool) -> Option:
    family = Chains(may_be_off=True) if chains_only else question.family
    point = question.ends[-1]
    return rivals_at(replace(question, family=family), point, traffic, cost).fastest(cost)


def _fresh(compared: Compared, inputs: Inputs) -> PathModel:
    """Acceptance as it is now: measured ranks as they are, a tree's depths or its mean by scaling the plan's ranks."""
    if compared.measured.ranks is not None:
        return compared.measured.ranks.model()
    model = inputs.evidence.model_under(compared.bucket.tree)
    if compared.depths:
        pairs = [(d.planned, d.measured) for d in compared.depths]
        return Scaled(model, np.array([m / p if p > 0.0 else 1.0 for p, m in pairs]))
    return Scaled(model, np.array([_factor(planned_survival(compared.bucket), compared.change.measured)]))


def _factor(survival: FloatArray, length: float) -> float:
    """The one factor on every depth's acceptance under which E is the measured length."""
    from scipy.optimize import brentq  # only where a mean is all there is

    conditional = conditional_from_survival(survival)

    def excess(factor: float) -> float:
        return float(1.0 + np.cumprod(np.minimum(conditional * factor, 1.0)).sum()) - length

    highest = 1.0 / max(float(conditional[conditional > 0.0].min(initial=1.0)), 1e-9)
    return highest if excess(highest) <= 0.0 else float(brentq(excess, 0.0, highest))
