"""Counters that run on from the start of a server, as lines of its log: the last of each run counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from treeopt.files.evidence_lines import Line

T = TypeVar("T")


class Running(NamedTuple, Generic[T]):
    """What a counter said in a line, with all that stands beside it; `server` tells apart logs that were mixed."""

    server: str
    drafted: int
    line: Line
    value: T


def last_of_runs(counters: Iterable[Running[T]]) -> list[T]:
    """The last values of every run of every server, in the order of the file; a counter that falls began anew.

    Raises:
        FileFormatError: the counter of one server falls and is back at once: the lines are of two.
    """
    ended: list[Running[T]] = []
    last: dict[str, Running[T]] = {}
    fell_from: dict[str, Running[T]] = {}
    for now in counters:
        before = last.get(now.server)
        if before is not None and now.drafted < before.drafted:
            ended.append(before)
            fell_from[now.server] = before
        elif (high := fell_from.pop(now.server, None)) is not None and now.drafted >= high.drafted > 0:
            raise now.line.error(
                f"a counter fell from {high.drafted} and is at {now.drafted} again one line later",
                hint="two servers or slots in one log: give the lines of one",
            )
        last[now.server] = now
    found = [*ended, *last.values()]
    return [item.value for item in sorted(found, key=lambda item: item.line.number)]


def restarts(runs: int, servers: int = 1) -> tuple[str, ...]:
    """What to tell of counters that began anew."""
    return (f"the counters started again {runs - servers} times: the runs are added up",) if runs > servers else ()
