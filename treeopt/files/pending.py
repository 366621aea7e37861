"""A set of files that takes its places at once: what a killed command began is ended by whoever opens one of them next.

Renames of several files are several changes, so a note beside each place says what is about to move where. The note
beside the first place is the decision: with it all are new, without it all are old. It knows what stood in each place,
so that a file which someone else has put there since is left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

_NAME_BYTES: Final = 100  # of a file's name in its note's: the rest is in the hash


class Move(NamedTuple):
    """A staged file, its place, and what stood there: inode, size and time; None where nothing did."""

    staged: Path
    place: Path
    before: tuple[int, ...] | None

    @classmethod
    def of(cls, staged: Path, place: Path) -> Move:
        """The move, with what stands in its place now."""
        return cls(staged, place, _mark_of(place))

    @property
    def is_ours(self) -> bool:
        """Whether it is a temporary file of ours that goes to its own place: a note that is not may move nothing."""
        return self.staged == self.place.with_name(self.staged.name) and is_temporary(self.staged.name, self.place)

    def make(self) -> None:
        """Put the file in its place, unless that was done, or something else was put there."""
        if self.staged.exists() and _mark_of(self.place) == self.before:
            os.replace(self.staged, self.place)
        self.staged.unlink(missing_ok=True)


def prefix(place: Path) -> str:
    """How temporaries for a file begin: process ids count on one machine only, so its name is in it."""
    name = place.name.encode()[:_NAME_BYTES].decode(errors="ignore")
    return f".{name}.{os.uname().nodename[:60]}-"


def is_temporary(name: str, place: Path) -> bool:
    """Whether a file beside it is one that a process of this machine stages for a place."""
    return name.startswith(prefix(place)) and name.endswith(".tmp")


def note_at(place: Path) -> Path:
    """Where the note of a file that is one of a set lies: beside it."""
    name = place.name.encode()
    short = name[:_NAME_BYTES].decode(errors="ignore")
    return place.with_name(f".{short}.{hashlib.sha256(name).hexdigest()[:8]}.pending")


def note_of(moves: Sequence[Move]) -> bytes:
    """What every note of a set says: which process makes the moves, and these, the deciding one first."""
    files = [{"staged": str(m.staged), "place": str(m.place), "before": m.before} for m in moves]
    return json.dumps({"process": os.getpid(), "files": files}).encode()


def is_decided(moves: Sequence[Move], note: bytes) -> bool:
    """Whether the note lies beside the first place too."""
    with contextlib.suppress(FileNotFoundError):
        return note_at(moves[0].place).read_bytes() == note
    return False


def carry_out(moves: Sequence[Move]) -> None:
    """Make the moves of a set that was decided, and take its notes away: the deciding one last.

    Raises:
        OSError: a file cannot be moved.
    """
    for move in moves:
        move.make()
    take_away(moves)


def take_away(moves: Sequence[Move]) -> None:
    """Remove the notes of a set, the deciding one last."""
    for move in reversed(moves):
        note_at(move.place).unlink(missing_ok=True)


def finish(path: Path) -> None:
    """End what a killed command began with the file at `path`; nothing where there is nothing, or no right to."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        place = Path(os.path.realpath(path))
        text = note_at(place).read_bytes()
        note: dict[str, Any] = json.loads(text)
        moves = [
            Move(Path(f["staged"]), Path(f["place"]), None if f["before"] is None else tuple(f["before"]))
            for f in note["files"]
        ]
        if not all(move.is_ours for move in moves):
            return
        if is_decided(moves, text):
            carry_out(moves)
        elif is_dead(str(note["process"])):
            note_at(place).unlink(missing_ok=True)


def is_dead(process: str) -> bool:
    """Whether a process of this machine, by its id, is no more."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except (ValueError, PermissionError):
        pass
    return False


def _mark_of(place: Path) -> tuple[int, ...] | None:
    try:
        info = place.stat()
    except FileNotFoundError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns
