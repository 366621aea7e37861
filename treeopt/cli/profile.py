"""`treeopt profile`: hardware profiles from measured kernel times."""

from __future__ import annotations

import json as json_format
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treeopt.cli import profile_measure, profile_steps
from treeopt.cli.options import DRAFTERS, Json, command_line
from treeopt.planner.names import Names
from treeopt.solve.problem import DEFAULT_CONTEXT

if TYPE_CHECKING:
    from treeopt.cost import Hardware
    from treeopt.cost.fit.profile import FitRequest, FittedProfile

# What only one of the two kinds of input is fitted with.
_OF_ROWS: Final = (
    *("select", "device", "datasheet", "memory_gb", "link_gb_s", "processors"),
    *("engine", "numbers", "licence", "date"),
)
_OF_STEPS: Final = ("hardware", "model", "drafter", "context", "dtype", "tp", "capture_sizes")

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.callback(invoke_without_command=True)(profile_measure.measure)
app.command("table")(profile_steps.table)


_Rows = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Timing rows: .csv, .jsonl, .parquet; repeatable.", show_default=False),
]
_Steps = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Served step times, in place of --rows: .csv, benchmarks.", show_default=False),
]
_More = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files of the same kind.", show_default=False)
]
_Name = Annotated[
    str | None, typer.Option(help="What --hardware will call it; the file's by default.", show_default=False)
]
_Datasheet = Annotated[
    str | None,
    typer.Option(metavar="NAME_OR_FILE", help="Memory and link from here; compared with.", show_default=False),
]
_Link = Annotated[
    float | None, typer.Option(help="Bandwidth to the other GPUs, one direction, in GB/s.", show_default=False)
]
_Processors = Annotated[
    int | None, typer.Option(min=1, help="Multiprocessors; tries the form with tiles too.", show_default=False)
]
_Engine = Annotated[
    str | None, typer.Option(metavar="NAME-VERSION", help="If the rows do not say.", show_default=False)
]
_Date = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="Today by default.", show_default=False),
]
_Captures = Annotated[
    str | None, typer.Option(help="--steps: captured graphs, in tokens: 1,2,4,8.", show_default=False)
]


@app.command("fit")
def fit(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the profile here; its curves go beside it as .npz.")],
    rows: _Rows = None,
    steps: _Steps = None,
    more: _More = None,
    name: _Name = None,
    select: Annotated[str, typer.Option(metavar="COLUMN=VALUE,...", help="Keep only such rows.")] = "",
    device: Annotated[str | None, typer.Option(help="What the GPU is called.", show_default=False)] = None,
    datasheet: _Datasheet = None,
    memory_gb: Annotated[float | None, typer.Option(help="Memory of one GPU, in GB.", show_default=False)] = None,
    link_gb_s: _Link = None,
    processors: _Processors = None,
    engine: _Engine = None,
    numbers: Annotated[str, typer.Option("--from", help="Who measured, and where the rows are.")] = "own measurement",
    licence: Annotated[str, typer.Option(help="Licence of the rows.")] = "own",
    date: _Date = None,
    hardware: Annotated[str, typer.Option(help="--steps: whose kernels, a shipped name or a file.")] = Names.hardware,
    model: Annotated[str, typer.Option(help="--steps: the target that was served.")] = Names.model,
    drafter: Annotated[str, typer.Option(help=f"--steps: its drafter: {DRAFTERS}")] = Names.drafter,
    context: Annotated[int, typer.Option(min=0, help="--steps: committed tokens per request, L.")] = DEFAULT_CONTEXT,
    dtype: Annotated[
        str | None, typer.Option(help="--steps: weights; by default the model's own.", show_default=False)
    ] = None,
    tp: Annotated[int, typer.Option(help="--steps: tensor-parallel GPUs.")] = Names.tp,
    capture_sizes: _Captures = None,
    json: Json = False,
) -> None:
    """Fit every kind of kernel in the rows, judged on shapes left out, and write a hardware profile.

    With --steps: fit what an engine takes beyond its kernels, judged on batch sizes left out.
    """
    if bool(rows) == bool(steps):
        raise typer.BadParameter("give either --rows FILE or --steps FILE", param_hint="--rows")
    name = name or out.stem
    if rows:
        profile_steps.refuse_given(ctx, _OF_STEPS, "belongs to --steps, but --rows is given")
        sheet = _sheet(datasheet)
        request = _request(name, device, sheet, memory_gb, link_gb_s, processors, numbers, licence, date, engine)
        _fit_rows([*rows, *(more or [])], select, request, out, json)
        return
    profile_steps.refuse_given(ctx, _OF_ROWS, "belongs to --rows, but --steps is given")
    served = profile_steps.served(hardware, model, drafter, dtype, tp, context, capture_sizes)
    profile_steps.fit_steps([*(steps or []), *(more or [])], served, hardware=hardware, name=name, out=out, json=json)


