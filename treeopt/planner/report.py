"""All that a page about a plan shows, computed by what explain, compare and show compute with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

from treeopt.acceptance.rates import RankRates, rank_rates
from treeopt.answer import Note
from treeopt.cost.step import ModelStep
from treeopt.cost.step_cost import StepCost
from treeopt.errors import TreeoptError
from treeopt.files.typed import Whole
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan
from treeopt.planner.compare import Comparison, Rival, compare_with, comparison_notes, rival_of
from treeopt.planner.curves import Curve, curves_of
from treeopt.planner.frontier import Frontier, frontier_of
from treeopt.planner.headline import headline
from treeopt.planner.inputs import Inputs, inputs_of
from treeopt.planner.roofline import WeightsRoofline, roofline_of
from treeopt.planner.settings import EngineSettings, settings_of
from treeopt.tree import DraftTree

T = TypeVar("T")


class LeftOut(NamedTuple):
    """A part of the page that could not be computed, and why."""

    part: str
    why: str


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """A plan for one range of contexts, and what follows from it and its sources.

    What could not be computed is null or empty, and named in `left_out`.
    """

    FORMAT: ClassVar[str] = "treeopt.report/1"
    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("headline", "context", "settings", "curves", "comparisons", "frontier", "roofline", "acceptance"),
        *("left_out", "notes"),
    )
    headline: str
    plan: Plan
    curves: tuple[Curve, ...]
    settings: EngineSettings | None
    comparisons: tuple[Comparison, ...]
    frontier: Frontier | None
    roofline: WeightsRoofline | None
    acceptance: tuple[RankRates, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[Note, ...]

    @property
    def context(self) -> Whole:
        """The longest context that it is for."""
        return self.plan.context


def report_of(
    plan: Plan | str | Path,
    *rivals: str | Plan | DraftTree,
    ranks: str | None = None,
    engine: str | None = None,
    context: int | None = None,
    cost: StepCost | None = None,
) -> PlanReport:
    """The whole report of a plan.

    Args:
        plan: the plan or its file.
        *rivals: what runs today, as `compare` takes it.
        ranks: where the plan's rank profile is now.
        engine: whose settings to show, in place of the plan's own.
        context: which range of contexts, where the plan has several; the longest by default.
        cost: the step times of a plan that was made with an object of your own.

    Raises:
        InputError: the plan cannot be read, has no such context, or a rival or the engine is not known.
    """
    whole = plan if isinstance(plan, Plan) else load_plan(plan)
    own = whole.at_context(whole.context if context is None else context)
    others = [rival_of(rival) for rival in rivals]
    parts = _Parts(own)
    inputs = parts.tried(
        "what needs the plan's sources: prices between its batch sizes, rivals, acceptance, frontier, roofline",
        lambda: inputs_of(own, ranks=ranks, confidence=any(r.is_dynamic for r in others), cost=cost),
    )
    known = [rival for rival in others if parts.compared(rival, inputs)]
    priced = None if inputs is None else inputs.cost
    if inputs is not None and not isinstance(priced, ModelStep):
        parts.left_out.append(LeftOut("roofline", "the step times are given, not priced from kernels"))
    settings = parts.tried("settings", lambda: settings_of(own, engine)) if engine is None else settings_of(own, engine)
    return PlanReport(
        headline=headline(own),
        plan=own,
        curves=parts.tried("speed over batch sizes", lambda: curves_of(own, inputs, known)) or (),
        settings=settings,
        comparisons=tuple(parts.comparisons),
        frontier=None if inputs is None else parts.tried("acceptance by size", lambda: frontier_of(own, inputs)),
        roofline=roofline_of(own, priced) if isinstance(priced, ModelStep) else None,
        acceptance=() if inputs is None else tuple(map(rank_rates, inputs.evidence.parts)),
        left_out=tuple(parts.left_out),
        notes=(*own.notes, *_of_other_contexts(whole, own), *parts.notes(known, inputs)),
    )


class _Parts:
    """The parts that could be computed, and why others could not."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.left_out: list[LeftOut] = []
        self.comparisons: list[Comparison] = []

    def tried(self, part: str, make: Callable[[], T]) -> T | None:
        """A part, or why it is not there."""
        try:
            return make()
        except TreeoptError as error:
            self.left_out.append(LeftOut(part, str(error)))
            return None

    def compared(self, rival: Rival, inputs: Inputs | None) -> bool:
        """Whether the plan could be compared with a rival."""
        if inputs is None:
            return False
        found = self.tried(rival.name, lambda: compare_with(self.plan, rival, inputs))
        self.comparisons += found or []
        return found is not None

    def notes(self, rivals: Sequence[Rival], inputs: Inputs | None) -> tuple[Note, ...]:
        """What the reader of the comparisons must know."""
        return () if inputs is None else comparison_notes(self.comparisons, rivals, inputs)


def _of_other_contexts(whole: Plan, own: Plan) -> list[Note]:
    if len(whole.contexts) == 1:
        return []
    listed = ", ".join(held.words for held in whole.contexts)
    return [Note.note(f"the plan has contexts {listed}; shown is {own.contexts[0].words}: choose with --context")]
