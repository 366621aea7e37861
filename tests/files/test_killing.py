"""Killed at every change of the disk: the old file or the new one, and the next run cleans up."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from files.killing import WRITINGS

from treeopt.cli import app
from treeopt.cli.command import Commands

# Minutes each, by hand: pictures, a model, a device or a server.
_LONG = [w for w in WRITINGS if w.setting or w.needs == "jinja2"]
_OUTPUTS = ("out", "write_dump")

pytestmark = pytest.mark.skipif(not hasattr(sys, "addaudithook") or sys.platform == "win32", reason="processes fork")


@pytest.mark.parametrize("number", range(len(WRITINGS)), ids=[" ".join(w.words.split()[:3]) for w in WRITINGS])
def test_killed_at_every_change(number: int, tmp_path: Path) -> None:
    if (library := WRITINGS[number].needs) and find_spec(library) is None:
        pytest.skip(f"needs {library}")
    if WRITINGS[number] in _LONG and "TREEOPT_KILL_ALL" not in os.environ:
        pytest.skip("takes minutes: set TREEOPT_KILL_ALL")
    code = f"from pathlib import Path; from files.killing import *; print(kills(WRITINGS[{number}], Path(sys.argv[1])))"
    # One thread: a process that is forked from one whose threads have computed waits for them for ever.
    around = os.environ | {"PYTHONPATH": ":".join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, env=around
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) >= 10  # over an old file and over none: opened, written, synced, in place


def test_every_command_with_an_output_is_killed() -> None:
    def leaves(command: click.Command, name: str) -> set[str]:
        own = {name} if any(parameter.name in _OUTPUTS for parameter in command.params) else set()
        inside = command.listed if isinstance(command, Commands) else {}
        return own.union(*(leaves(lazy.load(key), f"{name} {key}".strip()) for key, lazy in inside.items()))

    writing = leaves(app, "")
    killed = {command for w in WRITINGS for command in writing if w.words.startswith(f"{command} ")}
    assert writing == killed
