"""`treeopt ranks collect`: run a target and a drafter over prompts and write down what the drafter guessed."""

from __future__ import annotations

import json as json_format
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treeopt.cli.options import Json, TargetModel

if TYPE_CHECKING:
    from treeopt.acceptance.trace import Trace
    from treeopt.collect.job import CollectJob
    from treeopt.collect.parts import Collection


def collect(
    target: TargetModel,
    draft: Annotated[
        str, typer.Option(help="ngram[:N], ngram:vllm:1-3, early-exit:K, medusa:DIR, or a model as for --target.")
    ],
    prompts: Annotated[Path, typer.Option(help='JSONL: {"prompt": ...}, {"messages": [...]} or {"token_ids": [...]}.')],
    out: Annotated[Path, typer.Option("--out", "-o", help="The trace, .npz.")],
    depth: Annotated[int, typer.Option(help="D, how many tokens ahead the drafter guesses.")] = 6,
    ranks: Annotated[int, typer.Option(help="Guesses that are told apart.")] = 32,
    max_new_tokens: Annotated[int, typer.Option(help="The longest continuation of a prompt.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 for greedy decoding.")] = 0.0,
    rule: Annotated[
        str | None,
        typer.Option(help="At a temperature: target-sample (default) or recursive-rejection.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is sampled.")] = 0,
    shard: Annotated[str, typer.Option(help="I/N: this process takes every N-th document, from the I-th on.")] = "0/1",
    documents_per_part: Annotated[int, typer.Option(help="Documents written at a time.")] = 8,
    ray: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster, auto, or local.", show_default=False, metavar="ADDRESS"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="With --ray: actors; one per GPU, or per CPU.", show_default=False, min=1)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    json: Json = False,
) -> None:
    """Run a target and a drafter over prompts and record the rank of every token among the drafter's guesses.

    Run again after an interruption, it goes on with the documents that are missing.
    """
    from treeopt.collect.job import CollectJob, PromptShard, run
    from treeopt.collect.settings import CollectSettings

    settings = CollectSettings(
        target=target,
        draft=draft,
        depth=depth,
        ranks=ranks,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        rule=rule,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    job = CollectJob(
        settings=settings,
        prompts=prompts,
        out=out,
        shard=PromptShard.parse(shard),
        documents_per_part=documents_per_part,
    )
    from treeopt.cli import console

    with job.start() as collection:
        console.notes(collection.set_aside)
        with console.if_interrupted(lambda: _kept(collection)):
            with _progress(job.documents) as advance:
                if ray is None:
                    run(job, collection, advance=advance)
                else:
                    from treeopt.collect.ray_pool import run_on_ray

                    run_on_ray(job, collection, address=ray, workers=workers, advance=advance)
            trace = collection.finish()
    _report(job, trace, json)


def _kept(collection: Collection) -> str:
    done = len(collection.parts) - len(collection.missing())
    return f"{collection.folder} keeps {done} of {len(collection.parts)} parts; the same command goes on with the rest"


def _report(job: CollectJob, trace: Trace, json: bool) -> None:
    from treeopt.cli import console

    summary = _summary(job, trace)
    if json:
        typer.echo(json_format.dumps(summary, indent=2))
        return
    console.result(f"{summary['documents']} documents, {summary['positions']} positions, depth {summary['depth']}")
    # No text is as long as the deepest guesses where fewer tokens are written than guessed ahead.
    rates = ", ".join("-" if rate is None else f"{rate:.3f}" for rate in summary["top_guess_right"])
    console.result(f"top guess right at depth 1, 2, ...: {rates}")
    console.wrote(job.out)


def _summary(job: CollectJob, trace: Trace) -> dict[str, Any]:
    from treeopt.acceptance.trace import PAST_END

    known = (trace.rank != PAST_END).sum(axis=0)
    right = (trace.rank == 0).sum(axis=0)
    return {
        "format": "treeopt.collect/1",
        "trace": str(job.out),
        "documents": trace.documents,
        "positions": len(trace),
        "depth": trace.depth,
        "top_guess_right": [float(r / k) if k else None for r, k in zip(right, known, strict=True)],
        "conditions": job.conditions.known(),
    }


@contextmanager
def _progress(documents: int) -> Iterator[Callable[[int], None]]:
    """On a terminal, a bar with the remaining time if the work takes longer than a second; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("documents"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task("documents", total=documents)
    timer = threading.Timer(1.0, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done: progress.advance(task, done)
    finally:
        timer.cancel()
        progress.stop()
