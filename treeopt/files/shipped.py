"""Names to files: the profiles that treeopt ships, or whatever file the user gives instead."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, Literal, NamedTuple

from treeopt.errors import UnknownNameError
from treeopt.files.documents import os_error

DEFAULT_RANKS: Final = "smollm2-135m-eagle"
Kind = Literal["ranks", "hardware", "models"]

# `treeopt/profiles` is a link to the top-level folder in a checkout and a plain folder in an installed wheel.
_PROFILES = Path(__file__).parents[1] / "profiles"
_SUFFIXES = (".yaml", ".yml", ".json")  # and those of traces


class Located(NamedTuple):
    """A profile's file, and how a plan names it so that it is found again."""

    path: Path
    reference: str
    shipped: bool


def shipped_names(kind: Kind) -> list[str]:
    """Names of the shipped profiles of one kind."""
    return sorted(p.stem for p in (_PROFILES / kind).glob("*.yaml"))


def locate(kind: Kind, name_or_file: str) -> Located:
    """Find a shipped profile by name, or the file at a path.

    Raises:
        UnknownNameError: neither a shipped name nor an existing file.
        InputError: a path that looks like a file but is none.
    """
    from treeopt.acceptance.shard_files import KINDS  # which needs `file_sha256`

    path = Path(name_or_file)
    looks_like_a_file = "/" in name_or_file or "\\" in name_or_file or path.suffix in (*_SUFFIXES, *KINDS)
    if looks_like_a_file or path.exists():
        if not path.exists():
            raise os_error(FileNotFoundError(), path, what=_WHAT[kind], verb="read")
        if path.is_dir() and kind != "ranks":  # a trace may be a folder of shards
            raise os_error(IsADirectoryError(), path, what=_WHAT[kind], verb="read")
        return Located(path, name_or_file, shipped=False)
    if name_or_file not in shipped_names(kind):
        raise UnknownNameError(_WHAT[kind], name_or_file, shipped_names(kind), or_else="; or give a file")
    return Located(_PROFILES / kind / f"{name_or_file}.yaml", name_or_file, shipped=True)


def file_sha256(path: Path) -> str:
    """Hash of a file's bytes, as plans record it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_WHAT: dict[Kind, str] = {"ranks": "rank profile", "hardware": "hardware profile", "models": "model"}
