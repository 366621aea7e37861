"""`treeopt compare`: a plan against what runs today."""

from __future__ import annotations

from typing import Annotated

import typer

from treeopt.cli.options import Json, PlanFile, PlanRanks


def compare(
    plan: PlanFile,
    rivals: Annotated[
        list[str],
        typer.Option("--with", metavar="RIVAL", help="none, chain:K, sglang:3,4,16, a plan, a tree, an engine's file."),
    ],
    ranks: PlanRanks = None,
    json: Json = False,
) -> None:
    """Price a plan against path lists, chains or plain decoding, from the plan's own evidence."""
    from treeopt.cli import console
    from treeopt.plan.reading import load_plan
    from treeopt.planner.compare import Comparisons, compare_with, parse_rival
    from treeopt.planner.inputs import inputs_of
    from treeopt.render.compare import report

    loaded = load_plan(plan)
    others = [parse_rival(name) for name in rivals]
    inputs = inputs_of(loaded, ranks=ranks, confidence=any(other.is_dynamic for other in others))
    found = Comparisons(comparisons=tuple(c for other in others for c in compare_with(loaded, other, inputs)))
    console.report(found, json, report)
    if json:
        return
    said = [other.assumption(inputs.evidence) for other in others]
    console.notes(sentence for sentence in said if sentence is not None)
    outside = {c.rival: c.unmeasured_nodes for c in found.comparisons if c.unmeasured_nodes}
    console.notes(
        f"{count} nodes of {name} lie beyond the measured depth or ranks and count as never accepted"
        for name, count in outside.items()
    )
