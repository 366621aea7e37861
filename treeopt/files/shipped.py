"""Names to files: the profiles that treeopt ships, or whatever file the user gives instead."""

from __future__ import annotations

import os
import re
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


def is_there(text: str) -> bool:
    """Whether a file has that name; no error where no file can, as of text that is too long for one."""
    return os.path.exists(text)


def locate(kind: ShippedKind, name_or_file: str) -> Located:
    """Find a shipped profile by name, or the file at a path.

    Raises:
        UnknownNameError: neither a shipped name nor an existing file.
        InputError: a path that looks like a file but is none.
    """
    path, names = Path(name_or_file), shipped_names(kind)
    if not name_or_file:  # which would be this folder
        raise UnknownNameError(_WHAT[kind], name_or_file, names, or_else=_OR_ELSE[kind])
    looks_like_a_file = "/" in name_or_file or "\\" in name_or_file or path.suffix in _SUFFIXES
    if name_or_file == STDIN:
        return Located(path, name_or_file, shipped=False)
    if looks_like_a_file or (name_or_file not in names and path.exists()):
        if not path.exists():
            raise os_error(FileNotFoundError(), path, what=_WHAT[kind], verb="read")
        if path.is_dir() and kind == "models":  # a checkpoint
            path = path / "config.json"
            if not path.exists():
                raise os_error(FileNotFoundError(), path, what=_WHAT[kind], verb="read")
        elif path.is_dir() and kind != "ranks":  # a trace may be a folder of shards
            raise os_error(IsADirectoryError(), path, what=_WHAT[kind], verb="read")
        return Located(path, name_or_file, shipped=False)
    if kind == "hardware" and name_or_file not in names:
        name_or_file = gpu_profile(name_or_file)
    if name_or_file not in names:
        raise UnknownNameError(_WHAT[kind], name_or_file, names, or_else=_OR_ELSE[kind])
    return Located(next((_PROFILES / kind).glob(f"**/{name_or_file}.yaml")), name_or_file, shipped=True)


def hardware_for(name_or_file: str, engine: str) -> str:
    """What --hardware means where an engine is named: a GPU's own name is that engine's measured profile of it."""
    if Path(name_or_file).exists() or name_or_file in shipped_names("hardware"):
        return name_or_file
    return gpu_profile(name_or_file, engine=engine)


def gpu_profile(gpu: str, *, engine: str | None = None) -> str:
    """The shipped profile that a GPU's own name means: `h200` is an H200.

    Measured kernels of the engine come first, then those of vLLM, then any measured ones, then the data sheet; the name
    itself where no profile is of that GPU.
    """
    wanted = re.sub(r"[\s_]+", "-", gpu.strip().lower()).removeprefix("nvidia-").removeprefix("amd-")
    of_it = [n for n in shipped_names("hardware") if n == wanted or n.startswith(f"{wanted}-")]
    order = [f"-{e}-" for e in (engine, "vllm", "sglang", "trtllm") if e is not None]
    return min(of_it, key=lambda n: next((i for i, e in enumerate(order) if e in n), len(order)), default=gpu)


_OR_ELSE: dict[ShippedKind, str] = {
    "ranks": "; `treeopt ranks list` shows them; or give a file",
    "hardware": "; or copy a data sheet (`treeopt/profiles/hardware`) and change its numbers, or run `treeopt profile`",
    "models": "; or give a file",
}
_WHAT: dict[ShippedKind, str] = {"ranks": "rank profile", "hardware": "hardware profile", "models": "model"}
