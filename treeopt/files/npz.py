"""NPZ files of anyone's making: what is damaged or claims too much is refused before memory is taken for it."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.errors import FileFormatError
from treeopt.files.documents import os_error

MAX_BYTES: Final = 4 << 30  # of one array; a layer's keys and values behind 128k tokens are 2 GiB in float64
_SUFFIX: Final = ".npy"


class Header(NamedTuple):
    """What an array says of itself before its values."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """How long its values are."""
        return math.prod(self.shape) * self.dtype.itemsize


def open_npz(path: Path, *, what: str, hint: str) -> zipfile.ZipFile:
    """Open an archive to read it; `what` names its purpose in messages.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no archive.
    """
    try:
        return zipfile.ZipFile(path)
    except OSError as error:
        raise os_error(error, path, what=what, verb="read") from error
    except Exception:  # whatever a damaged directory makes zipfile raise
        raise FileFormatError(f"{path}: not an NPZ file", hint=hint) from None


def read_header(stream: IO[bytes], held: int) -> Header:
    """The header at the start of an array's file of `held` bytes, which must have the values that it promises.

    Raises:
        ValueError: it is damaged, or of Python objects, or promises more than the file has.
    """
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        header = Header(*read(stream))
    except Exception as error:  # numpy reads it as Python text, and what it says of that may be to trust the file
        raise ValueError("its header is damaged") from error
    if header.dtype.hasobject:
        raise ValueError("it holds Python objects, not numbers")
    left = held - stream.tell()
    if min(header.shape, default=0) < 0 or header.bytes > left:
        raise ValueError(f"the file ends early: shape {list(header.shape)} does not fit into {left} bytes")
    return header


def read_npz(path: Path, *, what: str, hint: str) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an archive.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no archive, or an array is damaged or larger than `MAX_BYTES`.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    with open_npz(path, what=what, hint=hint) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(_SUFFIX)
            try:
                arrays[name] = _read_array(archive, member)
            except Exception as error:  # zipfile and its decompressors have a kind for each damage
                reason = str(error) or "it is damaged"
                raise FileFormatError(f"{path}: '{name}' cannot be read: {reason}", hint=hint) from error
    return arrays


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if not member.filename.endswith(_SUFFIX):
        raise ValueError("it is no array")
    with archive.open(member) as stream:
        header = read_header(stream, member.file_size)
    if header.bytes > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 30} GiB")
    with archive.open(member) as stream:
        array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array
