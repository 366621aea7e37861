"""`treeopt import`: what an engine is set to today, as trees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from treeopt.cli.command import Argument, CliOption
from treeopt.cli.options import Json, Out


def import_(
    file: Annotated[Path, Argument(metavar="FILE", help="A path list, growmap, configuration or command line.")],
    engine: Annotated[str | None, CliOption(help="NAME or NAME==VERSION; by the file's shape if not given.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Read an engine's file back into trees, as that engine would draft them."""
    from treeopt.cli import console
    from treeopt.engines.importing import import_file
    from treeopt.engines.registry import find_engine
    from treeopt.files.typed import json_text
    from treeopt.files.writing import write_atomically

    found = import_file(file, None if engine is None else find_engine(engine))
    text = found.schedule.yaml()
    if out is not None:
        write_atomically(out, text, what="tree file")
    if json:
        click.echo(json_text(found.schedule))
    elif out is None:
        click.echo(text, nl=False)
    drafter = [] if found.drafter is None else [f"drafter: {found.drafter}"]
    console.notes([f"read as {found.engine.title}, {found.format}", *drafter, *found.notes])
    console.wrote(out)
