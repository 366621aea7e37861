"""`treeopt compare`: a plan against what runs today."""

from __future__ import annotations

import json as json_format
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
    from treeopt.plan.reading import load_plan
    from treeopt.planner.compare import compare as run
    from treeopt.planner.compare import parse_rival
    from treeopt.planner.inputs import inputs_of

    loaded = load_plan(plan)
    others = [parse_rival(name) for name in rivals]
    inputs = inputs_of(loaded, ranks=ranks, confidence=any(other.is_dynamic for other in others))
    found = [c for other in others for c in run(loaded, other, inputs)]
    if json:
        rows = [
            {
                "batch": c.batch,
                "context": c.context,
                "rival": c.rival,
                "verdict": c.verdict.value,
                "gain": {
                    "value": c.gain,
                    "low": None if c.interval is None else c.interval.low,
                    "high": None if c.interval is None else c.interval.high,
                },
                "nodes": c.other.nodes,
                "expected_tokens": c.other.expected_tokens,
                "tokens_per_s": c.other.tokens_per_s,
                "plan_nodes": c.plan.nodes,
                "plan_expected_tokens": c.plan.expected_tokens,
                "plan_tokens_per_s": c.plan.tokens_per_s,
                "unmeasured_nodes": c.unmeasured,
            }
            for c in found
        ]
        typer.echo(json_format.dumps({"format": "treeopt.compare/1", "comparisons": rows}, indent=2))
        return
    from treeopt.cli import console
    from treeopt.render import comparison_table

    console.result(comparison_table(found))
    said = [other.assumption(inputs.evidence) for other in others]
    console.notes(sentence for sentence in said if sentence is not None)
    outside = {c.rival: c.unmeasured for c in found if c.unmeasured}
    console.notes(
        f"{count} nodes of {name} lie beyond the measured depth or ranks and count as never accepted"
        for name, count in outside.items()
    )
