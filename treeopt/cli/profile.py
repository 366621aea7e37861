"""`treeopt profile --out FILE`: time the kernels of a step on this device and fit a hardware profile to them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from treeopt.cli.command import CliOption, Commands, LazyCommand, command
from treeopt.cli.options import Drafter, Json, Model, command_line
from treeopt.planner.names import Names

if TYPE_CHECKING:
    from treeopt.profile.measure import KernelBench
    from treeopt.profile.session import Schedule

FAILED = 3  # exit code


def profile(
    context: click.Context,
    out: Annotated[
        Path | None,
        CliOption("--out", "-o", help="Write the profile here, its curves beside it as .npz."),
    ] = None,
    device: Annotated[str | None, CliOption(help="cpu or cuda; the GPU where there is one.")] = None,
    model: Model = Names.model,
    drafter: Drafter = Names.drafter,
    tp: Annotated[int, CliOption(min=1, help="Time one GPU's part of so many.")] = 1,
    dtype: Annotated[str | None, CliOption(help="bf16, fp16, fp32 or fp8; bf16 on a GPU, fp32 on a processor.")] = None,
    max_tokens: Annotated[int, CliOption(min=8, help="The largest B x N to time.")] = 512,
    max_context: Annotated[int, CliOption(min=512, help="The longest context to time.")] = 8192,
    rows: Annotated[Path | None, CliOption(metavar="FILE.jsonl", help="Timing rows; beside --out.")] = None,
    budget_s: Annotated[float | None, CliOption(min=1, help="Stop timing after so many seconds.")] = None,
    threads: Annotated[int | None, CliOption(min=1, help="With --device cpu: torch's threads.")] = None,
    dry_run: Annotated[bool, CliOption("--dry-run", help="Count points and time; only the ceilings run.")] = False,
    seed: Annotated[int, CliOption(min=0, help="Of the random inputs.")] = 0,
    json: Json = False,
) -> None:
    """Hardware profiles: time this device's kernels, or fit measured times.

    With --out FILE: time the kernels of a model's step on this device, each checked first, and fit a profile to them.
    A run that was killed goes on from its rows; exit code 3 if points failed and the rest was fitted.
    """
    if context.invoked_subcommand is not None:
        return
    if out is None and not dry_run:
        raise click.BadParameter("give --out FILE, or a command", param_hint="--out")
    out = Path("profile.yaml") if out is None else out  # a dry run writes nothing
    from treeopt.cli import console
    from treeopt.cost import load_model, parse_drafter
    from treeopt.cost.formats import Dtype
    from treeopt.files.shipped import locate
    from treeopt.profile.device import find_device
    from treeopt.profile.measure import KernelBench, Questions
    from treeopt.profile.rows import RowFile

    rows = rows or out.with_suffix(".rows.jsonl")
    model_at = locate("models", model).path
    _check(out, rows, model_at)
    found = find_device(device, threads=threads)
    questions = Questions(
        model=load_model(model_at),
        drafter=parse_drafter(drafter, load_model=lambda name: load_model(locate("models", name).path)),
        dtype=Dtype(dtype or ("fp32" if found.kind == "cpu" else "bf16")),
        tp=tp,
        max_tokens=max_tokens,
        max_context=max_context,
    )
    bench = KernelBench(
        device=found, rows=RowFile(path=rows, device=found.key), questions=questions, seed=seed, keep=not dry_run
    )
    console.notes([f"timing {found.key}"])
    with closing(bench), console.if_interrupted(lambda: _kept(rows)):
        schedule = _schedule(bench, budget_s)
        if dry_run:
            _dry_run(bench, schedule, json)
            return
        _time(bench, schedule, budget_s)
        _finish(bench, out, json)


_alone = command(profile)
group = Commands(
    "profile",
    {
        "table": LazyCommand("treeopt.cli.table:table", "Step times as the table that an engine plans its drafts by."),
        "fit": LazyCommand("treeopt.cli.fit:fit", "Measured kernel times or served step times to a profile."),
    },
    help=_alone.help,
    params=_alone.params,
    callback=_alone.callback,
    invoke_without_command=True,
)


def _check(out: Path, rows: Path, model: Path) -> None:
    from treeopt.cost.hardware import check_profile_path
    from treeopt.errors import InputError
    from treeopt.files.writing import check_writable, refuse_overwriting

    check_profile_path(out)
    check_writable(rows, what="file of timing rows")
    if rows.suffix != ".jsonl":
        raise InputError(f"{rows}: timing rows go to a .jsonl file", hint="name it so")
    refuse_overwriting(out, rows, model)


def _kept(rows: Path) -> str:
    return (
        f"{rows} keeps what was timed; the same command goes on from there"
        if rows.exists()
        else "nothing was timed yet"
    )


def _schedule(bench: KernelBench, budget_s: float | None) -> Schedule:
    from treeopt.cli import console

    with console.working("timing the device's ceilings"):
        schedule = bench.schedule(budget_s)
    done, of = len(schedule.points) - len(schedule.left), len(bench.points)
    if done:
        console.notes([f"{bench.rows.path} has {done} of these points already"])
    if len(schedule.points) < of:
        console.notes([f"the time allows about {len(schedule.points)} of {of} points, the coarsest of the grid"])
    return schedule


def _time(bench: KernelBench, schedule: Schedule, budget_s: float | None) -> None:
    from treeopt.cli.progress import progress
    from treeopt.profile.session import expected_s

    with progress("timed", len(schedule.left), "points", total=schedule.seconds) as advance:
        for done in bench.run(schedule.left, budget_s=budget_s):
            advance(expected_s(done.point, bench.ceilings, bench.device.kind), 1)


def _finish(bench: KernelBench, out: Path, json: bool) -> None:
    from treeopt.cli import console
    from treeopt.cost.hardware import save_hardware
    from treeopt.profile.profile import profile_of
    from treeopt.render.profile import report

    with console.working("fitting"):
        profiled = profile_of(bench, name=out.stem, command=command_line(), noise=bench.noise())
    written = save_hardware(out, profiled.fitted.hardware)
    console.report(profiled, json, report)
    console.notes(profiled.notes)
    console.wrote(*written, bench.rows.path)
    if failures := bench.failures():
        console.notes(
            [f"{len(failures)} points failed; without its line in {bench.rows.failed} a point is tried again"]
        )
        raise click.exceptions.Exit(FAILED)


def _dry_run(bench: KernelBench, schedule: Schedule, json: bool) -> None:
    from treeopt.cli import console
    from treeopt.profile.profile import DryRun
    from treeopt.profile.session import expected_s
    from treeopt.render.profile import dry_run

    seconds = [expected_s(point, bench.ceilings, bench.device.kind) for point in schedule.left]
    found = DryRun(device=bench.device.key, ceilings=bench.ceilings, points=list(schedule.left), seconds=seconds)
    console.report(found, json, dry_run)
    console.notes(bench.notes())