def _fit_rows(rows: list[Path], select: str, request: FitRequest, out: Path, json: bool) -> None:
    from treeopt.cli import console
    from treeopt.cost.fit.profile import fit_profile
    from treeopt.cost.fit.tables import parse_selections
    from treeopt.cost.hardware import check_profile_path, save_hardware

    check_profile_path(out)
    selections = parse_selections(select)
    with console.working("fitting"):
        fitted = fit_profile(rows, selections, request)
    written = save_hardware(out, fitted.hardware)
    if json:
        typer.echo(json_format.dumps(_document(fitted), indent=2))
    else:
        from treeopt.render.fits import fit_report

        console.result(fit_report(fitted))
    console.notes(fitted.warnings)
    console.wrote(*written)


def _sheet(name: str | None) -> Hardware | None:
    from treeopt.cost import load_hardware
    from treeopt.files.shipped import locate

    return None if name is None else load_hardware(locate("hardware", name).path)


def _request(
    name: str,
    device: str | None,
    sheet: Hardware | None,
    memory_gb: float | None,
    link_gb_s: float | None,
    processors: int | None,
    numbers: str,
    licence: str,
    date: datetime | None,
    engine: str | None,
) -> FitRequest:
    from treeopt.cost.fit.profile import FitRequest
    from treeopt.errors import InputError

    if sheet is None and (device is None or memory_gb is None or link_gb_s is None):
        raise InputError(
            "the rows do not say how much memory and which links the GPU has",
            hint="give --datasheet NAME, or --device, --memory-gb and --link-gb-s",
        )
    for option, value in (("--memory-gb", memory_gb), ("--link-gb-s", link_gb_s)):
        if value is not None and not 0.0 < value < math.inf:  # NaN too
            raise InputError(f"{option} {value:g}", hint="give a number above 0")
    sources = dict(sheet.sources) if sheet else {}
    if memory_gb is not None:
        sources["memory_bytes"] = "given"
    if link_gb_s is not None:
        sources["link_bandwidth_bytes_per_s"] = "given"
    return FitRequest(
        name=name,
        device=device or (sheet.device if sheet else ""),
        memory_bytes=memory_gb * 1e9 if memory_gb is not None else (sheet.memory_bytes if sheet else 0.0),
        link_bandwidth_bytes_per_s=link_gb_s * 1e9
        if link_gb_s is not None
        else (sheet.link_bandwidth_bytes_per_s if sheet else 0.0),
        sources={key: sources[key] for key in ("memory_bytes", "link_bandwidth_bytes_per_s") if key in sources},
        sheet=sheet,
        processors=processors,
        numbers=numbers,
        licence=licence,
        date=(date or datetime.now(UTC)).date().isoformat(),
        command=command_line(),
        engine=engine,
    )


def _document(fitted: FittedProfile) -> dict[str, Any]:
    return {
        "format": "treeopt.fit/1",
        "name": fitted.hardware.name,
        "engine": fitted.hardware.measurement.engine if fitted.hardware.measurement else None,
        "families": [
            {
                "family": str(found.family),
                "dtype": found.dtype,
                "fit": found.fit.document(),
                "tried": [
                    {
                        "form": str(trial.form),
                        "share": str(trial.share),
                        "reach": list(trial.reach),
                        "mean": trial.mean,
                        "median": trial.error.median,
                        "p90": trial.error.p90,
                        "rows": trial.rows,
                    }
                    for trial in found.trials
                ],
                "warnings": list(found.warnings),
            }
            for found in fitted.families
        ],
        "warnings": list(fitted.warnings),
    }
