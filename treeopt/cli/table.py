"""`treeopt profile table`: step times as the tables that engines plan their drafts by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import click

from treeopt.cli.command import CliOption
from treeopt.cli.options import Context, Drafter, Dtype, Hardware, Model, Tp, parse_batches, refuse_given
from treeopt.planner.names import Names
from treeopt.solve.problem import DEFAULT_CONTEXT
from treeopt.tree import MAX_DEPTH

if TYPE_CHECKING:
    from treeopt.cost import StepCost

# What prices a step where no table does; a table's times are of its own context.
_OF_MODELS: Final = ("hardware", "model", "drafter", "dtype", "tp", "context")


def table(
    ctx: click.Context,
    engine: Annotated[str, CliOption(help="Whose table: vllm, sglang, or sglang-additive.")],
    batches: Annotated[str, CliOption(help="Batch sizes: 1,2,4,8 or 1-64.")],
    draft_tokens: Annotated[str, CliOption(help="K of the chains: 0,1,3,5 or 0-7; sglang takes one.")],
    out: Annotated[Path, CliOption("--out", "-o", help="Write the table here.")],
    cost: Annotated[Path | None, CliOption(help="Take the times from this table instead of a model.")] = None,
    ranks: Annotated[str | None, CliOption(help="Rank profile whose acceptance goes into vLLM's table.")] = None,
    hardware: Hardware = Names.hardware,
    model: Model = Names.model,
    drafter: Drafter = Names.drafter,
    context: Context = DEFAULT_CONTEXT,
    dtype: Dtype = Names.dtype,
    tp: Tp = Names.tp,
) -> None:
    """Write step times as the table that an engine plans its drafts by."""
    from treeopt.acceptance.loading import load_profile
    from treeopt.cli import console
    from treeopt.cost.fit.engine_profile import Served
    from treeopt.cost.tables.loading import load_cost_table
    from treeopt.cost.tables.writing import TABLES, write_table
    from treeopt.errors import InputError, UnknownNameError
    from treeopt.files.shipped import locate
    from treeopt.files.writing import write_atomically

    if engine not in TABLES:
        raise UnknownNameError("table", engine, TABLES)
    if cost is not None:
        refuse_given(ctx, _OF_MODELS, "is for a price by a model, but --cost gives the times")
    if engine != "vllm":
        refuse_given(ctx, ("ranks",), "goes into vLLM's table only")
    sizes = parse_batches(batches)
    chains = parse_batches(draft_tokens, what="draft length K", option="--draft-tokens")
    if chains[-1] > MAX_DEPTH:
        raise InputError(f"--draft-tokens {chains[-1]}", hint=f"no drafter drafts more than {MAX_DEPTH}")
    if not sizes[0]:
        raise InputError("a batch of 0 requests", hint="batch sizes are 1 or more")
    acceptance = load_profile(locate("ranks", ranks).path).model() if ranks else None
    step: StepCost
    if cost is None:
        priced = Served.named(hardware, model, drafter, dtype=dtype, tp=tp, context=context).step
        step, notes = priced, tuple(priced.notes(batch=sizes[-1], nodes=chains[-1] + 1, context=context))
    else:
        found = load_cost_table(cost)
        step, notes = found.step(), found.findings
    written = write_table(engine, step, batches=sizes, draft_tokens=chains, context=context, ranks=acceptance)
    write_atomically(out, written.text, what="cost table")
    console.notes([*notes, *written.notes])
    console.wrote(out)
