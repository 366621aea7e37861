"""`treeopt measure`: the user's own server, timed from outside."""

from __future__ import annotations

import json as json_format
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from treeopt.cli.command import Argument, CliOption
from treeopt.cli.options import Json, parse_batches
from treeopt.errors import InputError

if TYPE_CHECKING:
    from treeopt.measure.plateau import Plateau
    from treeopt.measure.rows import StepRow

_WHAT: Final = "file of step times"


def measure(
    url: Annotated[str | None, Argument(metavar="URL", help="The server, as http://127.0.0.1:8000.")] = None,
    concurrency: Annotated[
        str, CliOption("--concurrency", "--batches", help="Requests at once, as 1,2,4,8.")
    ] = "1,2,4,8",
    prompts: Annotated[Path | None, CliOption(help="Your prompts, JSONL; else eight of our own.")] = None,
    tokens: Annotated[int, CliOption(min=32, max=8192, help="Tokens of each completion.")] = 128,
    budget_s: Annotated[float, CliOption(min=1.0, help="Seconds for all concurrencies together.")] = 120.0,
    timeout_s: Annotated[float, CliOption(min=1.0, help="Seconds without a word before giving up.")] = 60.0,
    model: Annotated[str | None, CliOption(help="Which of the server's models; else its first.")] = None,
    out: Annotated[Path | None, CliOption("--out", "-o", help="Write the rows here; those in it are kept.")] = None,
    ranks_out: Annotated[Path | None, CliOption(help="Write what was accepted here, as a rank profile.")] = None,
    plan_calibration: Annotated[
        bool, CliOption("--plan-calibration", help="Write a schedule to measure instead of measuring.")
    ] = False,
    k: Annotated[int, CliOption("--k", min=1, max=64, help="Longest draft of --plan-calibration.")] = 4,
    json: Json = False,
) -> None:
    """Drive an OpenAI-compatible server: step times by (batch, K), and acceptance by position.

    Sends only to URL, never more requests at once than the largest --concurrency, and stops within --budget-s.
    """
    batches = parse_batches(concurrency, what="number of requests", option="--concurrency")
    if plan_calibration:
        _plan(batches, k, out, json)
        return
    if url is None:
        raise InputError("no server", hint="for example `treeopt measure http://127.0.0.1:8000 --concurrency 1,2,4,8`")
    from treeopt.measure.run import BUILT_IN_PROMPTS, Task

    task = Task(
        url=url,
        concurrencies=batches,
        prompts=BUILT_IN_PROMPTS if prompts is None else _prompts(prompts),
        tokens=tokens,
        budget_s=budget_s,
        timeout_s=timeout_s,
        model=model,
        api_key=os.environ.get("OPENAI_API_KEY"),
    )
    _measure(task, out, ranks_out, json)


def _measure(task: Any, out: Path | None, ranks_out: Path | None, json: bool) -> None:
    import asyncio

    from treeopt.cli import console
    from treeopt.extras import require
    from treeopt.files.typed import yaml_text
    from treeopt.files.writing import Output, check_all_writable, write_files
    from treeopt.measure.rows import ServerSteps, accepted_profile, read_rows, rows_csv
    from treeopt.measure.run import measure as run
    from treeopt.render.measure import report

    require("httpx", extra="measure")
    check_all_writable((out, _WHAT), (ranks_out, "rank profile"))
    rows: list[StepRow] = read_rows(out) if out is not None and out.exists() else []
    new: list[StepRow] = []
    plateaus: list[Plateau] = []
    served: list[str] = []

    def keep(row: StepRow, of_row: Sequence[Plateau], model: str) -> None:
        rows[:] = [r for r in rows if (r.batch, r.k_max) != (row.batch, row.k_max)] + [row]
        new.append(row)
        plateaus.extend(of_row)
        served[:] = [model]
        profile = accepted_profile(plateaus, name="measured", target=model)
        ranks = [Output(ranks_out, yaml_text(profile), "rank profile")] if ranks_out and profile is not None else []
        write_files(*([] if out is None else [Output(out, rows_csv(rows), _WHAT, own=True)]), *ranks)

    def kept() -> str:
        if out is None:
            return "nothing was written: give --out to keep each row as it is measured"
        batches = ", ".join(str(r.batch) for r in new)
        return f"{out} has the rows of {batches} requests at once" if new else f"no row was added to {out}"

    def done(batch: int, k_max: int) -> bool:
        return any((r.batch, r.k_max) == (batch, k_max) for r in rows)

    try:
        with console.if_interrupted(kept), console.working("measuring"):
            asyncio.run(run(task, done=done, keep=keep, progress=lambda text: click.echo(text, err=True)))
    except* InputError as failed:
        if new:
            console.report(ServerSteps(rows=tuple(new)), json, report)
            console.notes([kept()] if out is not None else [])
        raise _first(failed) from None
    profile = accepted_profile(plateaus, name="measured", target=served[0] if served else "")
    console.report(ServerSteps(rows=tuple(rows), ranks=profile), json, report)
    console.notes(_next(rows, task, out, ranks_out if profile is not None else None))


def _first(failed: BaseExceptionGroup[InputError]) -> InputError:
    error: BaseException = failed
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, InputError)
    return error


def _next(rows: Sequence[StepRow], task: Any, out: Path | None, ranks_out: Path | None) -> list[str]:
    """What is missing for a verdict, and the command that uses the rows."""
    asked = ",".join(str(b) for b in task.concurrencies)
    again = f"treeopt measure {task.url} --concurrency {asked} --out {out or 'steps.csv'}"
    told = []
    if not any(r.k_max == 0 for r in rows):
        told.append(f"missing for a verdict: plain decoding. Start the server without its drafter, then `{again}`")
    if all(r.k_max == 0 for r in rows):
        told.append(f"missing for a verdict: a drafter. Start the server with one, then `{again}`")
    if out is not None and len(told) == 0:
        ranks = f" --ranks {ranks_out}" if ranks_out is not None else ""
        told.append(f"now `treeopt search --batches {asked} --cost {out}{ranks}`")
    return told


def _prompts(path: Path) -> tuple[Any, ...]:
    from treeopt.collect.prompts import read_prompts

    return tuple(p.content for p in read_prompts(path))


def _plan(batches: tuple[int, ...], k: int, out: Path | None, json: bool) -> None:
    from treeopt.cli import console
    from treeopt.files.writing import write_atomically
    from treeopt.measure.calibration import calibration_schedule

    schedule = json_format.dumps(calibration_schedule(batches, k_max=k))
    if out is not None:
        write_atomically(out, schedule + "\n", what="schedule")
    click.echo(schedule)
    if not json:
        asked = ",".join(map(str, batches))
        console.notes(
            [
                'vLLM 0.24 or later: put it into --speculative-config as "num_speculative_tokens_per_batch_size", '
                f'with "num_speculative_tokens": {k}; then `treeopt measure URL --concurrency {asked} --out steps.csv`',
                "K = 0 in it is not plain decoding: the drafter still keeps its cache; measure plain decoding apart",
            ]
        )
