"""Engines' own published code, fetched when an opt-in test asks for it (TREEOPT_CONFORMANCE=1); nothing is copied."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("TREEOPT_CONFORMANCE_CACHE", Path(tempfile.gettempdir()) / "treeopt-conformance"))
TIMEOUT_S = 600

needs_conformance = pytest.mark.skipif(
    "TREEOPT_CONFORMANCE" not in os.environ, reason="fetches engines' wheels: set TREEOPT_CONFORMANCE=1"
)


def wheel(project: str, version: str) -> Path:
    """The wheel of a release, from the cache or the package index; who asked for it wants a failure, not a skip."""
    pattern = f"{project.replace('-', '_')}-{version}*.whl"
    if not list(CACHE.glob(pattern)):
        CACHE.mkdir(parents=True, exist_ok=True)
        _pip("download", "--no-deps", "-q", f"{project}=={version}", "-d", str(CACHE))
    return next(CACHE.glob(pattern))


def installed(*requirements: str) -> Path:
    """A folder with these releases unpacked, without what they depend on."""
    folder = CACHE / "+".join(requirements).replace("==", "-")
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        _pip("install", "--no-deps", "-q", "--target", str(folder), *requirements)
    return folder


def text(archive: Path, member: str) -> str:
    """One file of a wheel."""
    with zipfile.ZipFile(archive) as opened:
        return opened.read(member).decode()


def sdist_texts(project: str, version: str, *members: str) -> list[str]:
    """Files of a source release, by their paths below its folder."""
    name = f"{project.replace('-', '_')}-{version}"
    if not (CACHE / f"{name}.tar.gz").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        only = ("--no-deps", "--no-binary", project)  # pip asks the source for its metadata, which builds nothing
        _pip("download", *only, "-q", f"{project}=={version}", "-d", str(CACHE))
    with tarfile.open(CACHE / f"{name}.tar.gz") as opened:
        found = [opened.extractfile(f"{name}/{member}") for member in members]
        return [file.read().decode() for file in found if file is not None]


def names_of(archive: Path) -> list[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(archive) as opened:
        return opened.namelist()


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], timeout=TIMEOUT_S, check=True)
