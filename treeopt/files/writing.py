"""What a command writes: whole or not at all, never over what it read, and nothing left behind.

A file is staged beside its place and takes it by a rename. A set of files is staged as a whole and takes its places by
one decision (`treeopt/files/pending.py`). Standard output, pipes and devices are written to, never replaced.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Final, NamedTuple, NoReturn

from treeopt.errors import InputError
from treeopt.files.documents import os_error
from treeopt.files.opening import was_read
from treeopt.files.pending import (
    Move,
    carry_out,
    finish,
    is_dead,
    is_decided,
    is_temporary,
    note_at,
    note_of,
    prefix,
    take_away,
)

# Links to what is open already: opening it anew would begin at its start.
_STREAMS: Final = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_OPEN_FOLDERS: Final = ("/dev/fd/", "/proc/self/fd/")
_COUNT: Final = itertools.count()


class Output(NamedTuple):
    """One file to write, what it is called in messages, and whether the command keeps it for itself and may read it."""

    path: Path
    data: str | bytes
    what: str
    own: bool = False


def is_stream(path: Path) -> bool:
    """Whether a path means standard output or another open stream."""
    return _descriptor(path) is not None


def check_writable(path: Path, *, what: str) -> None:
    """Refuse, before the work is done, a path that writing would refuse after it.

    Raises:
        InputError: the folder is missing or not writable, or `path` is a directory, or what this command reads.
    """
    with _told_of(path, what):
        if not is_stream(path):
            _must_take_a_file(path)
    refuse_overwriting(path)


def check_all_writable(*outputs: tuple[Path | None, str]) -> None:
    """`check_writable` of every path that is given, and no two of them the same file.

    Raises:
        InputError: see `check_writable`, or two are the same.
    """
    places = set[str]()
    for path, what in outputs:
        if path is None:
            continue
        check_writable(path, what=what)
        if not is_stream(path) and (path.is_file() or not path.exists()):
            if (place := os.path.realpath(path)) in places:
                raise InputError(f"{path} is given for two results", hint="write each to a file of its own")
            places.add(place)


def refuse_overwriting(out: Path | None, *inputs: str | Path) -> None:
    """Refuse to write a result over a file that it is made from: one of `inputs`, or any that this command has read.

    Raises:
        InputError: `out` is an input.
    """
    if out is None or not out.is_file() or is_stream(out):
        return
    if was_read(out) or any(_is_same(out, given) for given in inputs):
        raise InputError(f"{out} is an input of this command", hint="write the result to another file")


def _is_same(out: Path, given: str | Path) -> bool:
    try:
        return out.samefile(given)
    except (OSError, ValueError):  # no file, or no name that one could have
        return False


def write_atomically(path: Path, data: str | bytes, *, what: str, own: bool = False) -> None:
    """Replace `path` by `data`, or leave everything as it was.

    Args:
        own: the command keeps this file for itself, and may have read what an earlier run left there.

    Raises:
        InputError: the folder is missing or not writable, or `path` is a directory, or an input of this command.
    """
    with replacing(path, what=what, own=own) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def replacing(path: Path, *, what: str, own: bool = False) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` when the block ends, and is gone if it fails.

    Raises:
        InputError: see `write_atomically`.
    """
    if not own:
        refuse_overwriting(path)
    with _clean_when_terminated(), _told_of(path, what):
        staged = _Staged(path)
        try:
            yield staged.file
            staged.commit()
        finally:
            staged.discard()


