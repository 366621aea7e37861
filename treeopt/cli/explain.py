"""`treeopt explain`: why the tree of a bucket is as it is."""

from __future__ import annotations

from typing import Annotated

from treeopt.cli.command import CliOption
from treeopt.cli.options import Json, PlanFile, PlanRanks
from treeopt.errors import InputError


def explain(
    plan: PlanFile,
    batch: Annotated[int | None, CliOption(help="Batch size; the plan's own if it has one.")] = (None),
    context: Annotated[int | None, CliOption(help="Committed tokens per request, L.")] = None,
    ranks: PlanRanks = None,
    json: Json = False,
) -> None:
    """Price a tree node by node: what each gains, what it costs and why, and what would flip the answer."""
    from treeopt.cli import console
    from treeopt.plan.reading import load_plan
    from treeopt.planner.explain import explain as run
    from treeopt.planner.inputs import inputs_of
    from treeopt.render.explain import report

    loaded = load_plan(plan)
    if batch is None and len(loaded.buckets) > 1:
        ranges = ", ".join(dict.fromkeys(b.batches for b in loaded.buckets))
        raise InputError(f"the plan has several batch sizes: {ranges}", hint="add --batch B")
    size = loaded.buckets[0].batch.max if batch is None else batch
    found = run(loaded, inputs_of(loaded, ranks=ranks), batch=size, context=context)
    console.answer(found, json, report, found.notes)
