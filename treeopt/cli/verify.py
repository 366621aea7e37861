"""`treeopt verify`: the trees of a plan checked path by path, or another engine's step diagnosed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import click

from treeopt.cli.command import Argument, CliOption
from treeopt.cli.options import Json

DIFFERENT = 3  # exit code


def verify(
    plan: Annotated[Path, Argument(metavar="PLAN", help="A plan, a tree file, trees by batch size or a path list.")],
    dump: Annotated[Path | None, CliOption(help="Diagnose this step of another engine: NPZ or JSON.")] = None,
    write_dump: Annotated[Path | None, CliOption(help="Write a right step in that format, as an example.")] = None,
    batch: Annotated[int | None, CliOption(help="Only the trees of this batch size.")] = None,
    model: Annotated[
        str | None,
        CliOption(help="A model directory, .gguf file or hub id; without it a toy model."),
    ] = None,
    attention: Annotated[Literal["torch", "triton"], CliOption(help="What computes the tree's attention.")] = "torch",
    device: Annotated[str, CliOption(help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[str, CliOption(help="auto, float64, float32, bfloat16 or float16.")] = "auto",
    context: Annotated[
        int | None,
        CliOption(help="Prefix length L (default 16), and which trees of a plan by context."),
    ] = None,
    seed: Annotated[int, CliOption(min=0, help="Seed of the tokens, and of the toy's weights.")] = 0,
    json: Json = False,
) -> None:
    """Check every tree of a plan path by path against plain decoding; exit code 3 if something differs."""
    from treeopt.cli import console
    from treeopt.files.writing import refuse_overwriting
    from treeopt.render.verify import diagnosis, report
    from treeopt.verify.subjects import TreeSelection
    from treeopt.verify.verify import VerifySettings, diagnose_dump, verify_plan, write_example

    if dump is not None and write_dump is not None:
        raise click.BadParameter("a dump is read or written, not both", param_hint="'--dump' / '--write-dump'")
    choice = TreeSelection(batch=batch, context=context)
    if dump is not None:
        step = diagnose_dump(plan, dump, choice)
        console.report(step, json, diagnosis)
        console.notes([] if json else step.notes)
        raise click.exceptions.Exit(DIFFERENT if step.differences else 0)
    length = VerifySettings.context if context is None else context
    settings = VerifySettings(model=model, attention=attention, device=device, dtype=dtype, context=length, seed=seed)
    if write_dump is not None:
        refuse_overwriting(write_dump, plan)
        write_example(plan, write_dump, settings, choice)
        console.wrote(write_dump)
        return
    with console.working("verifying"):
        found = verify_plan(plan, settings, choice)
    console.report(found, json, report)
    console.notes([] if json else found.notes)
    raise click.exceptions.Exit(0 if found.passed else DIFFERENT)