def append_line(path: Path, line: str, *, what: str) -> None:
    """Add a line to a file that the command keeps for itself; it is on disk when this returns.

    Raises:
        InputError: it cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with _told_of(path, what), os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def write_files(*outputs: Output) -> None:
    """Write a set of files: all, or, where one cannot be written or the command is killed, none.

    Raises:
        InputError: see `write_atomically`.
    """
    for output in outputs:
        if not output.own:
            refuse_overwriting(output.path)
    with _clean_when_terminated(), contextlib.ExitStack() as stack:
        staged = []
        for path, data, what, _ in outputs:
            with _told_of(path, what):
                one = _Staged(path)
                stack.callback(one.discard)
                one.file.write(data.encode() if isinstance(data, str) else data)
                one.settle()  # a full disk shows before anything is in its place
                staged.append(one)
        if staged:
            with _told_of(outputs[0].path, outputs[0].what):
                _commit([move for one in staged for move in one.moves()])


def _commit(moves: Sequence[Move]) -> None:
    """Put staged files in their places: of several the notes first, and the one that decides after the others."""
    if len(moves) < 2:
        for move in moves:
            os.replace(move.staged, move.place)
        return
    text = note_of(moves)
    try:
        for move in reversed(moves):
            note = _Staged(move.place)
            try:
                note.file.write(text)
                note.settle()
                os.replace(note.moves()[0].staged, note_at(move.place))
            finally:
                note.discard()
    finally:  # a signal may come after the decision
        (carry_out if is_decided(moves, text) else take_away)(moves)


class _Staged:
    """A file on its way to its place."""

    def __init__(self, path: Path) -> None:
        self._target: Path | None = None
        self._temporary: Path | None = None
        descriptor = _descriptor(path)
        if descriptor is not None:
            if descriptor == 1 and sys.stdout is not None:
                sys.stdout.flush()  # what was printed before comes before
            self.file: IO[bytes] = os.fdopen(os.dup(descriptor), "wb")
            return
        _must_take_a_file(path)
        path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():
            self.file = path.open("wb")
            return
        finish(path)
        _remove_those_of_the_dead(path)
        self._target, self._temporary = path, path.with_name(f"{prefix(path)}{os.getpid()}-{next(_COUNT)}.tmp")
        handle = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self.file = os.fdopen(handle, "wb")

    def settle(self) -> None:
        """Everything is written, and on its disk."""
        self.file.flush()
        if self._target is not None:
            os.fsync(self.file.fileno())
            if self._target.exists():
                os.fchmod(self.file.fileno(), self._target.stat().st_mode & 0o777)
        self.file.close()

    def moves(self) -> list[Move]:
        """The move to its place, where it is not written there at once."""
        if self._target is None or self._temporary is None:
            return []
        return [Move.of(self._temporary, self._target)]

    def commit(self) -> None:
        """Put it in its place."""
        self.settle()
        for move in self.moves():
            os.replace(move.staged, move.place)

    def discard(self) -> None:
        """Leave nothing of it, unless it is in its place."""
        with contextlib.suppress(OSError):
            self.file.close()
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._temporary.unlink()


def _descriptor(path: Path) -> int | None:
    text = str(path)
    for folder in _OPEN_FOLDERS:
        if text.startswith(folder) and text.removeprefix(folder).isdecimal():
            return int(text.removeprefix(folder))
    return _STREAMS.get(text)


def _must_take_a_file(path: Path) -> None:
    path = path.resolve() if path.is_symlink() else path
    if path.is_dir():
        raise IsADirectoryError(path)
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(13, "permission denied")
    if not path.parent.exists():
        raise FileNotFoundError(path)
    if not path.parent.is_dir():
        raise NotADirectoryError(20, "not a directory")
    # What is no regular file is written to, not replaced: its folder does not matter.
    if (path.is_file() or not path.exists()) and not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(13, "permission denied")


@contextlib.contextmanager
def _told_of(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        known = error if isinstance(error, OSError) else OSError(str(error))  # RuntimeError: links in a circle
        raise os_error(known, path, what=what, verb="write") from error


def _remove_those_of_the_dead(path: Path) -> None:
    """What a process that was killed could not remove."""
    with contextlib.suppress(OSError):
        for left in os.scandir(path.parent):
            process = left.name.removeprefix(prefix(path)).partition("-")[0]
            if is_temporary(left.name, path) and is_dead(process):
                Path(left.path).unlink(missing_ok=True)


@contextlib.contextmanager
def _clean_when_terminated() -> Iterator[None]:
    """While something is staged, SIGTERM ends the command by way of what removes it."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
