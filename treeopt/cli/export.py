"""`treeopt export`: what an engine loads."""

from __future__ import annotations

from typing import Annotated

import typer

from treeopt.cli.options import Out, PlanFile
from treeopt.errors import InputError, UnknownNameError


def export(
    plan: PlanFile,
    engine: Annotated[str, typer.Option(help="paths: the list that Medusa, EAGLE-1 and Hydra load.")],
    batch: Annotated[int | None, typer.Option(help="Which bucket of the plan.", show_default=False)] = None,
    out: Out = None,
) -> None:
    """Write a plan's tree the way an engine reads it."""
    from treeopt.cli import console
    from treeopt.documents import refuse_overwriting, write_atomically
    from treeopt.engines.paths import export_paths
    from treeopt.plan_file import load_plan

    if engine != "paths":
        raise UnknownNameError("engine", engine, ["paths"])
    loaded = load_plan(plan)
    if batch is None and len(loaded.buckets) > 1:
        ranges = ", ".join(f"{b.batch_min}-{b.batch_max}" for b in loaded.buckets)
        raise InputError(f"a path list is one tree, the plan has {len(loaded.buckets)}: {ranges}", hint="add --batch B")
    bucket = loaded.buckets[0] if batch is None else loaded.bucket_for(batch)
    text = export_paths(bucket.tree) + "\n"
    refuse_overwriting(out, plan)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(out, text, what="path list")
        console.notes([f"wrote {out}"])
    if not bucket.speculate:
        console.notes(["the plan says not to speculate at this batch size: the list is empty"])
