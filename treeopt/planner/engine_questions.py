"""What an engine can load, as questions that a search answers: one for each of the engine's formats."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from treeopt.engines.format import Format
from treeopt.engines.limits import ChainLimits, TreeLimits, TripleLimits
from treeopt.engines.registry import EngineAt
from treeopt.solve.best_trees import Limits
from treeopt.solve.families import Chains, Trees, Triples, UniformTrees
from treeopt.solve.problem import Question


class FormatQuestion(NamedTuple):
    """A question within the limits of one format."""

    format: Format
    question: Question


def format_questions(question: Question, target: EngineAt, *, allow_off: bool = False) -> list[FormatQuestion]:
    """The question within each format of an engine; a format that another one holds is left out.

    Chains of length 0 are asked for only with `allow_off`: engines let the drafter's state age while it is off. A
    static tree that may be empty is no such phase.
    """
    formats = target.support.formats
    wider = [f for f in formats if isinstance(f.limits, TripleLimits) or _per_batch(f)]
    kept = [f for f in formats if not wider or not isinstance(f.limits, ChainLimits) or _per_batch(f)]
    return [FormatQuestion(form, _within(question, form, allow_off)) for form in kept]


def _per_batch(form: Format) -> bool:
    return isinstance(form.limits, ChainLimits) and form.limits.per_batch


def _within(question: Question, form: Format, allow_off: bool) -> Question:
    limits = form.limits
    sharing = question.sharing if limits.per_batch else replace(question.sharing, max_trees=1)
    own = replace(question, sharing=sharing)
    if isinstance(limits, ChainLimits):
        return replace(
            own,
            shape=Chains(),
            limits=_capped(own.limits, None, limits.max_length),
            may_be_off=allow_off and limits.may_be_off,
            longest_first=limits.longest_first,
        )
    if isinstance(limits, TripleLimits):
        return replace(own, shape=Triples(rule=limits.rule), may_be_off=False)
    caps = _capped(own.limits, limits.max_ranks, limits.max_depth)
    return replace(own, shape=_trees(limits), limits=caps, may_be_off=limits.min_depth == 0)


def _trees(limits: TreeLimits) -> Trees | UniformTrees:
    if limits.uniform or limits.equal_widths:
        return UniformTrees(equal_widths=limits.equal_widths)
    return Trees(
        min_depth=limits.min_depth,
        max_expanded=limits.max_expanded,
        rank_gaps=limits.rank_gaps,
        leading_parents=limits.leading_parents,
    )


def _capped(limits: Limits, ranks: int | None, depth: int | None) -> Limits:
    return replace(limits, max_ranks=_least(limits.max_ranks, ranks), max_depth=_least(limits.max_depth, depth))


def _least(a: int | None, b: int | None) -> int | None:
    return min((cap for cap in (a, b) if cap is not None), default=None)
