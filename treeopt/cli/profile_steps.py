"""`treeopt profile fit --steps` and `treeopt profile table`: step times in, and out as the tables that engines read."""

from __future__ import annotations

import json as json_format
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treeopt.cli.options import Context, Drafter, Dtype, Hardware, Model, Tp, parse_batches, parse_captures
from treeopt.planner.names import Names
from treeopt.solve.problem import DEFAULT_CONTEXT

if TYPE_CHECKING:
    from treeopt.cost import ModelShape, ModelStep, StepCost
    from treeopt.cost.fit.engine_profile import FittedSteps, Served


# What prices a step where no table does.
_OF_MODELS: Final = ("hardware", "model", "drafter", "dtype", "tp")


def fit_steps(steps: Sequence[Path], served: Served, *, hardware: str, name: str, out: Path, json: bool) -> None:
    """Fit what an engine takes beyond its kernels to served step times, and write the profile with it."""
    from treeopt.cli import console
    from treeopt.cost.fit.engine_profile import fit_served
    from treeopt.cost.hardware import check_profile_path, save_hardware

    check_profile_path(out)
    with console.working("fitting"):
        fitted = fit_served(steps, served, name=name)
    written = save_hardware(out, fitted.hardware)
    if json:
        typer.echo(json_format.dumps(_document(fitted), indent=2))
    else:
        from treeopt.render.steps import steps_report

        console.result(steps_report(fitted))
    console.notes(fitted.findings)
    console.wrote(*written)


def refuse_given(ctx: typer.Context, names: Collection[str], why: str) -> None:
    """Refuse options that were given although they would change nothing."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(why, param_hint=parameter.opts[0])


def table(
    ctx: typer.Context,
    engine: Annotated[str, typer.Option(help="Whose table: vllm, sglang, or sglang-additive.")],
    batches: Annotated[str, typer.Option(help="Batch sizes: 1,2,4,8 or 1-64.")],
    draft_tokens: Annotated[str, typer.Option(help="K of the chains: 0,1,3,5 or 0-7; sglang takes one.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the table here.")],
    cost: Annotated[
        Path | None, typer.Option(help="Take the times from this table instead of a model.", show_default=False)
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Rank profile whose acceptance goes into vLLM's table.", show_default=False)
    ] = None,
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
    from treeopt.cost.tables.loading import load_cost_table
    from treeopt.cost.tables.writing import write_table
    from treeopt.errors import InputError
    from treeopt.files.shipped import locate
    from treeopt.files.writing import refuse_overwriting, write_atomically

    if cost is not None:
        refuse_given(ctx, _OF_MODELS, "prices a model, but --cost gives the times")
    if engine.startswith("sglang"):
        refuse_given(ctx, ("ranks",), "goes into vLLM's table only")
    refuse_overwriting(out, *([cost] if cost else []))
    sizes = parse_batches(batches)
    chains = parse_batches(draft_tokens, what="draft length K", option="--draft-tokens")
    if not sizes[0]:
        raise InputError("a batch of 0 requests", hint="batch sizes are 1 or more")
    acceptance = load_profile(locate("ranks", ranks).path).model() if ranks else None
    notes: tuple[str, ...] = ()
    step: StepCost
    if cost is None:
        step = priced = _step(served(hardware, model, drafter, dtype, tp, context, None))
        notes = tuple(priced.notes(batch=sizes[-1], nodes=chains[-1] + 1, context=context))
    else:
        found = load_cost_table(cost)
        step, notes = found.step(), found.findings
    written = write_table(
        engine,
        step,
        batches=sizes,
        draft_tokens=chains,
        context=context,
        ranks=acceptance,
    )
    write_atomically(out, written.text, what="cost table")
    console.notes([*notes, *written.notes])
    console.wrote(out)


def served(
    hardware: str, model: str, drafter: str, dtype: str | None, tp: int, context: int, capture_sizes: str | None
) -> Served:
    """Whose steps they are, from the options' names.

    Raises:
        InputError: a name that is not known, or captured sizes that are no numbers.
    """
    from treeopt.cost import load_hardware, load_model, parse_drafter
    from treeopt.cost.fit.engine_profile import Served
    from treeopt.files.shipped import locate

    def find(name: str) -> ModelShape:
        return load_model(locate("models", name).path)

    return Served(
        hardware=load_hardware(locate("hardware", hardware).path),
        model=find(model),
        drafter=parse_drafter(drafter, load_model=find),
        dtype=dtype,
        tp=tp,
        context=context,
        capture_tokens=parse_captures(capture_sizes) or (),
    )


def _step(served: Served) -> ModelStep:
    from treeopt.cost import ModelStep

    return ModelStep(
        model=served.model,
        times=served.hardware.kernel_times(),
        drafter=served.drafter,
        dtype=served.dtype,
        tp=served.tp,
        engine=served.hardware.engine(),
    )


def _document(fitted: FittedSteps) -> dict[str, Any]:
    fit = fitted.fit
    return {
        "format": "treeopt.steps-fit/1",
        "name": fitted.hardware.name,
        "engine_steps": fitted.hardware.engine_steps.document() if fitted.hardware.engine_steps else None,
        "rows": len(fit.rows),
        "in_sample_mean": fit.in_sample,
        "held_out": vars(fit.held_out),
        "held_out_reselected": vars(fit.reselected),
        "candidates": [{"constants": list(c.constants), **vars(c.held_out)} for c in fit.candidates],
        "payoffs": [
            {
                "batch": p.step.batch,
                "nodes": p.step.nodes,
                "depth": p.step.depth,
                "break_even_tokens": p.break_even_tokens,
                "tokens_per_step": p.step.tokens_per_step,
                "speedup": p.speedup,
                "pays": p.pays,
            }
            for p in fitted.payoffs
        ],
        "findings": list(fitted.findings),
    }
