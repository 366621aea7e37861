"""What an engine can load, as questions that a search answers: one for each of the engine's formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from treeopt.draft_family import Chains, DynamicTrees
from treeopt.engines.format import Format
from treeopt.solve.problem import Problem


class FormatQuestion(NamedTuple):
    """A question within the limits of one format."""

    format: Format
    question: Problem


def format_questions(question: Problem, formats: Sequence[Format], *, allow_off: bool = False) -> list[FormatQuestion]:
    """The question within each format of an engine; a format that another one holds is left out.

    Chains of length 0 are asked for only with `allow_off`: engines let the drafter's state age while it is off. A
    static tree that may be empty is no such phase.
    """
    wider = [f for f in formats if isinstance(f.limits, DynamicTrees) or _per_batch(f)]
    kept = [f for f in formats if not wider or not isinstance(f.limits, Chains) or _per_batch(f)]
    return [FormatQuestion(form, _within(question, form, allow_off)) for form in kept]


def _per_batch(form: Format) -> bool:
    return isinstance(form.limits, Chains) and form.limits.per_batch


def _within(question: Problem, form: Format, allow_off: bool) -> Problem:
    family = form.limits
    if isinstance(family, Chains):
        family = replace(family, may_be_off=allow_off and family.may_be_off)
    sharing = question.sharing if family.per_batch else replace(question.sharing, max_trees=1)
    return replace(question, sharing=sharing, family=family, limits=question.limits.within(family))
