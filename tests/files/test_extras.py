"""What is missing is named with the command that brings it, in a clone and out of a wheel."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from treeopt import extras
from treeopt.errors import InputError

CLONE = Path(extras.__file__).resolve().parents[1]


def test_in_a_clone_it_installs_the_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(CLONE)
    assert extras.install_command("hf") == "pip install '.[hf]'"
    monkeypatch.chdir(tmp_path)
    assert shlex.split(extras.install_command("hf")) == ["pip", "install", f"{CLONE}[hf]"]


@pytest.mark.parametrize("kind", ["release", "clone", "gone"])
def test_out_of_a_wheel(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel that was built from a folder says which: that folder is installed again, unless it is gone."""
    clone = tmp_path / "my clone"
    clone.mkdir()
    if kind == "clone":
        (clone / "pyproject.toml").touch()
    recorded = None if kind == "release" else json.dumps({"url": clone.as_uri()})
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site" / "treeopt" / "extras.py"))
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: recorded))
    place = f"{clone}[hf]" if kind == "clone" else "treeopt[hf]"
    assert shlex.split(extras.install_command("hf")) == ["pip", "install", place]


def test_a_missing_library_names_its_extra() -> None:
    with pytest.raises(InputError, match="no_such_library is not installed") as caught:
        extras.require("no_such_library", extra="hf")
    assert caught.value.hint == extras.install_command("hf")
