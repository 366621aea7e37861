"""The parts of a collection: written as they are done, looked through when it goes on, joined at the end.

The folder `TRACE.npz.parts` holds `job.json` (which job it belongs to), `lock` (held while a process is at work)
and the parts. A part is believed only if all of it can be read, it carries the mark of this job, and it holds the
documents that are due; anything else is set aside under another name and collected anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Self

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.trace import Trace
from treeopt.collect.record import LISTED, EncodedPrompt
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import os_error, read_text
from treeopt.files.npz import NpzFile, read_npz
from treeopt.files.opening import OpenedFile
from treeopt.files.writing import write_atomically

_MANIFEST: Final = "job.json"
_LOCK: Final = "lock"
_JOINED: Final = "joined.npz"
_CHUNK_ROWS: Final = 1 << 20
_HINT: Final = "a part of a collection is an NPZ file"
_SHAPES: Final[dict[str, tuple[int | None, ...]]] = {  # None: the depth
    "rank": (None,),
    "topk_prob": (None, LISTED),
    "target_p1": (None,),
    "doc_id": (),
    "pos": (),
}


@dataclass(frozen=True, kw_only=True)
class JobPart:
    """Documents whose rows are written together; a run that is killed loses at most the parts it is at."""

    index: int
    documents: tuple[EncodedPrompt, ...]

    @property
    def name(self) -> str:
        """What its file is called."""
        return f"part-{self.index:06d}.npz"


def documents_in(parts: Sequence[JobPart]) -> int:
    """How many documents the parts hold."""
    return sum(len(part.documents) for part in parts)


@dataclass(kw_only=True)
class Collection:
    """A job at work in its folder, which no other process is at.

    Args:
        out: where the trace goes.
        parts: all of the job.
        mark: what the files of this job's parts carry.
        depth: D of its rows.
        set_aside: what was found in the folder and not believed, in words.
    """

    out: Path
    parts: tuple[JobPart, ...]
    mark: bytes
    depth: int
    set_aside: list[str] = field(default_factory=list)
    _done: set[int] = field(default_factory=set)
    _lock: IO[str] | None = None

    @classmethod
    def open(cls, out: Path, parts: tuple[JobPart, ...], identity: dict[str, Any], *, depth: int) -> Collection:
        """Make the folder, or find it as an earlier run of this job left it.

        Raises:
            InputError: it cannot be written, belongs to another job, holds something else, or another process is at it.
        """
        mark = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest().encode()
        found = cls(out=out, parts=parts, mark=mark, depth=depth)
        try:
            found.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise os_error(error, found.folder, what="trace", verb="write") from error
        with contextlib.ExitStack() as undo:
            undo.callback(found.release)
            found._claim(identity)
            for part in parts:
                found._look_at(part)
            undo.pop_all()
        return found

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release it."""
        self.release()

    @property
    def folder(self) -> Path:
        """Where the parts are until all are done."""
        return self.out.with_name(f"{self.out.name}.parts")

    def path(self, part: JobPart) -> Path:
        """Where a part's rows are written."""
        return self.folder / part.name

    def missing(self) -> list[JobPart]:
        """Parts that no run has written yet."""
        return [part for part in self.parts if part.index not in self._done]

    def write(self, part: JobPart, data: bytes) -> None:
        """Keep a part: the bytes of its NPZ file.

        Raises:
            InputError: it cannot be written.
        """
        file = io.BytesIO(data)
        with zipfile.ZipFile(file, "a") as archive:
            archive.comment = self.mark
        write_atomically(self.path(part), file.getvalue(), what="trace", own=True)
        self._done.add(part.index)

    def finish(self) -> Trace:
        """Join the parts into the trace, read that back, and only then remove them.

        Raises:
            InputError: the trace cannot be written or does not read as it was written; the parts stay.
        """
        joined = self.folder / _JOINED
        try:
            with joined.open("wb") as file:
                rows = _join([self.path(part) for part in self.parts], file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(joined, self.path(self.parts[0]).stat().st_mode & 0o777)
            trace = self._read_back(joined, rows)
            os.replace(joined, self.out.resolve() if self.out.is_symlink() else self.out)
        except OSError as error:
            raise os_error(error, self.out, what="trace", verb="write") from error
        # Renamed first: a folder that is half removed would look like a job that is half done.
        gone = self.folder.with_name(f".{self.folder.name}.done")
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(self.folder, gone)
        self.release()
        shutil.rmtree(gone, ignore_errors=True)
        return trace

    def release(self) -> None:
        """Let another process go on; the parts stay."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _claim(self, identity: dict[str, Any]) -> None:
        """Lock the folder, and see that it belongs to this job; a job file that is lost is written anew."""
        present = {file.name for file in self.folder.iterdir()}
        ours = {name for name in present if name.startswith(("part-", ".")) or name in (_MANIFEST, _LOCK, _JOINED)}
        if present - ours:
            raise InputError(
                f"{self.folder}: holds something else: {min(present - ours)}", hint="write the trace under another name"
            )
        self._take_lock()
        for name in present:  # what a killed process was writing
            if name.startswith("."):
                (self.folder / name).unlink(missing_ok=True)
        known = self._manifest()
        if known is None:
            self._refuse_foreign_parts()
            write_atomically(self.folder / _MANIFEST, json.dumps(identity, indent=2) + "\n", what="trace", own=True)
            return
        wanted = json.loads(json.dumps(identity))
        differing = [key for key, value in wanted.items() if known.get(key) != value]
        if differing and not any(self.folder.glob("part-*.npz")):  # nothing is lost
            write_atomically(self.folder / _MANIFEST, json.dumps(identity, indent=2) + "\n", what="trace")
        elif differing:
            raise InputError(
                f"{self.folder}: an unfinished collection with another {' and '.join(differing)}",
                hint="go on with the options it was begun with, or remove the folder to begin anew",
            )

    def _manifest(self) -> dict[str, Any] | None:
        path = self.folder / _MANIFEST
        if not path.exists():
            return None
        try:
            known = json.loads(read_text(path, what="trace"))
        except (ValueError, InputError, RecursionError):
            known = None
        if not isinstance(known, dict):
            self.set_aside.append(f"{path} could not be read; it was written anew")
            return None
        return known

    def _refuse_foreign_parts(self) -> None:
        """Without a job file the parts themselves must say that they are this job's."""
        for file in sorted(self.folder.glob("part-*.npz")):
            mark = _mark_of(file)
            if mark not in (None, self.mark):
                raise InputError(
                    f"{self.folder}: its {_MANIFEST} is missing, and {file.name} is of another collection",
                    hint="go on with the command that it was begun with, or remove the folder to begin anew",
                )

    def _take_lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            return
        lock = (self.folder / _LOCK).open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            who = lock.read().strip()
            lock.close()
            raise InputError(
                f"{self.out}: another process{f' ({who})' if who else ''} is collecting into it",
                hint="wait for it, or write to another file; to share the work, give each process its --shard",
            ) from None
        except OSError:  # a file system without locks
            lock.close()
            return
        lock.truncate(0)
        lock.write(f"pid {os.getpid()}")
        lock.flush()
        self._lock = lock

    def _look_at(self, part: JobPart) -> None:
        """Believe a part that was written before, or set it aside."""
        path = self.path(part)
        if not path.exists():
            return
        try:
            self._check(part)
        except InputError as error:
            aside = next(
                name for n in range(1 << 20) if not (name := path.with_name(f"{path.name}.damaged{n}")).exists()
            )
            os.replace(path, aside)
            self.set_aside.append(f"{error}; it was set aside as {aside.name} and is collected anew")
        else:
            self._done.add(part.index)

    def _check(self, part: JobPart) -> None:
        """
        Raises:
            InputError: the part is damaged, of another job, or holds other rows than its documents'.
        """
        path = self.path(part)
        if path.stat().st_size == 0:
            raise FileFormatError(f"{path}: it is empty", hint=_HINT)
        arrays = read_npz(path, what="part", hint=_HINT)
        if _mark_of(path) != self.mark:
            raise FileFormatError(f"{path}: it is a part of another collection", hint=_HINT)
        rows = len(arrays["pos"]) if "pos" in arrays and arrays["pos"].ndim == 1 else 0
        for name, rest in _SHAPES.items():
            wanted = (rows, *(self.depth if n is None else n for n in rest))
            found = arrays[name].shape if name in arrays else None
            if found != wanted:
                raise FileFormatError(f"{path}: '{name}' has shape {found}, expected {wanted}", hint=_HINT)
        ids = arrays["doc_id"]
        held = ids[np.concatenate([[True], ids[1:] != ids[:-1]])].tolist() if rows else []
        due = [document.doc_id for document in part.documents]
        if held != due:
            raise FileFormatError(f"{path}: it holds documents {held}, expected {due}", hint=_HINT)

    def _read_back(self, path: Path, rows: int) -> Trace:
        try:
            trace, archive = read_trace(path), NpzFile(OpenedFile(path), hint=_HINT)
            held = {name: sum(map(len, archive.chunks(name, _CHUNK_ROWS))) for name in _SHAPES}
            documents = documents_in(self.parts)
            if set(held.values()) != {rows} or trace.documents != documents:
                raise FileFormatError(
                    f"{path}: it holds {held} rows of {trace.documents} documents, expected {rows} of {documents}",
                    hint=_HINT,
                )
        except InputError as error:
            raise InputError(
                f"the joined trace cannot be read back: {error}",
                hint=f"the parts stay in {self.folder}: run the same command again",
            ) from error
        return trace


def _mark_of(path: Path) -> bytes | None:
    """What a part says of its job; None where it says nothing or cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.comment or None
    except Exception:  # whatever a damaged directory makes zipfile raise
        return None


def _join(parts: Sequence[Path], file: IO[bytes]) -> int:
    """Write the arrays of the parts end to end, with one part in memory at a time; returns the rows.

    An array of no axes is taken from the first part. Members carry no time: the same parts make the same bytes.
    """
    first = read_npz(parts[0], what="part", hint=_HINT)
    rows = sum(len(_array(part, "pos")) for part in parts)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in first.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                if array.ndim == 0:
                    np.lib.format.write_array(member, array)
                    continue
                header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False}
                np.lib.format.write_array_header_2_0(member, {**header, "shape": (rows, *array.shape[1:])})
                for part in parts:
                    member.write(np.ascontiguousarray(_array(part, name)).tobytes())
    return rows


def _array(part: Path, name: str) -> npt.NDArray[Any]:
    with np.load(part) as archive:
        found: npt.NDArray[Any] = archive[name]
        return found
