"""`treeopt ranks watch`: a running server's acceptance, as its counters tell it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from treeopt.cli.command import Argument, CliOption
from treeopt.cli.options import Json

if TYPE_CHECKING:
    from treeopt.check.live import Decide, Watch

Url = Annotated[str, Argument(metavar="URL", help="The server, as http://127.0.0.1:8000.")]
Interval = Annotated[float, CliOption("--interval-s", min=0.05, max=3600.0, help="Seconds between two looks.")]


def watch(
    url: Url,
    asked: Annotated[
        str | None, CliOption("--for", metavar="PLAN|K", help="Stop when a plan is judged, or chains of K are known.")
    ] = None,
    gate: Annotated[float, CliOption(min=0.001, max=0.9, help="The change or error of E that matters.")] = 0.05,
    batch: Annotated[int | None, CliOption(min=1, help="The batch size, where the counters do not tell.")] = None,
    interval_s: Interval = 5.0,
    seconds: Annotated[float | None, CliOption(min=0.0, help="Stop after so many; else when it is decided.")] = None,
    json: Json = False,
) -> None:
    """Show a server's acceptance by position while it serves: vLLM, SGLang, TensorRT-LLM.

    Reads its page of counters and sends nothing else. Without --for it goes on until --seconds or an interrupt.
    """
    from treeopt.check.live import Scrapes
    from treeopt.check.live import watch as run
    from treeopt.cli import console
    from treeopt.render.watch import line, report

    last: list[Watch] = []

    def tell(seen: Watch) -> None:
        last[:] = [seen]
        click.echo(line(seen), err=True)

    decide = _decide(asked, gate, batch)
    with Scrapes.of(url) as scrapes:
        try:
            run(scrapes, decide, interval_s=interval_s, seconds=seconds, tell=tell)
        except KeyboardInterrupt:
            if not last:
                raise
    console.report(last[0], json, report)
    if not json:
        console.notes(last[0].notes)


def _decide(asked: str | None, gate: float, batch: int | None) -> Decide:
    from treeopt.check.live import endless, for_chain, for_plan
    from treeopt.plan.reading import load_plan

    if asked is None:
        return endless
    if asked.isdecimal() and 1 <= int(asked) <= 64:
        return for_chain(int(asked), gate=gate)
    return for_plan(load_plan(Path(asked)), gate=gate, batch=batch, into=[])
