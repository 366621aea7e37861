"""One case: the files laid out, the command called in this process, and everything that must hold looked at."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final, NoReturn
from unittest import mock

from fuzz.commands import Template
from fuzz.corpus import HARDWARE, PROFILES, Corpus
from fuzz.mutate import mutated

from treeopt.cli import app
from treeopt.cli.command import run as run_command
from treeopt.engines.registry import ENGINES
from treeopt.errors import TreeoptError
from treeopt.files import opening

LIMIT_S: Final = 30
MEMORY: Final = 2 << 30
_REPRS: Final = re.compile(r"Traceback|<class |object at 0x|dtype\(|array\(\[|<function|np\.(int|float)\d+\(")
_NOT_NUMBERS: Final = re.compile(r"(?<![\w-])(nan|NaN|-?inf|-?Infinity)(?![\w-])")
_CHANGED: Final = ("directory", "fifo", "missing", "empty", "other")
COMPANIONS: Final = {HARDWARE.name: HARDWARE.with_suffix(".npz").name, "of-trace.yaml": "trace.npz"}
_NAMES: Final = {path.stem for path in PROFILES.rglob("*.yaml")} | set(COMPANIONS.values())


@dataclass(frozen=True)
class Case:
    """A command, the files that it is given, and which of them is damaged by what the numbers say."""

    number: int
    template: Template | None
    words: list[str]
    files: list[str]
    damaged: str | None
    rng: Random


class TooLongError(BaseException):
    """No command's own `except Exception` may take it for an error of a file."""


