"""Names to files: the profiles that treeopt ships, or whatever file the user gives instead."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple

from treeopt.errors import UnknownNameError
from treeopt.files.documents import os_error
from treeopt.files.opening import STDIN

DEFAULT_RANKS: Final = "smollm2-135m-eagle"
TRACE_SUFFIXES: Final = (".npz", ".parquet", ".jsonl")
ShippedKind = Literal["ranks", "hardware", "models"]

# `treeopt/profiles` is a link to the top-level folder in a checkout and a plain folder in an installed wheel.
_PROFILES = Path(__file__).parents[1] / "profiles"
_SUFFIXES = (".yaml", ".yml", ".json", *TRACE_SUFFIXES)


class Located(NamedTuple):
    """A profile's file, and how a plan names it so that it is found again."""

    path: Path
    reference: str
    shipped: bool


def shipped_names(kind: ShippedKind, *, folder: str = "**") -> list[str]:
    """Names of the shipped profiles of one kind, those of a folder alone where one is named."""
    return sorted(p.stem for p in (_PROFILES / kind).glob(f"{folder}/*.yaml"))


def locate(kind: ShippedKind, name_or_file: str) -> Located:
    """Find a shipped profile by name, or the file at a path.

    Raises:
        UnknownNameError: neither a shipped name nor an existing file.
        InputError: a path that looks like a file but is none.
    """
    path = Path(name_or_file)
    looks_like_a_file = "/" in name_or_file or "\\" in name_or_file or path.suffix in _SUFFIXES
    if name_or_file == STDIN:
        return Located(path, name_or_file, shipped=False)
    if looks_like_a_file or path.exists():
        if not path.exists():
            raise os_error(FileNotFoundError(), path, what=_WHAT[kind], verb="read")
        if path.is_dir() and kind != "ranks":  # a trace may be a folder of shards
            raise os_error(IsADirectoryError(), path, what=_WHAT[kind], verb="read")
        return Located(path, name_or_file, shipped=False)
    if name_or_file not in shipped_names(kind):
        all_of_them = "; `treeopt ranks list` shows them" if kind == "ranks" else ""
        raise UnknownNameError(_WHAT[kind], name_or_file, shipped_names(kind), or_else=f"{all_of_them}; or give a file")
    return Located(next((_PROFILES / kind).glob(f"**/{name_or_file}.yaml")), name_or_file, shipped=True)


_WHAT: dict[ShippedKind, str] = {"ranks": "rank profile", "hardware": "hardware profile", "models": "model"}
