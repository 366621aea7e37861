"""Joining NPZ files row by row, with one file in memory at a time."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from treeopt.files.writing import replacing


def join_npz(parts: Sequence[Path], out: Path) -> None:
    """Write the arrays of the parts end to end along their first axis; an array of no axes is taken from the first.

    Raises:
        InputError: `out` cannot be written; whatever was there stays.
    """
    with replacing(out, what="trace") as file:
        _write(parts, file)


def _write(parts: Sequence[Path], file: IO[bytes]) -> None:
    with np.load(parts[0]) as first:
        names = list(first)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            # A member that is opened by name carries no time, so the same parts make the same bytes.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_array(parts, name, member)


def _write_array(parts: Sequence[Path], name: str, member: IO[bytes]) -> None:
    first = _load(parts[0], name)
    if first.ndim == 0:
        np.lib.format.write_array(member, first)
        return
    rows = sum(len(_load(part, "pos")) for part in parts)
    header = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False}
    np.lib.format.write_array_header_2_0(member, {**header, "shape": (rows, *first.shape[1:])})
    for part in parts:
        member.write(np.ascontiguousarray(_load(part, name)).tobytes())


def _load(part: Path, name: str) -> Any:
    with np.load(part) as archive:
        return archive[name]
