"""Rows to files by a thread of its own: serving never waits for a disk; what cannot be written is dropped, counted."""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
import time
import uuid
from pathlib import Path
from typing import IO, Any, Final

_WAITING: Final = 4096  # batches of rows; beyond them rows are dropped
_ROWS: Final = 1 << 16  # of a shard
_FLUSH_S: Final = 0.5
_RETRY_S: Final = 10.0


class ShardWriter:
    """Files `FOLDER/ENGINE-PID-RUN-N.jsonl`: a line that says what recorded them, then a line for each draft.

    Lines are flushed every half second, so a killed process loses no more; a line that was cut off in the middle is the
    last one of its file. A header says how many rows were dropped before it.

    Errors of the file system never leave this class.
    """

    def __init__(self, folder: Path, header: dict[str, Any], *, rows: int = _ROWS) -> None:
        self._folder, self._header, self._rows = folder, header, rows
        self._run_id = uuid.uuid4().hex  # documents are numbered within it
        self._queue: queue.Queue[list[str] | None] = queue.Queue(maxsize=_WAITING)
        self._file: IO[str] | None = None
        self._number = self._written = self._dropped = 0
        self._retry_at = 0.0
        self._thread = threading.Thread(target=self._run, name="treeopt-recorder", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def dropped(self) -> int:
        """Rows that were not written: the queue was full, or the folder could not be written."""
        return self._dropped

    def put(self, rows: list[str]) -> None:
        """Hand rows over, or drop them; never waits."""
        try:
            self._queue.put_nowait(rows)
        except queue.Full:
            self._dropped += len(rows)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is waiting, for at most so long."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=timeout_s)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _run(self) -> None:
        flushed = time.monotonic()
        while True:
            try:
                rows = self._queue.get(timeout=_FLUSH_S)
            except queue.Empty:
                rows = []
            if rows is None:
                self._end()
                return
            if rows:
                self._write(rows)
            if time.monotonic() - flushed > _FLUSH_S:
                self._flush()
                flushed = time.monotonic()

    def _write(self, rows: list[str]) -> None:
        if time.monotonic() < self._retry_at:
            self._dropped += len(rows)
            return
        try:
            if self._file is None:
                self._file = self._opened()
            self._file.writelines(rows)
            self._written += len(rows)
        except OSError:  # a full disk, a folder that went away or cannot be written
            self._dropped += len(rows)
            self._give_up()
            return
        if self._written >= self._rows:
            self._end()

    def _opened(self) -> IO[str]:
        self._folder.mkdir(parents=True, exist_ok=True)
        # A container's processes have the same numbers after every start.
        name = f"{self._header['engine']}-{os.getpid()}-{self._run_id[:8]}-{self._number:04d}.jsonl"
        self._number, self._written = self._number + 1, 0
        file = (self._folder / name).open("x", encoding="utf-8")
        header = {"treeopt_recorded": 1, "run": self._run_id, "dropped": self._dropped, **self._header}
        file.write(json.dumps(header) + "\n")
        return file

    def _flush(self) -> None:
        try:
            if self._file is not None:
                self._file.flush()
        except OSError:
            self._give_up()

    def _end(self) -> None:
        try:
            if self._file is not None:
                self._file.close()
        except OSError:
            pass
        self._file = None

    def _give_up(self) -> None:
        self._retry_at = time.monotonic() + _RETRY_S
        self._end()
