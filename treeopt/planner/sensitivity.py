"""Which terms of the step time make the answer, and how wrong each may be before it changes.

The terms of a step add up, so a factor x on one of them makes the tokens/s of two trees equal at one x at most:
E (T' + (x - 1) t') = E' (T + (x - 1) t), with the step times T, T' and that term's part t, t' in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from treeopt.acceptance.model import PathModel, expected_tokens, path_probabilities
from treeopt.acceptance.traffic import Traffic
from treeopt.cost.step_cost import StepCost
from treeopt.cost.terms import StepTerms, Term, TermError
from treeopt.draft_family import DynamicTrees
from treeopt.solve.bucket import CostFlip, CostSensitivity, TermSensitivity
from treeopt.solve.problem import Objective, Point, Problem
from treeopt.solve.result import Choice
from treeopt.solve.scores import Space
from treeopt.solve.search import price_tree
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


def cost_sensitivity(choice: Choice, question: Problem, evidence: Traffic, cost: StepCost) -> CostSensitivity | None:
    """What errors of the step time would change about a choice, at its largest batch and context.

    None where the step time does not come in terms, and for dynamic trees. Under the objective `length` step times
    change nothing.

    Args:
        choice: the answer.
        question: what it answers; its limits bind here too.
        evidence: the acceptance.
        cost: the price.
    """
    if not isinstance(cost, TermedCost) or isinstance(question.family, DynamicTrees):
        return None
    point, ranks = question.ends[-1], evidence.model_under(choice.draft)
    ours, plain = _rival(choice.tree, ranks, cost, point), _rival(PLAIN, ranks, cost, point)
    used = [term for term in Term if ours.parts[term] > 0.0 or plain.parts[term] > 0.0]
    growth = {term: ours.parts[term] - plain.parts[term] for term in used}
    found: list[TermSensitivity] = [
        TermSensitivity(name=term.value, step_s=ours.parts[term], plain_s=plain.parts[term]) for term in used
    ]
    worst: list[CostFlip] = []
    if question.objective is Objective.THROUGHPUT:
        found, worst = _judged(found, choice, question, ranks, cost)
    return CostSensitivity(
        largest_term=max(used, key=ours.parts.__getitem__).value,
        growing_term=max(used, key=growth.__getitem__).value if choice.speculate else None,
        terms=tuple(found),
        worst=max((m for m in worst if m.regret > 0.0), key=lambda m: m.regret, default=None),
    )


def _judged(
    terms: list[TermSensitivity], choice: Choice, question: Problem, ranks: PathModel, cost: TermedCost
) -> tuple[list[TermSensitivity], list[CostFlip]]:
    """The terms with flips and regrets, and the errors that cost something."""
    point, errors = question.ends[-1], {e.term.value: e.p90 for e in cost.error_p90() if e.p90 is not None}
    other = None if choice.runner_up is None else choice.runner_up.draft
    trees = {
        "runner_up": other if isinstance(other, DraftTree) else None,
        "best_chain": DraftTree.chain(choice.chain.depth),
        "plain": PLAIN,
    }
    ours = _rival(choice.tree, ranks, cost, point)
    rivals = {
        name: _rival(tree, ranks, cost, point)
        for name, tree in trees.items()
        if tree is not None and tree != choice.tree
    }
    space = Space(question.at(point), ranks, cost) if errors else None
    # What the choice loses already, to ties and to the other end of its range, is not the error's.
    now = 0.0 if space is None else _lost(space, choice.tree, cost).share
    found, misjudged = [], []
    for term in terms:
        flips = {f"flip_{name}": flip_factor(Term(term.name), ours, rival) for name, rival in rivals.items()}
        error, regret = errors.get(term.name), None
        if error is not None and space is not None:
            # Errors are multiplicative: a term is 1 + e times as long, or so much shorter.
            off = {x: _lost(space, choice.tree, cost.scaled(Term(term.name), x)) for x in (1 + error, 1 / (1 + error))}
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


def _rival(tree: DraftTree, ranks: PathModel, cost: TermedCost, point: Point) -> _Rival:
    terms = step_terms(cost, tree, point)
    return _Rival(expected_tokens(path_probabilities(ranks, tree)), {term: terms.of(term) for term in Term})


def _lost(space: Space, tree: DraftTree, truth: StepCost) -> _Lost:
    """What the tree loses to the best one if steps really cost `truth`."""
    point = space.points[-1]
    values = space.values_under(truth, point)
    best = int(values.argmax())
    ours = price_tree(tree, space.ranks, truth, batch=point.batch, context=point.context).tokens_per_s
    share = max(1.0 - ours / float(values[best]), 0.0) if np.isfinite(values[best]) else 0.0
    return _Lost(share, int(space.options.nodes[best]))
