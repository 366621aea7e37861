"""How far long work has come, on stderr: a bar with the remaining time on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

# A log gets a line at most so often.
_LINE_EVERY_S: Final = 10.0

Advance = Callable[[float, int], None]


@contextmanager
def progress(done_word: str, of: int, things: str, *, total: float) -> Iterator[Advance]:
    """Yields what is told of each piece of work: its share of `total` (seconds, or things) and how many things it was.

    Args:
        done_word: what has been done to the things, `timed`.
        of: how many things there are.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = _Lines(done_word, of, things, total)
        yield lines.advance
        lines.finish()
        return
    columns = (TextColumn(done_word), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[count]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task, count = bar.add_task(done_word, total=total, count=""), 0

        def advance(share: float, number: int) -> None:
            nonlocal count
            count += number
            bar.update(task, advance=share, count=f"{count}/{of} {things}")

        yield advance


class _Lines:
    """Lines in a log, from the first that is due on."""

    def __init__(self, done_word: str, of: int, things: str, total: float) -> None:
        self._words, self._of, self._total = (done_word, things), of, total
        self._start = self._last = time.monotonic()
        self._share, self._count, self._said = 0.0, 0, False

    def advance(self, share: float, number: int) -> None:
        """Say how far it is, if the last line was some time ago."""
        self._share, self._count, now = self._share + share, self._count + number, time.monotonic()
        if now - self._last >= _LINE_EVERY_S and self._count < self._of:
            self._last, self._said = now, True
            left_s = (self._total - self._share) * (now - self._start) / max(self._share, 1e-9)
            done_word, things = self._words
            click.echo(f"{done_word} {self._count} of {self._of} {things}, about {left_s:.0f} s left", err=True)

    def finish(self) -> None:
        """The last line, if there was any."""
        if self._said:
            done_word, things = self._words
            took_s = time.monotonic() - self._start
            click.echo(f"{done_word} {self._count} of {self._of} {things} in {took_s:.0f} s", err=True)
