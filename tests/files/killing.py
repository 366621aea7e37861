"""A process that dies at its n-th change of the disk, and what is then found there.

By hand, in tests/: `python -m files.killing` runs every command below with torch too and prints what it counted, or
`python -m files.killing bench` those that begin so.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

from files.settings import SETTINGS, rows_of
from golden.running import INPUTS, keep_up

from treeopt.acceptance.loading import load_profile
from treeopt.cli import app
from treeopt.cli.command import run as run_command
from treeopt.cost.hardware import load_hardware
from treeopt.files.opening import OpenedFile, remembering_inputs
from treeopt.measure.rows import read_rows

MOST: Final = 500  # changes of one command: far more than any makes
# What changes a disk and tells Python's audit hooks; writes and syncs do not, and are counted where they are called.
_EVENTS: Final = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate")
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT

Readers = Mapping[str, Callable[[Path], object]] | None


@dataclass(frozen=True)
class Writing:
    """A command and the files that it leaves."""

    words: str
    outputs: tuple[str, ...]
    needs: str = ""
    setting: str = ""  # what of `files.settings` it runs in
    whole: Readers = None  # how a new output is told, by its name, where no two runs write the same bytes
    every: int = 1  # only each so manieth change: of what notes each of many results, a run takes long


PROFILE: Final = "profile --model toy.json --device cpu --threads 1 --max-tokens 8 --max-context 512 --out out.yaml"
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
    Writing(
        "bench --target target --draft early-exit:2 --plan small.yaml --prompts ids.jsonl --batches 1 --new-tokens 8 "
        "--device cpu --out out.yaml --steps-out out.csv",
        ("out.yaml", "out.csv"),
        needs="transformers",
        setting="bench",
    ),
    Writing(
        "ranks collect --target target --draft ngram --prompts ids.jsonl --out out.npz --max-new-tokens 4 "
        "--documents-per-part 1 --device cpu",
        ("out.npz",),
        needs="transformers",
        setting="collect",
    ),
    Writing(
        f"{PROFILE} --rows rows.jsonl",
        ("out.yaml", "rows.jsonl"),
        needs="torch",
        setting="profile",
        whole={"out.yaml": load_hardware, "rows.jsonl": rows_of},
        every=10,
    ),
    Writing(f"{PROFILE} --rows timed.jsonl", ("out.yaml",), needs="torch", setting="timed"),
    Writing(
        "measure URL --concurrency 1 --tokens 64 --budget-s 5 --out out.csv --ranks-out out.yaml",
        ("out.csv", "out.yaml"),
        needs="httpx",
        setting="measure",
        whole={"out.csv": read_rows, "out.yaml": load_profile},
    ),
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


def run(writing: Writing, folder: Path, *, die_at: int | None = None) -> int:
    """Run a command in a process of its own; its exit code, or minus the signal that ended it."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            said = os.open(folder.parent / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(said, stream)
            code = _called(writing, folder, die_at)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _called(writing: Writing, folder: Path, die_at: int | None = None) -> int:
    with contextlib.chdir(folder), SETTINGS[writing.setting].around() as more, remembering_inputs():
        words = ["treeopt", *(more.get(word, word) for word in writing.words.split())]
        if die_at is not None:
            arm(die_at, folder)
        with mock.patch.object(sys, "argv", words):
            try:
                run_command(app)
            except SystemExit as stop:
                return stop.code if isinstance(stop.code, int) else 1
    return 0


def laid_out(writing: Writing, folder: Path) -> Path:
    """The inputs of the golden tests, and what the command needs beside them, in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(INPUTS, folder)
    keep_up(folder)
    if writing.setting:
        shutil.copytree(SETTINGS[writing.setting].inputs(folder.parent), folder, dirs_exist_ok=True)
    return folder


def kills(writing: Writing, folder: Path) -> int:
    """Kill the command at every change that it makes, over old files and over none; how often it was killed.

    Raises:
        AssertionError: an output that is neither the old one nor the new one, or something left by the next run.
    """
    place = laid_out(writing, folder / "new")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        # Here first, so that the processes have from this one what it imports.
        assert _called(writing, place) == 0, (writing, said.getvalue())
    place = laid_out(writing, folder / "new")
    assert run(writing, place) == 0, writing
    new = {name: (place / name).read_bytes() for name in writing.outputs}
    there = _there(writing, place)
    count = 0
    for old in ({}, _before(writing, place)):
        for number in range(1, MOST, writing.every):
            place = laid_out(writing, folder / "killed")
            for name, data in old.items():
                (place / name).write_bytes(data)
            code = run(writing, place, die_at=number)
            if code == 0:
                break
            assert code == -signal.SIGKILL, (writing, number, code, (folder / "said.txt").read_text())
            count += 1
            _check(writing, place, old, new, number)
            assert run(writing, place) == 0, (writing, number)
            for name, data in new.items():
                assert _is_new(writing, place, name, data), (writing, number, name)
            left = _there(writing, place)
            assert left == there | {name for name in old if _is_listed(writing, name)}, (writing, number, left)
        else:
            raise AssertionError(f"{writing} never ended")
    return count


def _there(writing: Writing, place: Path) -> set[str]:
    return {path.name for path in place.iterdir() if _is_listed(writing, path.name)}


def _is_listed(writing: Writing, name: str) -> bool:
    """Curves are called by what was timed, which may not be the same twice."""
    return writing.whole is None or not name.endswith(".npz")


def _before(writing: Writing, place: Path) -> dict[str, bytes]:
    """What stood there before: for a profile another one with its curves, else any text."""
    if writing.setting == "measure":
        return {"out.csv": (place / "out.csv").read_bytes().replace(b"\n1,", b"\n7,"), "out.yaml": b"old"}
    if not writing.words.startswith("profile") or "out.yaml" not in writing.outputs:
        return dict.fromkeys(writing.outputs, b"old")
    curves = {path.name.replace("out-", "old-"): path.read_bytes() for path in place.glob("out-*.npz")}
    return {"out.yaml": (place / "out.yaml").read_bytes().replace(b"out-", b"old-")} | curves


def _check(writing: Writing, place: Path, old: dict[str, bytes], new: dict[str, bytes], number: int) -> None:
    for name, data in new.items():
        path = place / name
        is_old = path.read_bytes() == old.get(name) if path.exists() else name not in old
        assert is_old or _is_new(writing, place, name, data), (writing, number, name)
    if writing.setting == "bench":
        found = {_opened(place / name) == data for name, data in new.items()}
        assert len(found) == 1, (writing, number, "one file is new, the other old")
    if writing.words.startswith("profile") and (place / "out.yaml").exists():
        load_hardware(place / "out.yaml")  # with the curves that it names


def _is_new(writing: Writing, place: Path, name: str, data: bytes) -> bool:
    if writing.whole is None:
        return (place / name).exists() and (place / name).read_bytes() == data
    writing.whole[name](place / name)
    return True


def _opened(path: Path) -> bytes | None:
    """What a command would read there."""
    try:
        return OpenedFile(path).stream().read()
    except FileNotFoundError:
        return None


def main() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        counts = []
        for writing in WRITINGS if not sys.argv[1:] else [w for w in WRITINGS if w.words.startswith(sys.argv[1])]:
            counts.append(kills(writing, Path(folder)))
            print(f"{counts[-1]:4d} {writing.words}", flush=True)
    print(f"{sum(counts)} kills of {len(counts)} commands: every output was the old one or the new one")


if __name__ == "__main__":
    main()
