"""How far long work has come, on stderr: a bar with the remaining time on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# A log gets a line at most so often, and one at least so often.
_LINE_EVERY_S: Final = 10.0
_QUIET_S: Final = 30.0

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
        with _Lines(done_word, of, things, total) as lines:
            yield lines.advance
        return
    columns = (TextColumn(done_word), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[count]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task, count = bar.add_task(done_word, total=total, count=""), 0

        def advance(share: float, number: int) -> None:
            nonlocal count
            count += number
            bar.update(task, advance=share, count=f"{count}/{of} {things}")

        yield advance


class _Lines:
    """Lines in a log: as things are done, and where none is for long, that the work goes on."""

    def __init__(self, done_word: str, of: int, things: str, total: float) -> None:
        self._words, self._of, self._total = (done_word, things), of, total
        self._start = self._last = time.monotonic()
        self._share, self._count, self._said = 0.0, 0, False
        self._lock, self._over = threading.Lock(), threading.Event()

    def __enter__(self) -> _Lines:
        threading.Thread(target=self._remind, daemon=True).start()
        return self

    def __exit__(self, *failed: object) -> None:
        self._over.set()
        if self._said and failed[0] is None:
            click.echo(f"{self._done()} in {time.monotonic() - self._start:.0f} s", err=True)

    def advance(self, share: float, number: int) -> None:
        """Say how far it is, if the last line was some time ago."""
        with self._lock:
            self._share, self._count, now = self._share + share, self._count + number, time.monotonic()
            if now - self._last >= _LINE_EVERY_S and self._count < self._of:
                self._say(now)

    def quiet(self) -> None:
        """Say how far it is, if there was no line for long: a large model is loaded, or one thing takes minutes."""
        with self._lock:
            now = time.monotonic()
            if now - self._last >= _QUIET_S:
                self._say(now)

    def _remind(self) -> None:
        while not self._over.wait(_QUIET_S):
            self.quiet()

    def _say(self, now: float) -> None:
        self._last, self._said = now, True
        gone_s = now - self._start
        left = f", about {(self._total - self._share) * gone_s / self._share:.0f} s left" if self._share else ""
        click.echo(f"{self._done()}{left or f' after {gone_s:.0f} s'}", err=True)

    def _done(self) -> str:
        done_word, things = self._words
        return f"{done_word} {self._count} of {self._of} {things}"
