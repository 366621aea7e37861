"""A drafter's folder: which kind its config.json says it is, and its tensors by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from treeopt.decode.checkpoint import read_tensors
from treeopt.drafter_kind import drafter_kind
from treeopt.errors import FileFormatError, InputError
from treeopt.extras import require
from treeopt.files.documents import read_text

HeadKind = Literal["medusa", "eagle", "eagle3", "peagle", "mtp", "dflash", "model"]
HINT: Final = "docs/collecting.md lists the drafters that can be collected, and their files"
_INDEX: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WHOLE: Final = ("model.safetensors", "pytorch_model.bin")
_COLLECTED: Final[dict[str, HeadKind]] = {
    "medusa": "medusa",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "peagle": "peagle",
    "mtp": "mtp",
    "dflash": "dflash",
    "jetspec": "dflash",
    "model": "model",
}


def read_config(folder: Path) -> dict[str, Any]:
    """The object in a folder's config.json.

    Raises:
        InputError: there is none, or it cannot be read.
        FileFormatError: it is not a JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(read_text(path, what="drafter"))
    except (ValueError, RecursionError):
        raise FileFormatError(f"{path}: not valid JSON", hint=HINT) from None
    if not isinstance(config, dict):
        raise FileFormatError(f"{path}: not a JSON object", hint=HINT)
    return config


def kind_of(folder: Path) -> HeadKind:
    """What a folder holds; "model" where nothing says that it is a head of another model.

    Raises:
        InputError: a kind of head that cannot be collected, or no config.json that can be read.
    """
    if any((folder / name).is_file() for name in ("medusa_lm_head.safetensors", "medusa_lm_head.pt")):
        return "medusa"
    config = read_config(folder)
    found = drafter_kind(config)
    kind = found.name
    if kind == "mtp" and found.by in config:  # a target's own layers: the folder as it is named is a model
        kind = "model"
    if kind == "model" and config.get("num_hidden_layers") == 1:
        names = set(tensor_names(folder))
        if "fc.weight" in {name.removeprefix("model.") for name in names}:
            kind = "eagle3" if "d2t" in names else "eagle"
    if kind not in _COLLECTED:
        raise _not_collected(folder, "PARD" if kind == "pard" else found.by)
    return _COLLECTED[kind]


def _not_collected(folder: Path, what: str) -> InputError:
    return InputError(f"{folder}: drafters of the kind {what} cannot be collected", hint=HINT)


def tensor_names(folder: Path) -> Iterator[str]:
    """The names of a folder's tensors, from its index or its safetensors header; none where that takes loading it."""
    for name in _INDEX:
        if (folder / name).is_file():
            yield from _weight_map(folder / name)
            return
    path = folder / _WHOLE[0]
    if path.is_file():
        with _opened(path) as file:
            yield from file.keys()
    elif (folder / _WHOLE[1]).is_file():
        yield from read_tensors(folder / _WHOLE[1], what="weights", hint=HINT)


def read_weights(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
    """A folder's tensors of the names that are wanted.

    Raises:
        InputError: it has no weights.
        FileFormatError: a file cannot be read.
    """
    found: dict[str, Any] = {}
    for path in _files(folder, wanted):
        if path.suffix != ".safetensors":
            tensors = read_tensors(path, what="weights", hint=HINT)
            found |= {name: value for name, value in tensors.items() if wanted(name)}
            continue
        with _opened(path) as file:
            names = [name for name in file.keys() if wanted(name)]  # noqa: SIM118 (it is no mapping)
            found |= {name: file.get_tensor(name) for name in names}
    return found


def _files(folder: Path, wanted: Callable[[str], bool]) -> list[Path]:
    for name in _INDEX:
        if (folder / name).is_file():
            shards = {shard for tensor, shard in _weight_map(folder / name).items() if wanted(tensor)}
            return [folder / Path(shard).name for shard in sorted(shards)]
    found = [folder / name for name in _WHOLE if (folder / name).is_file()][:1]
    if not found:
        raise InputError(f"{folder}: no {' or '.join((*_WHOLE, *_INDEX))} there", hint=HINT)
    return found


def _weight_map(path: Path) -> dict[str, str]:
    try:
        found = json.loads(read_text(path, what="drafter"))["weight_map"]
        return {str(name): str(shard) for name, shard in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FileFormatError(f"{path}: no weight_map that can be read", hint=HINT) from None


def _opened(path: Path) -> Any:
    try:
        return require("safetensors", extra="hf").safe_open(path, framework="pt")
    except (OSError, require("safetensors", extra="hf").SafetensorError) as error:
        raise FileFormatError(f"{path}: cannot be read: {str(error).partition(chr(10))[0]}", hint=HINT) from error
