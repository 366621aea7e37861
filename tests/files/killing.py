"""A process that dies at its n-th change of the disk, and what is then found there.

By hand, in tests/: `python -m files.killing` runs every command below with torch too and prints what it counted.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

from golden.running import INPUTS, keep_up

from treeopt.cli import app
from treeopt.cli.command import run as run_command
from treeopt.cost.hardware import load_hardware
from treeopt.files.opening import remembering_inputs

MOST: Final = 500  # changes of one command: far more than any makes
# What changes a disk and tells Python's audit hooks; writes and syncs do not, and are counted where they are called.
_EVENTS: Final = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate")
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Writing:
    """A command and the files that it leaves."""

    words: str
    outputs: tuple[str, ...]
    needs: str = ""


WRITINGS: Final = (
    Writing("search --batches 1,8 --ranks counts.yaml --max-nodes 8 --out out.yaml", ("out.yaml",)),
    Writing("export chains.yaml --engine vllm --out out.json", ("out.json",)),
    Writing("import choices.json --out out.yaml", ("out.yaml",)),
    Writing("ranks import vllm.log --out out.yaml", ("out.yaml",)),
    Writing("ranks merge counts.yaml more-counts.yaml --out out.yaml", ("out.yaml",)),
    Writing("profile fit --rows gemm.csv --datasheet h100-sxm --date 2026-01-02 --out out.yaml", ("out.yaml",)),
    Writing("profile fit --steps steps.csv --context 300 --hardware h100-sxm --out out.yaml", ("out.yaml",)),
    Writing("profile table --engine vllm --batches 1,8 --draft-tokens 0-3 --out out.json", ("out.json",)),
    Writing("measure --plan-calibration --concurrency 1,8 --out out.json", ("out.json",)),
    Writing("report plan.yaml --out out.html", ("out.html",), needs="jinja2"),
    Writing("verify tree.yaml --write-dump out.npz", ("out.npz",), needs="torch"),
    Writing("verify tree.yaml --write-dump out.json", ("out.json",), needs="torch"),
    Writing("export plan.yaml --engine sequoia --method model --batch 64 --out out.pt", ("out.pt",), needs="torch"),
)


class _Raw(io.FileIO):
    """A file of which the last write that is due goes half way."""

    def __init__(self, file: int | str, mode: str, due: Callable[[], bool]) -> None:
        super().__init__(file, mode)
        self._due = due

    def write(self, data: Any) -> int:
        if self._due():
            super().write(bytes(data)[: len(data) // 2])
            _die()
        return super().write(data)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(number: int, folder: Path) -> None:
    """Let this process die at its n-th change of what is in the folder, for good."""
    left = number

    def due() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in _EVENTS
        if event == "open":
            changes = isinstance(arguments[2], int) and bool(arguments[2] & _WRITING)
        inside = any(isinstance(a, str | os.PathLike) and _is_in(a, folder) for a in arguments)
        if changes and (inside or event == "os.chmod") and due():
            _die()

    sys.addaudithook(heard)
    fdopen, fsync = os.fdopen, os.fsync

    def opened(handle: int, mode: str = "r", *rest: Any, **more: Any) -> Any:
        return io.BufferedWriter(_Raw(handle, mode, due)) if mode == "wb" else fdopen(handle, mode, *rest, **more)

    def synced(handle: int) -> None:
        if due():
            _die()
        fsync(handle)

    mock.patch.object(os, "fdopen", opened).start()
    mock.patch.object(os, "fsync", synced).start()


def _is_in(path: str | os.PathLike[str], folder: Path) -> bool:
    return folder in (Path.cwd() / path).parents


def run(words: str, folder: Path, *, die_at: int | None = None) -> int:
    """Run a command in a process of its own; its exit code, or minus the signal that ended it."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (1, 2):
                os.dup2(nothing, stream)
            os.chdir(folder)
            sys.argv = ["treeopt", *words.split()]
            if die_at is not None:
                arm(die_at, folder)
            with remembering_inputs():
                run_command(app)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def laid_out(folder: Path) -> Path:
    """The inputs of the golden tests in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(INPUTS, folder)
    keep_up(folder)
    return folder


def kills(writing: Writing, folder: Path) -> int:
    """Kill the command at every change that it makes, over old files and over none; how often it was killed.

    Raises:
        AssertionError: an output that is neither the old one nor the new one, or something left by the next run.
    """
    place = laid_out(folder / "new")
    assert run(writing.words, place) == 0, writing
    new = {name: (place / name).read_bytes() for name in writing.outputs}
    there = {path.name for path in place.iterdir()}
    count = 0
    for old in ({}, _before(writing, place)):
        for number in range(1, MOST):
            place = laid_out(folder / "killed")
            for name, data in old.items():
                (place / name).write_bytes(data)
            code = run(writing.words, place, die_at=number)
            if code == 0:
                break
            assert code == -signal.SIGKILL, (writing, number, code)
            count += 1
            _check(writing, place, old, new, number)
            assert run(writing.words, place) == 0, (writing, number)
            assert {name: (place / name).read_bytes() for name in new} == new, (writing, number)
            assert {path.name for path in place.iterdir()} == there | set(old), (writing, number, os.listdir(place))
        else:
            raise AssertionError(f"{writing} never ended")
    return count


def _before(writing: Writing, place: Path) -> dict[str, bytes]:
    """What stood there before: for a profile another one with its curves, else any text."""
    if not writing.words.startswith("profile fit"):
        return dict.fromkeys(writing.outputs, b"old")
    curves = {path.name.replace("out-", "old-"): path.read_bytes() for path in place.glob("out-*.npz")}
    return {name: (place / name).read_bytes().replace(b"out-", b"old-") for name in writing.outputs} | curves


def _check(writing: Writing, place: Path, old: dict[str, bytes], new: dict[str, bytes], number: int) -> None:
    for name, data in new.items():
        path = place / name
        found = path.read_bytes() if path.exists() else None
        assert found in (old.get(name), data), (writing, number, name)
        if found is not None and writing.words.startswith("profile fit"):
            load_hardware(path)  # with the curves that it names


def main() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        counts = [kills(writing, Path(folder)) for writing in WRITINGS]
    print(f"{sum(counts)} kills of {len(counts)} commands: every output was the old one or the new one")


if __name__ == "__main__":
    main()
