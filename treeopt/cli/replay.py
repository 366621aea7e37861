"""`treeopt replay`: what a decoder really gets from a plan's trees on a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from treeopt.cli.command import Argument, CliOption
from treeopt.cli.options import Json, PlanBatch, PlanContext

_DYNAMIC = (
    "dynamic: what EAGLE-2's rule would gain at as many nodes, estimated and at most; the trace holds the drafter's "
    "confidence along the true path only, elsewhere the estimate takes it to be the same depth by depth"
)


def replay(
    plan: Annotated[Path, Argument(metavar="PLAN", help="A plan, a tree file or a path list.")],
    trace: Annotated[Path, CliOption(help="A trace: NPZ, Parquet, JSONL or a folder of shards.")],
    batch: PlanBatch = None,
    context: PlanContext = None,
    dynamic: Annotated[
        bool, CliOption("--dynamic", help="Also judge a tree chosen in every step by the drafter's confidence.")
    ] = False,
    seed: Annotated[int, CliOption(min=0, help="Seed of the bootstrap.")] = 0,
    json: Json = False,
) -> None:
    """Decode a trace with each tree: tokens per step with a 95 % interval, beside the plan's prediction."""
    from treeopt.cli import console
    from treeopt.planner.replay import replay_file
    from treeopt.render.replay import report

    with console.working("replaying"):
        found = replay_file(plan, trace, batch=batch, context=context, seed=seed, dynamic=dynamic)
    console.report(found, json, report)
    if json:
        return
    console.notes(
        [
            "replayed: drafts start where the last one ended, as in serving; all positions: a draft at every position, "
            "for comparison with other tools, too high",
            *([_DYNAMIC] if dynamic else []),
        ]
    )