class Workplace:
    """A folder in which every file of the corpus lies as a link, but what a case damages."""

    def __init__(self, corpus: Corpus, folder: Path) -> None:
        self.corpus, self.folder = corpus, folder
        self.names = corpus.names
        folder.mkdir(exist_ok=True)

    def originals(self) -> dict[str, tuple[int, int, int]]:
        """What would be another after a write."""
        paths = [path for path in self.corpus.folder.rglob("*") if path.is_file()]
        return {str(p): (s.st_size, s.st_mtime_ns, s.st_ino) for p in paths for s in [p.stat()]}

    def reset(self) -> None:
        """As it was before any case."""
        found = set()
        with os.scandir(self.folder) as entries:
            for entry in list(entries):
                if entry.is_symlink() and entry.name in self.names:
                    found.add(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        for name in self.names:
            if name not in found:
                os.symlink(self.corpus.folder / name, self.folder / name)

    def own_folder(self, name: str) -> None:
        """A folder of the corpus that a command may write into is a copy."""
        link = self.folder / name
        if link.is_symlink() and link.is_dir():
            link.unlink()
            shutil.copytree(self.corpus.folder / name, link)

    def damage(self, name: str, rng: Random) -> None:
        """Put a damaged copy in the place of a file, or of one in a folder."""
        if name in COMPANIONS and rng.random() < 0.4:
            name = COMPANIONS[name]
        link, source = self.folder / name, self.corpus.folder / name
        link.unlink()
        if source.is_dir():
            shutil.copytree(source, link)
            inside = rng.choice(sorted(path for path in link.iterdir() if path.is_file()))
            inside.write_bytes(mutated(inside.name, inside.read_bytes(), rng))
            return
        special = rng.choice(_CHANGED) if rng.random() < 0.06 else ""
        if special == "directory":
            link.mkdir()
        elif special == "fifo":
            os.mkfifo(link)
        elif special == "other":
            other = rng.choice([n for n in self.names if (self.corpus.folder / n).is_file()])
            shutil.copyfile(self.corpus.folder / other, link)
        elif special != "missing":
            link.write_bytes(b"" if special == "empty" else mutated(name, source.read_bytes(), rng))


def limit_memory() -> None:
    """2 GB beyond what this process has taken up to now."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))


def warm_up(place: Workplace, *, torch: bool) -> None:
    """Import what commands import when they run, so that the processes of cases have it from this one."""
    commands = [
        "search --batch 2 --ranks trace.npz --max-nodes 4 --engine vllm",
        "profile fit --rows gemm.csv --out out.yaml",
        "profile fit --steps steps.csv --out out.yaml",
        "export plan.yaml --engine vllm",
        "ranks import vllm.log",
        "check chains.yaml --metrics vllm.log --batch 8",
        "verify dumped.yaml --dump dump.npz",
        "measure http://127.0.0.1:9 --concurrency 1 --budget-s 1",
    ]
    if torch:
        commands += ["ranks collect --target target --draft ngram --prompts ids.jsonl --out out.npz --max-new-tokens 2"]
    for command in commands:
        list(run(Case(0, None, command.split(), [], None, Random(0)), place))


def run(case: Case, place: Workplace, *, show: bool = False) -> Iterator[tuple[str, str]]:
    """Lay out the files, call the command, and tell what must not be, each as kind and place."""
    place.reset()
    rng, words = case.rng, list(case.words)
    if case.damaged is not None:
        place.damage(case.damaged, rng)
    if "--out" in words and case.files and rng.random() < 0.05:
        words[words.index("--out") + 1] = rng.choice(case.files)  # an input
    if "--out" in words:
        place.own_folder(words[words.index("--out") + 1])
    piped = next((i for i, word in enumerate(words) if word in case.files), None)
    stdin = None
    if piped is not None and rng.random() < 0.03 and (place.folder / words[piped]).is_file():
        stdin, words[piped] = place.folder / words[piped], "-"
    before = _hashes(case, place)
    said = _call(words, place.folder, stdin)
    if show:
        print("$ treeopt", *words, f"(damaged: {case.damaged})", f"\n{said.out}\n{said.err}\n{said.trace}\n", said.code)
    yield from _findings(words, said, _held(place, case.damaged))
    yield from _left(said, place, words)
    if before != _hashes(case, place):
        yield "input changed", words[0]


@dataclass
class Said:
    """What a command gave."""

    code: int = 0
    out: str = ""
    err: str = ""
    unforeseen: str = ""
    trace: str = ""


def _call(words: list[str], folder: Path, stdin: Path | None) -> Said:
    said, out, err = Said(), io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    source: Any = io.TextIOWrapper(stdin.open("rb")) if stdin is not None else sys.stdin
    patches = mock.patch.object(sys, "argv", ["treeopt", *words]), mock.patch.object(sys, "stdin", source)
    waits = mock.patch.object(opening, "FIFO_WAIT_S", 0.1)
    with contextlib.chdir(folder), streams[0], streams[1], patches[0], patches[1], waits, _alarm():
        try:
            with opening.remembering_inputs():
                run_command(app)
        except SystemExit as stop:
            said.code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except TreeoptError as error:
            said.code = 1
            err.write(f"error: {error}\nhint: {error.hint}\n")
        except TooLongError:
            said.unforeseen, said.trace = f"hang at {_place(sys.exc_info()[2])}", traceback.format_exc()
        except BaseException as error:
            said.unforeseen = f"{type(error).__name__} at {_place(error.__traceback__)}"
            said.trace = traceback.format_exc()
    said.out, said.err = out.getvalue(), err.getvalue()
    return said


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """Raise where the case computes for longer than it may, or waits for longer still."""
    timers = ((signal.SIGPROF, signal.ITIMER_PROF, LIMIT_S), (signal.SIGALRM, signal.ITIMER_REAL, 3 * LIMIT_S))
    for number, timer, limit in timers:
        signal.signal(number, _too_long)
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)


def _too_long(number: int, frame: FrameType | None) -> NoReturn:
    raise TooLongError


def _place(trace: Any) -> str:
    """The last line of ours."""
    frames = [f for f in traceback.extract_tb(trace) if "treeopt" in f.filename and "tests" not in f.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


def _findings(words: list[str], said: Said, held: str) -> Iterator[tuple[str, str]]:
    if said.unforeseen:
        yield "exception", said.unforeseen
        return
    if said.code not in range(4):
        yield "exit code", str(said.code)
    if said.code in (1, 2) and not _named(words, said.err):
        yield "unnamed", _without_numbers(said.err)
    if found := _REPRS.search(said.err):
        yield "repr", f"{found[0]} in {_without_numbers(said.err)}"
    if "Warning:" in said.err:
        yield "warning", _without_numbers(said.err[max(said.err.index("Warning:") - 60, 0) :])
    if said.code == 0 and (found := _NOT_NUMBERS.search(said.out)) and not _NOT_NUMBERS.search(held):
        yield "not a number", f"{' '.join(words[:2])}: {found[0]}"


def _held(place: Workplace, name: str | None) -> str:
    """What the damaged file says itself: a plan's sentences are shown as they stand there."""
    path = place.folder / (name or "?")
    return path.read_text(errors="replace") if path.is_file() else ""


def _named(words: list[str], text: str) -> bool:
    """Whether an error names an option, a file, or a value that was given."""
    text = text.lower()
    values = {v.lower() for word in words[1:] for v in re.split(r"[=,:/]", word)}
    values |= {v.removesuffix(Path(v).suffix) for v in values}
    options = {word.strip("-").partition("-")[0][:5] for word in words if word.startswith("--")}
    given = {v for v in values if len(v) > 2 or f"'{v}'" in text or f" {v}:" in text}
    engines = {engine.title.lower() for engine in ENGINES} if "--engine" in words else set()
    of_plan = {"the plan"} if words[0] in ("compare", "explain", "replay", "check", "export", "show") else set()
    known = given | options | engines | of_plan | _NAMES
    return bool(re.search(r"(?<!\w)--?[a-z]|standard input|pip install", text)) or any(v in text for v in known)


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "#", text.strip())[:160]


def _left(said: Said, place: Workplace, words: list[str]) -> Iterator[tuple[str, str]]:
    names = [path.name for path in place.folder.iterdir()]
    if left := [name for name in names if name.endswith(".tmp")]:
        yield "temporary left", left[0]
    results = [name for name in names if name.startswith("out") and not name.endswith(".parts")]
    if said.code in (1, 2) and results:
        yield "result of a failure", f"{' '.join(words[:2])}: {results[0]}"


def _hashes(case: Case, place: Workplace) -> list[str]:
    """What the files of a case hold, those that are no pipes."""
    found = []
    for name in sorted({*case.files, *COMPANIONS.values()}):
        path = place.folder / name
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found += [f"{f} {hashlib.sha256(f.read_bytes()).hexdigest()}" for f in files if f.is_file()]
    return found
