"""`treeopt import`: what an engine is set to today, as trees."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from treeopt.cli.options import Json, Out


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A path list, growmap, configuration or command line.")],
    engine: Annotated[
        str | None, typer.Option(help="NAME or NAME==VERSION; by the file's shape if not given.", show_default=False)
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Read an engine's file back into trees, as that engine would draft them."""
    from treeopt.engines.importing import import_file
    from treeopt.engines.registry import find_engine
    from treeopt.files.writing import refuse_overwriting, write_atomically

    found = import_file(file, None if engine is None else find_engine(engine))
    refuse_overwriting(out, file)
    text = found.schedule.yaml()
    if out is not None:
        write_atomically(out, text, what="tree file")
    if json:
        typer.echo(json_format.dumps(found.schedule.document(), indent=2))
    elif out is None:
        typer.echo(text, nl=False)
    drafter = () if found.drafter is None else (f"drafter: {found.drafter}",)
    _talk(found.engine.title, found.format, (*drafter, *found.notes), out)


def _talk(title: str, form: str, notes: tuple[str, ...], out: Path | None) -> None:
    from treeopt.cli import console

    console.notes([f"read as {title}, {form}", *notes])
    console.wrote(out)
