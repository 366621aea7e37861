"""`treeopt profile --out FILE`: time the kernels of a step on this device and fit a hardware profile to them."""

from __future__ import annotations

import json as json_format
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treeopt.cli.options import Drafter, Json, Model, command_line
from treeopt.planner.names import Names

if TYPE_CHECKING:
    from treeopt.profile.measure import Bench
    from treeopt.profile.points import Point
    from treeopt.profile.profile import Profiled
    from treeopt.profile.session import Schedule

# A log gets a line at most so often.
_LINE_EVERY_S = 10.0


def measure(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the profile here, its curves beside it as .npz.", show_default=False),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; the GPU where there is one.", show_default=False)
    ] = None,
    model: Model = Names.model,
    drafter: Drafter = Names.drafter,
    tp: Annotated[int, typer.Option(min=1, help="Time one GPU's part of so many.")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help="bf16, fp16 or fp32; bf16 on a GPU, fp32 on a processor.", show_default=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=8, help="The largest B x N to time.")] = 512,
    max_context: Annotated[int, typer.Option(min=512, help="The longest context to time.")] = 8192,
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Timing rows; beside --out.", show_default=False)
    ] = None,
    budget_s: Annotated[
        float | None, typer.Option(min=1, help="Stop timing after so many seconds.", show_default=False)
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="With --device cpu: torch's threads.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count points and time; only the ceilings run.")] = False,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    json: Json = False,
) -> None:
    """Hardware profiles: time this device's kernels, or fit measured times.

    With --out FILE: time the kernels of a model's step on this device, each checked first, and fit a profile to them.
    A run that was killed goes on from its rows.
    """
    if context.invoked_subcommand is not None:
        return
    if out is None and not dry_run:
        raise typer.BadParameter("give --out FILE, or a command", param_hint="--out")
    out = Path("profile.yaml") if out is None else out  # a dry run writes nothing
    bench = _bench(out, device, model, drafter, tp, dtype, max_tokens, max_context, rows, threads, dry_run, seed)
    from treeopt.cli import console

    with console.if_interrupted(lambda: _kept(bench)):
        _run(bench, out, budget_s, dry_run, json)


def _run(bench: Bench, out: Path, budget_s: float | None, dry_run: bool, json: bool) -> None:
    from treeopt.cli import console

    with console.working("timing the device's ceilings"):
        schedule = bench.schedule(budget_s)
    done, of = len(schedule.points) - len(schedule.left), len(bench.points)
    if done:
        console.notes([f"{bench.rows.path} has {done} of these points already"])
    if len(schedule.points) < of:
        console.notes([f"the time allows about {len(schedule.points)} of {of} points, the coarsest of the grid"])
    if dry_run:
        _report_dry_run(bench, schedule, json)
        return
    _time(bench, schedule, budget_s)
    _finish(bench, out, json)


def _kept(bench: Bench) -> str:
    if not bench.rows.path.exists():
        return "nothing was timed yet"
    return f"{bench.rows.path} keeps what was timed; the same command goes on from there"


def _bench(
    out: Path,
    device: str | None,
    model: str,
    drafter: str,
    tp: int,
    dtype: str | None,
    max_tokens: int,
    max_context: int,
    rows: Path | None,
    threads: int | None,
    dry_run: bool,
    seed: int,
) -> Bench:
    from treeopt.cost import load_model, parse_drafter
    from treeopt.cost.formats import Dtype
    from treeopt.cost.hardware import check_profile_path
    from treeopt.errors import InputError
    from treeopt.files.shipped import locate
    from treeopt.files.writing import check_writable, refuse_overwriting
    from treeopt.profile.device import find_device
    from treeopt.profile.measure import Bench, Questions
    from treeopt.profile.rows import RowFile

    rows = rows or out.with_suffix(".rows.jsonl")
    check_profile_path(out)
    check_writable(rows, what="file of timing rows")
    if rows.suffix != ".jsonl":
        raise InputError(f"{rows}: timing rows go to a .jsonl file", hint="name it so")
    model_at = locate("models", model).path
    refuse_overwriting(out, rows, model_at)
    found = find_device(device, threads=threads)
    questions = Questions(
        model=load_model(model_at),
        drafter=parse_drafter(drafter, load_model=lambda name: load_model(locate("models", name).path)),
        dtype=Dtype(dtype or ("fp32" if found.kind == "cpu" else "bf16")),
        tp=tp,
        max_tokens=max_tokens,
        max_context=max_context,
    )
    return Bench(
        device=found, rows=RowFile(path=rows, device=found.key), questions=questions, seed=seed, keep=not dry_run
    )


