"""What a command reads, opened once: a file, a pipe, standard input; every later look sees the same bytes."""

from __future__ import annotations

import hashlib
import io
import os
import select
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, Final

from treeopt.files.pending import finish

STDIN: Final = "-"
CHUNK_BYTES: Final = 1 << 20
MAX_PIPED_BYTES: Final = 4 << 30
FIFO_WAIT_S: Final = 20.0

_FLAGS: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

# Which files the running command has read, by device and inode; None outside a command, where nothing is refused.
_READ: Final[ContextVar[set[tuple[int, int]] | None]] = ContextVar("files that were read", default=None)


@contextmanager
def remembering_inputs() -> Iterator[None]:
    """For one command: remember what it reads, so that nothing of it is written over."""
    token = _READ.set(set())
    try:
        yield
    finally:
        _READ.reset(token)


def was_read(path: Path) -> bool:
    """Whether the running command has read the file that is at `path` now."""
    read = _READ.get()
    if not read or not path.exists():
        return False
    info = path.stat()
    return (info.st_dev, info.st_ino) in read


def note_read(info: os.stat_result) -> None:
    """Remember a file that was opened by other means than `OpenedFile`, by a library for example."""
    read = _READ.get()
    if read is not None:
        read.add((info.st_dev, info.st_ino))


class OpenedFile:
    """The bytes of one input as they were when it was opened.

    A file is held open and read up to the length that it had, so that a log that grows is the same text to whoever
    detects its kind, hashes it and reads it. What comes through a pipe is kept in a temporary file until the last
    reader is gone. `-` is standard input.

    Raises:
        OSError: it cannot be opened or read, is a folder, brings more than `MAX_PIPED_BYTES` through a pipe, or is a
            named pipe that nobody writes to for `FIFO_WAIT_S`.
    """

    def __init__(self, path: Path) -> None:
        self.name = called(path)
        if str(path) != STDIN:
            finish(path)
        self._handle = _standard_input() if str(path) == STDIN else _opened(path)
        info = os.fstat(self._handle)
        note_read(info)
        self.size = info.st_size
        weakref.finalize(self, os.close, self._handle)

    def stream(self) -> BinaryIO:
        """A stream of all bytes from the first on, with a position of its own."""
        return io.BufferedReader(_Bytes(self, self._handle, self.size), CHUNK_BYTES)

    def chunks(self) -> Iterator[bytes]:
        """The bytes, one piece at a time."""
        stream = self.stream()
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk

    def sha256(self) -> str:
        """Hash of the bytes, as plans record it."""
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()


def called(path: Path) -> str:
    """What messages call a file that is read."""
    return "standard input" if str(path) == STDIN else str(path)


def file_sha256(path: Path) -> str:
    """Hash of a file's bytes, as plans record it."""
    return OpenedFile(path).sha256()


class _Bytes(io.RawIOBase):
    """The first `size` bytes of an open file, read at a position that no other reader moves."""

    def __init__(self, owner: OpenedFile, handle: int, size: int) -> None:
        self._owner, self._handle, self._size, self._at = owner, handle, size, 0  # the owner keeps the file open

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if at < 0:
            raise OSError(22, "invalid position")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        wanted = max(min(len(buffer), self._size - self._at), 0)
        os.lseek(self._handle, self._at, os.SEEK_SET)
        data = os.read(self._handle, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _standard_input() -> int:
    source: Any = sys.stdin.buffer
    with suppress(OSError):  # it has no file behind it
        note_read(os.fstat(source.fileno()))
    return _kept(getattr(source, "read1", source.read))


def _opened(path: Path) -> int:
    # Opening a named pipe waits for a writer without end; one that the shell made (`<(...)`) has its writer already.
    named = Path(os.path.realpath(path)).is_fifo()
    handle = os.open(path, _FLAGS | (getattr(os, "O_NONBLOCK", 0) if named else 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, "is a directory")
        if stat.S_ISREG(mode):
            opened, handle = handle, -1
            return opened
        return _kept(lambda size: _awaited(handle, size) if named else os.read(handle, size))
    finally:
        if handle >= 0:
            os.close(handle)


def _awaited(handle: int, size: int) -> bytes:
    if not select.select([handle], [], [], FIFO_WAIT_S)[0]:
        raise TimeoutError(110, f"nothing was written to the pipe for {FIFO_WAIT_S:g} s")
    return os.read(handle, size)


def _kept(read: Callable[[int], bytes]) -> int:
    """Everything that comes through a pipe or device, as an open temporary file."""
    import tempfile  # only pipes pay for it

    with tempfile.TemporaryFile(buffering=0) as kept:
        size = 0
        while chunk := read(CHUNK_BYTES):
            size += len(chunk)
            if size > MAX_PIPED_BYTES:
                raise OSError(27, f"it brings more than {MAX_PIPED_BYTES >> 30} GiB: save what matters to a file")
            kept.write(chunk)
        return os.dup(kept.fileno())
