"""Runs the commands of `commands.txt` and writes down all that each gives: exit code, streams, files.

It knows the package by its command line alone, so that it outlives what is behind it. Numbers that are whole are kept
to the last digit; other numbers are compared to six digits, because machines differ in the last ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from treeopt.cli import main

HERE = Path(__file__).resolve().parent
INPUTS = HERE / "inputs"
OUTPUTS = HERE / "outputs"
HARDWARE = HERE.parents[1] / "profiles" / "hardware"
TRACE = HERE.parents[1] / "profiles" / "ranks" / "smollm2-135m-eagle.npz"
# `0.75`, `1e-3`, `-2.5E+07`: no part of a name, a version or a hash.
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)(?![\w.])")
# An error of a check's last digits, and where it was largest: each machine has its own.
_ROUNDED = re.compile(r" +\d\.\de-1\d .*")
TOLERANCE = 1e-6


class Case(NamedTuple):
    """One command."""

    name: str
    arguments: tuple[str, ...]
    needs_torch: bool

    @property
    def recorded(self) -> Path:
        """Where what it gave is written."""
        return OUTPUTS / f"{self.name}.txt"


def cases() -> list[Case]:
    """The commands of the list."""
    found = []
    for line in (HERE / "commands.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, arguments = line.removeprefix("+ ").partition(": ")
            name = name.removesuffix(":")
            found.append(Case(name, tuple(shlex.split(arguments)), line.startswith("+ ")))
    return found


def run(case: Case, folder: Path) -> str:
    """All that the command gives in `folder / "job"`, which gets the inputs first."""
    folder = folder / "job"  # a config.json is called as its folder is
    shutil.copytree(INPUTS, folder)
    shutil.copyfile(TRACE, folder / "trace.npz")
    keep_up(folder)
    before = {path.name for path in folder.iterdir()}
    code, out, err = call(case.arguments, folder)
    parts = [f"$ treeopt {shlex.join(case.arguments)}\n", f"exit code {code}\n", f"--- stdout\n{out}"]
    parts.append(f"--- stderr\n{err}")
    for path in sorted(folder.iterdir()):
        if path.name not in before:
            parts.append(f"--- {path.name}\n{_content(path)}")
    said = "".join(part if part.endswith("\n") else part + "\n" for part in parts)
    for path in set(folder.glob("*.npz")) - {
        folder / name for name in before
    }:  # packed by another version, the same arrays are other bytes
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        said = said.replace(sha256, "SHA256").replace(f"-{sha256[:8]}.npz", "-SHA256.npz")
    version = call(("--version",), folder)[1].split()[1]
    said = said.replace(version, "VERSION")
    return _ROUNDED.sub("ROUNDING", re.sub(r"torch \d[\w.+]*", "torch VERSION", said))


def same(found: str, recorded: str) -> bool:
    """Whether two records say the same, numbers with a fraction to six digits."""
    # How wide a table's last column is may hang on rounding: which node is worst by 1e-15.
    found, recorded = (re.sub(r" +$", "", text, flags=re.MULTILINE) for text in (found, recorded))
    if found == recorded:
        return True
    if _NUMBER.sub("#", found) != _NUMBER.sub("#", recorded):
        return False
    pairs = zip(_NUMBER.findall(found), _NUMBER.findall(recorded), strict=True)
    return all(np.isclose(float(a), float(b), rtol=TOLERANCE, atol=1e-12) for a, b in pairs)


def keep_up(folder: Path) -> None:
    """Plans of before name the hardware profile by its hash of then: one that was fitted anew is not their matter."""
    named = re.compile(r"(hardware: {name: (?P<name>[\w.-]+),(?: file: null,)?\s+sha256: )[0-9a-f]{64}")
    for path in folder.glob("*.yaml"):
        path.write_text(named.sub(lambda of: of[1] + _sha256(of["name"]), path.read_text()))


def _sha256(hardware: str) -> str:
    return hashlib.sha256((HARDWARE / f"{hardware}.yaml").read_bytes()).hexdigest()


def call(arguments: tuple[str, ...], folder: Path) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = 0
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with _settings(arguments), contextlib.chdir(folder), streams[0], streams[1]:
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def _settings(arguments: tuple[str, ...]) -> Iterator[None]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TREEOPT_")}
    for key in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        kept.pop(key, None)
    with (
        mock.patch.dict(os.environ, {**kept, "COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}, clear=True),
        mock.patch.object(sys, "argv", ["treeopt", *arguments]),
    ):
        yield


def _content(path: Path) -> str:
    """A written file as text; of arrays their names, shapes and sums, of other bytes their hash."""
    if path.suffix == ".html":
        return _words_of(path.read_text())
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return "".join(_array(name, arrays[name]) for name in sorted(arrays.files))
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"


def _words_of(html: str) -> str:
    """What a page says, a line for each piece of text; pictures have their tests."""
    kept = re.sub(r"<(svg|style|script)\b.*?</\1>", "", html, flags=re.DOTALL)
    rows = re.sub(r"</t[dh]>", " | ", re.sub(r"</(?:h\d|dt|dd|span)>", "\n", kept))
    lines = (unescape(" ".join(re.sub(r"<[^>]+>", "", line).split())) for line in re.split(r"</tr>|\n", rows))
    return "".join(f"{line.removesuffix(' |')}\n" for line in lines if line)


def _array(name: str, values: np.ndarray) -> str:
    total = float(np.abs(values).sum()) if values.dtype.kind in "iufb" else values.tolist()
    return f"{name} {values.dtype} {list(values.shape)} {total}\n"
