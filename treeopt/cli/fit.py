"""`treeopt profile fit`: a hardware profile from timing rows, or an engine's constants from served step times."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import click

from treeopt.cli.command import Argument, CliOption
from treeopt.cli.options import DRAFTERS, Json, Plot, command_line, parse_captures, refuse_given
from treeopt.planner.names import Names
from treeopt.solve.problem import DEFAULT_CONTEXT

# What only one of the two kinds of input is fitted with.
_OF_ROWS: Final = (
    *("select", "device", "datasheet", "memory_gb", "link_gb_s", "processors"),
    *("engine", "numbers", "licence", "date"),
)
_OF_STEPS: Final = ("hardware", "model", "drafter", "context", "dtype", "tp", "capture_sizes")

_Rows = Annotated[
    list[Path] | None,
    CliOption(metavar="FILE", help="Timing rows: .csv, .jsonl, .parquet; repeatable."),
]
_Steps = Annotated[
    list[Path] | None,
    CliOption(metavar="FILE", help="Served step times, in place of --rows: .csv, benchmarks."),
]
_More = Annotated[list[Path] | None, Argument(metavar="[FILE]...", help="More files of the same kind.")]
_Name = Annotated[str | None, CliOption(help="What --hardware will call it; the file's by default.")]
_Datasheet = Annotated[
    str | None,
    CliOption(metavar="NAME_OR_FILE", help="Memory and link from here; compared with."),
]
_Link = Annotated[float | None, CliOption(help="Bandwidth to the other GPUs, one direction, in GB/s.")]
_Processors = Annotated[int | None, CliOption(min=1, help="Multiprocessors; tries the form with tiles too.")]
_Engine = Annotated[str | None, CliOption(metavar="NAME-VERSION", help="If the rows do not say.")]
_Date = Annotated[
    datetime | None,
    CliOption(metavar="YYYY-MM-DD", help="Today by default."),
]
_Captures = Annotated[str | None, CliOption(help="--steps: captured graphs, in tokens: 1,2,4,8.")]


def fit(
    ctx: click.Context,
    out: Annotated[Path, CliOption("--out", "-o", help="Write the profile here; its curves go beside it as .npz.")],
    rows: _Rows = None,
    steps: _Steps = None,
    more: _More = None,
    name: _Name = None,
    select: Annotated[str, CliOption(metavar="COLUMN=VALUE,...", help="Keep only such rows.")] = "",
    device: Annotated[str | None, CliOption(help="What the GPU is called.")] = None,
    datasheet: _Datasheet = None,
    memory_gb: Annotated[float | None, CliOption(help="Memory of one GPU, in GB.")] = None,
    link_gb_s: _Link = None,
    processors: _Processors = None,
    engine: _Engine = None,
    numbers: Annotated[str, CliOption("--from", help="Who measured, and where the rows are.")] = "own measurement",
    licence: Annotated[str, CliOption(help="Licence of the rows.")] = "own",
    date: _Date = None,
    hardware: Annotated[str, CliOption(help="--steps: whose kernels, a shipped name or a file.")] = Names.hardware,
    model: Annotated[str, CliOption(help="--steps: the target that was served.")] = Names.model,
    drafter: Annotated[str, CliOption(help=f"--steps: its drafter: {DRAFTERS}")] = Names.drafter,
    context: Annotated[int, CliOption(min=0, help="--steps: committed tokens per request, L.")] = DEFAULT_CONTEXT,
    dtype: Annotated[str | None, CliOption(help="--steps: weights; by default the model's own.")] = None,
    tp: Annotated[int, CliOption(help="--steps: tensor-parallel GPUs.")] = Names.tp,
    capture_sizes: _Captures = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Fit every kind of kernel in the rows, judged on shapes left out, and write a hardware profile.

    With --steps: fit what an engine takes beyond its kernels, judged on batch sizes left out.
    """
    if bool(rows) == bool(steps):
        raise click.BadParameter("give either --rows FILE or --steps FILE", param_hint="--rows")
    given, other = ("--rows", "--steps") if rows else ("--steps", "--rows")
    refuse_given(ctx, _OF_STEPS if rows else _OF_ROWS, f"belongs to {other}, but {given} is given")
    from treeopt.cli import console
    from treeopt.cost.fit.engine_profile import FittedSteps, Served, fit_served
    from treeopt.cost.fit.profile import FitRequest, FittedProfile, fit_profile
    from treeopt.cost.fit.tables import parse_selections
    from treeopt.cost.hardware import check_profile_path, save_hardware
    from treeopt.render.fit import report
    from treeopt.render.pictures.fits import fit_picture
    from treeopt.render.pictures.style import ready_to_draw, save_picture

    check_profile_path(out)
    ready_to_draw(plot)
    fitted: FittedProfile | FittedSteps
    if rows:
        request = FitRequest.of_gpu(
            *(device, datasheet, memory_gb, link_gb_s),
            name=name or out.stem,
            processors=processors,
            numbers=numbers,
            licence=licence,
            date=(date or datetime.now(UTC)).date().isoformat(),
            command=command_line(),
            engine=engine,
        )
        selections = parse_selections(select)
        with console.working("fitting"):
            fitted = fit_profile([*rows, *(more or [])], selections, request)
    else:
        captures = parse_captures(capture_sizes) or ()
        served = Served.named(hardware, model, drafter, dtype=dtype, tp=tp, context=context, capture_tokens=captures)
        with console.working("fitting"):
            fitted = fit_served([*(steps or []), *(more or [])], served, name=name or out.stem)
    written = save_hardware(out, fitted.hardware)
    if plot is not None:
        seen = [fitted.seen] if isinstance(fitted, FittedSteps) else [found.seen for found in fitted.families]
        save_picture(plot, fit_picture(fitted.name, seen))
    console.report(fitted, json, report)
    console.notes(fitted.warnings)
    console.wrote(*written, plot)
