"""Which terms of the step time make the answer, and how wrong each may be before it changes.

The terms of a step add up, so a factor x on one of them makes the tokens/s of two trees equal at one x at most:
E (T' + (x - 1) t') = E' (T + (x - 1) t), with the step times T, T' and that term's part t, t' in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from treeopt.acceptance.traffic import Traffic
from treeopt.cost.step_cost import StepCost
from treeopt.cost.terms import StepTerms, Term, TermError
from treeopt.draft_family import DynamicTrees
from treeopt.solve.bucket import Bucket
from treeopt.solve.draft_starts import Rivals, rivals_at
from treeopt.solve.options import CostFlip, CostSensitivity, Option, TermSensitivity
from treeopt.solve.price import price
from treeopt.solve.problem import Objective, Point, Problem
from treeopt.tree import DraftTree

PLAIN: Final = DraftTree(())


@runtime_checkable
class TermedCost(StepCost, Protocol):
    """A step time that is a sum of terms, each with an error of its own where it was measured."""

    def terms(self, *, batch: int, nodes: int, depth: int, widths: Sequence[int], context: int) -> StepTerms:
        """One step in parts."""

    def error_p90(self) -> Sequence[TermError]:
        """How far off each term may be."""

    def scaled(self, term: Term, factor: float) -> StepCost:
        """The same step with one term `factor` times as long."""


class _Rival(NamedTuple):
    """E of a tree, and its step by terms."""

    tokens: float
    parts: Mapping[Term, float]


class _Lost(NamedTuple):
    """The share of tokens/s that a tree loses, and the nodes of the best one."""

    share: float
    nodes: int


def step_terms(cost: TermedCost, tree: DraftTree, point: Point) -> StepTerms:
    """A tree's step by terms."""
    widths = tree.expanded_widths.tolist() or [0]
    return cost.terms(batch=point.batch, nodes=len(tree), depth=tree.depth, widths=widths, context=point.context)


def cost_sensitivity(bucket: Bucket, problem: Problem, traffic: Traffic, cost: StepCost) -> CostSensitivity | None:
    """What errors of the step time would change about an answer, at its largest batch and context.

    None where the step time does not come in terms, and for dynamic trees. Under the objective `length` step times
    change nothing. Every rival is priced at its own draft starts.

    Args:
        bucket: the answer.
        problem: what it answers; its limits bind here too.
        traffic: the acceptance.
        cost: the price.
    """
    if not isinstance(cost, TermedCost) or isinstance(problem.family, DynamicTrees):
        return None
    point = Point(bucket.batch.max, bucket.context.max)
    ours, plain = _rival(bucket.choice, cost, point), _Rival(1.0, _parts(PLAIN, cost, point))
    used = [term for term in Term if ours.parts[term] > 0.0 or plain.parts[term] > 0.0]
    growth = {term: ours.parts[term] - plain.parts[term] for term in used}
    found: list[TermSensitivity] = [
        TermSensitivity(name=term.value, step_s=ours.parts[term], plain_s=plain.parts[term]) for term in used
    ]
    worst: list[CostFlip] = []
    if problem.objective is Objective.THROUGHPUT:
        found, worst = _judged(found, bucket, problem, traffic, cost)
    return CostSensitivity(
        largest_term=max(used, key=ours.parts.__getitem__).value,
        growing_term=max(used, key=growth.__getitem__).value if bucket.speculate else None,
        terms=tuple(found),
        worst=max((m for m in worst if m.regret > 0.0), key=lambda m: m.regret, default=None),
    )


def _judged(
    terms: list[TermSensitivity], bucket: Bucket, problem: Problem, traffic: Traffic, cost: TermedCost
) -> tuple[list[TermSensitivity], list[CostFlip]]:
    """The terms with flips and regrets, and the errors that cost something."""
    point = Point(bucket.batch.max, bucket.context.max)
    errors = {e.term.value: e.p90 for e in cost.error_p90() if e.p90 is not None}
    others = {"runner_up": bucket.runner_up, "best_chain": bucket.best_chain, "plain": bucket.plain}
    ours = _rival(bucket.choice, cost, point)
    rivals = {
        name: _rival(other, cost, point)
        for name, other in others.items()
        if other is not None and isinstance(other.draft, DraftTree) and other.draft != bucket.tree
    }
    known = rivals_at(problem, point, traffic, cost) if errors else None
    # What the choice loses already, to ties and to the other end of its range, is not the error's.
    now = 0.0 if known is None else _lost(known, bucket.tree, cost).share
    found, misjudged = [], []
    for term in terms:
        flips = {f"flip_{name}": flip_factor(Term(term.name), ours, rival) for name, rival in rivals.items()}
        error, regret = errors.get(term.name), None
        if error is not None and known is not None:
            # Errors are multiplicative: a term is 1 + e times as long, or so much shorter.
            off = {x: _lost(known, bucket.tree, cost.scaled(Term(term.name), x)) for x in (1 + error, 1 / (1 + error))}
            factor = max(off, key=lambda x: off[x].share)
            regret = max(off[factor].share - now, 0.0)
            misjudged.append(CostFlip(term=term.name, factor=factor, regret=regret, nodes=off[factor].nodes))
        found.append(
            TermSensitivity(
                name=term.name, step_s=term.step_s, plain_s=term.plain_s, error_p90=error, regret=regret, **flips
            )
        )
    return found, misjudged


def flip_factor(term: Term, ours: _Rival, theirs: _Rival) -> float | None:
    """The factor on a term that makes a slower rival as fast; None if there is none above 0, or it is no slower."""
    our_s, their_s = sum(ours.parts.values()), sum(theirs.parts.values())
    lead = ours.tokens * their_s - theirs.tokens * our_s
    per_factor = ours.tokens * theirs.parts[term] - theirs.tokens * ours.parts[term]
    if lead <= 0.0 or per_factor == 0.0:
        return None
    factor = 1.0 - lead / per_factor
    return factor if 0.0 < factor < np.inf else None


def _rival(priced: Option, cost: TermedCost, point: Point) -> _Rival:
    assert isinstance(priced.draft, DraftTree)
    return _Rival(priced.acceptance_length.value, _parts(priced.draft, cost, point))


def _parts(tree: DraftTree, cost: TermedCost, point: Point) -> dict[Term, float]:
    terms = step_terms(cost, tree, point)
    return {term: terms.of(term) for term in Term}


def _lost(rivals: Rivals, tree: DraftTree, truth: StepCost) -> _Lost:
    """What the tree loses to the best one if steps really cost `truth`."""
    best = rivals.fastest(truth)
    ours = price(tree, rivals.traffic, truth, rivals.prices.points[0])
    return _Lost(max(1.0 - ours.tokens_per_s.value / best.tokens_per_s.value, 0.0), best.nodes)
