"""`treeopt export`: what an engine loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from treeopt.cli.command import Argument, CliOption
from treeopt.cli.options import Json, Out, PlanContext, engines

if TYPE_CHECKING:
    from treeopt.engines.exporting import Export
    from treeopt.engines.fitting import Loss


def export(
    plan: Annotated[
        str, Argument(metavar="PLAN", help="A plan; or a tree, a path list, any engine's file, or chain:K.")
    ],
    engine: Annotated[
        str | None,
        CliOption(help="NAME or NAME==VERSION; an unknown name lists them. [default: the plan's own]", names=engines),
    ] = None,
    batch: Annotated[int | None, CliOption(help="Which bucket, where the engine has one setting.")] = None,
    context: PlanContext = None,
    allow_off: Annotated[
        bool, CliOption("--allow-off", help="Draft nothing where the plan does not speculate.")
    ] = False,
    max_batch: Annotated[int | None, CliOption(min=1, help="Largest batch size that runs.")] = None,
    method: Annotated[str | None, CliOption(help="The engine's name for the drafter.")] = None,
    model: Annotated[str, CliOption(help="The target, as the engine finds it.")] = "MODEL",
    draft_model: Annotated[str, CliOption(help="The drafter, as the engine finds it.")] = "DRAFTER",
    device: Annotated[str, CliOption(help="What the engine runs on: cuda or cpu.")] = "cuda",
    synthetic: Annotated[
        bool, CliOption("--synthetic", help="Let the engine accept by the plan's f, whatever is drafted.")
    ] = False,
    heads: Annotated[int | None, CliOption(min=1, help="Heads of a Medusa or Hydra model.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Write a plan the way an engine reads it, and say what is lost, how to start it, and how to see it at work."""
    from treeopt.engines.exporting import export as run
    from treeopt.engines.format import Setup
    from treeopt.engines.importing import load_drafts
    from treeopt.engines.registry import find_engine
    from treeopt.errors import InputError
    from treeopt.files.typed import json_text
    from treeopt.files.writing import refuse_overwriting, write_atomically
    from treeopt.plan.plan import Plan

    target = None if engine is None else find_engine(engine)
    drafts = load_drafts(plan)
    own = drafts.sources.engine if isinstance(drafts, Plan) else None
    if target is None and own is None:
        raise InputError("no engine is named", hint="add --engine NAME, or search with --engine")
    target = target or find_engine(own.wanted if own is not None else "")
    if isinstance(drafts, Plan):
        drafts = drafts.at_context(context)
        allow_off = allow_off or (own is not None and own.allow_off)
    setup = Setup(
        drafter=drafts.sources.drafter.reference if isinstance(drafts, Plan) else None,
        method=method,
        model=model,
        draft_model=draft_model,
        device=device,
        max_batch=max_batch,
        heads=heads,
        out=out,
    )
    result = run(drafts, target, setup, batch=batch, allow_off=allow_off, synthetic=synthetic)
    path = None if out is None else Path(setup.written_to(result.written.file_name))
    refuse_overwriting(path, plan)
    if path is not None:
        write_atomically(path, _whole_lines(result.written.content), what="engine file")
    if json:
        click.echo(json_text(result))
        return
    if path is None:
        _print(result)
    _talk(result, path)


def _print(result: Export) -> None:
    from treeopt.errors import InputError

    content = result.written.content
    if isinstance(content, bytes):
        raise InputError("this file is binary", hint=f"add --out {result.written.file_name}")
    click.echo(_whole_lines(content), nl=False)


def _whole_lines(content: str | bytes) -> str | bytes:
    return content if isinstance(content, bytes) or content.endswith("\n") else f"{content}\n"


def _loss(loss: Loss) -> str:
    from treeopt.solve.buckets import batches_in_words

    said = f"{batches_in_words(*loss.batch)}: {loss.exported} for {loss.planned}"
    if loss.share is None:
        return f"lost: {said}: not priced"
    # One tree serves a range; at its largest batch, where it is priced, the chain can be the faster one.
    word = "gained" if loss.share < 0.0 else "lost"
    return f"{word}: {said}: {abs(loss.share):.1%} of tokens/s at batch {loss.batch.max}"


def _talk(result: Export, path: Path | None) -> None:
    """How to use the file, on stderr."""
    written, target = result.written, result.target
    lines = [f"engine: {target.words}, {result.kind}"]
    lines += [f"wrote: {path}"] if path is not None else []
    lines.append(f"start: {written.launch}")
    if written.capture_sizes:
        lines.append(f"capture ({written.capture_unit}): {' '.join(map(str, written.capture_sizes))}")
    lines += [_loss(loss) for loss in result.losses]
    lines.append(f"at work if: {written.proof}")
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"known bug: {bug.text} ({bug.reference})" for bug in result.bugs]
    for line in lines:
        click.echo(line, err=True)