def _time(bench: Bench, schedule: Schedule, budget_s: float | None) -> None:
    from treeopt.profile.session import expected_s

    with _progress(schedule) as advance:
        for timed in bench.run(schedule.left, budget_s=budget_s):
            advance(expected_s(timed.point, bench.ceilings, bench.device.kind))


def _finish(bench: Bench, out: Path, json: bool) -> None:
    from treeopt.cli import console
    from treeopt.cost.hardware import save_hardware
    from treeopt.profile.profile import profile_of

    with console.working("fitting"):
        profiled = profile_of(bench, name=out.stem, command=command_line(), noise=bench.noise())
    written = save_hardware(out, profiled.fitted.hardware)
    if json:
        typer.echo(json_format.dumps(_document(profiled), indent=2))
    else:
        from treeopt.render.profiling import profile_report

        console.result(profile_report(profiled))
    console.notes(profiled.notes)
    console.wrote(*written, bench.rows.path)


def _report_dry_run(bench: Bench, schedule: Schedule, json: bool) -> None:
    from treeopt.cli import console
    from treeopt.profile.session import expected_s
    from treeopt.render.profiling import dry_run_report

    left = schedule.left
    seconds = [expected_s(point, bench.ceilings, bench.device.kind) for point in left]
    if json:
        document = {
            "format": "treeopt.profile/1",
            "dry_run": True,
            "device": bench.device.key,
            "ceilings": asdict(bench.ceilings),
            "points": [_point(point) | {"floor_s": point.floor_s(bench.ceilings)} for point in left],
            "expected_s": sum(seconds),
        }
        typer.echo(json_format.dumps(document, indent=2))
    else:
        console.result(dry_run_report(left, seconds, bench.ceilings))
    console.notes(bench.notes())


def _document(profiled: Profiled) -> dict[str, Any]:
    from treeopt.profile.profile import compaction_price, over_floor

    hardware = profiled.fitted.hardware
    price = compaction_price(hardware, profiled.times)
    return {
        "format": "treeopt.profile/1",
        "dry_run": False,
        "name": hardware.name,
        "device": hardware.device,
        "engine": hardware.measurement.engine if hardware.measurement else None,
        "ceilings": asdict(profiled.ceilings),
        "noise": profiled.noise,
        "fits": [
            {"family": str(found.family), "dtype": found.dtype, **found.fit.document()}
            for found in profiled.fitted.families
        ],
        "over_floor": [
            {"operator": operator, "points": points, "median": median, "worst": worst.over_floor}
            for operator, points, median, worst in over_floor(profiled.times)
        ],
        "compaction_over_price": price._asdict() if price else None,
        "points": [
            _point(time.point) | {"time_s": time.time_s, "over_floor": time.over_floor} for time in profiled.times
        ],
        "notes": profiled.notes,
    }


def _point(point: Point) -> dict[str, Any]:
    return {"operator": point.operator, "dtype": str(point.dtype), **dict(point.sizes)}


@contextmanager
def _progress(schedule: Schedule) -> Iterator[Callable[[float], None]]:
    """A bar with the remaining time on a terminal, a line now and then elsewhere; fed with expected seconds."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        with _lines(schedule) as advance:
            yield advance
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("timing"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[count]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task, total = bar.add_task("timing", total=schedule.seconds, count=""), len(schedule.left)
        counts = iter(range(1, total + 1))
        yield lambda expected: bar.update(task, advance=expected, count=f"{next(counts)}/{total} points")


@contextmanager
def _lines(schedule: Schedule) -> Iterator[Callable[[float], None]]:
    start = last = time.monotonic()
    done_s, count, of, said = 0.0, 0, len(schedule.left), False

    def advance(expected: float) -> None:
        nonlocal last, done_s, count, said
        done_s, count, now = done_s + expected, count + 1, time.monotonic()
        if now - last >= _LINE_EVERY_S and count < of:
            last, said = now, True
            left_s = (schedule.seconds - done_s) * (now - start) / done_s
            typer.echo(f"timed {count} of {of} points, about {left_s:.0f} s left", err=True)

    yield advance
    if said:
        typer.echo(f"timed {count} of {of} points in {time.monotonic() - start:.0f} s", err=True)
