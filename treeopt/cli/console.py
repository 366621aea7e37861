"""Where words go: the result to stdout, everything else to stderr."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import click
from rich.console import Console, RenderableType

from treeopt.answer import Level, Note

_STYLES: Final = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.NOTE: "dim"}

T = TypeVar("T")
# Wide enough for every table: a pipe or a log has no width of its own to fold at.
_PIPE_WIDTH = 160
_NOTES: Final = 3


def result(*parts: RenderableType) -> None:
    """Print the answer."""
    console = Console(highlight=False, emoji=False, width=width())
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str), markup=False)


def report(value: T, json: bool, draw: Callable[[T, int], RenderableType]) -> None:
    """Print an answer: its document as JSON, or as it is drawn at the width that there is."""
    if not json:
        result(draw(value, width()))
        return
    from treeopt.files.typed import json_text

    click.echo(json_text(value))


def answer(
    value: T,
    json: bool,
    draw: Callable[[T, int], RenderableType],
    said: Iterable[str | Note],
    *,
    all_notes: bool = False,
    standing: Sequence[str] = (),
) -> None:
    """Print an answer with what its reader must know: errors and warnings above it, notes below, three at most.

    A document has all notes in itself. Notes that hold one of `standing` are the same in every answer from one source:
    they are shown with `all_notes` only, as those beyond three are.
    """
    if json:
        report(value, json, draw)
        return
    found = list(dict.fromkeys(Note.note(item) if isinstance(item, str) else item for item in said))
    notes(note for note in found if note.level is not Level.NOTE)
    report(value, json, draw)
    rest = [note for note in found if note.level is Level.NOTE]
    own = [note for note in rest if all_notes or not any(words in note.text for words in standing)]
    shown = own if all_notes or len(own) <= _NOTES else own[: _NOTES - 1]
    notes(shown)
    if len(own) > len(shown):
        notes([f"{len(rest) - len(shown)} more: add --notes"])


def width() -> int:
    """Columns that a table may take: the terminal's, or what COLUMNS says."""
    console = Console()
    return console.width if console.is_terminal or os.environ.get("COLUMNS") else _PIPE_WIDTH


def notes(found: Iterable[str | Note]) -> None:
    """Print what the reader must know beside the answer, what matters most first."""
    console = Console(stderr=True, highlight=False, emoji=False)
    listed = [Note.note(item) if isinstance(item, str) else item for item in found]
    for note in sorted(listed, key=lambda note: list(Level).index(note.level)):
        console.print(f"{note.level}: {note.text}", style=_STYLES[note.level], markup=False, soft_wrap=True)


def wrote(*paths: Path | None) -> None:
    """Say which files were written; None is one that was not asked for."""
    given = [path for path in paths if path is not None]
    if given:
        *names, last = [str(given[0]), *(path.name for path in given[1:])]
        notes([f"wrote {', '.join(names)} and {last}" if names else f"wrote {last}"])


@contextmanager
def if_interrupted(kept: Callable[[], str]) -> Iterator[None]:
    """Where the user interrupts the work, say what is kept of it; the command then ends as interrupted ones do."""
    try:
        yield
    except KeyboardInterrupt:
        notes([f"interrupted: {kept()}"])
        raise


@contextmanager
def working(on: str) -> Iterator[None]:
    """On a terminal, show a spinner with the seconds gone by if the work takes longer than one."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=console, transient=True)
    progress.add_task(on, total=None)
    timer = threading.Timer(1.0, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        progress.stop()
