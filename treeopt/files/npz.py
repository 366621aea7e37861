"""NPZ files of anyone's making: what is damaged or claims too much is refused before memory is taken for it."""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.errors import FileFormatError
from treeopt.files.documents import os_error
from treeopt.files.opening import OpenedFile

MAX_BYTES: Final = 4 << 30  # of one array; a layer's keys and values behind 128k tokens are 2 GiB in float64
_SUFFIX: Final = ".npy"
_PACKED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy writes no other; others expand without bound


class Header(NamedTuple):
    """What an array says of itself before its values."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """How long its values are."""
        return math.prod(self.shape) * self.dtype.itemsize


class NpzFile:
    """An archive of arrays, open for reading; it is damaged where its members cannot be read, or share a name.

    Args:
        opened: its bytes.
        hint: what the user should give instead of a file that cannot be read.

    Raises:
        FileFormatError: it is no archive.
    """

    def __init__(self, opened: OpenedFile, *, hint: str) -> None:
        self._name, self._hint = opened.name, hint
        try:
            self._archive = zipfile.ZipFile(opened.stream())
        except Exception:  # whatever a damaged directory makes zipfile raise
            raise FileFormatError(f"{self._name}: not an NPZ file", hint=hint) from None
        self._members = {member.filename.removesuffix(_SUFFIX): member for member in self._archive.infolist()}
        if len(self._members) != len(self._archive.infolist()):
            raise FileFormatError(f"{self._name}: two arrays have one name", hint=hint)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return tuple(self._members)

    def read(self, name: str) -> npt.NDArray[Any]:
        """One array.

        Raises:
            FileFormatError: there is none of that name, or it is damaged or larger than `MAX_BYTES`.
        """
        with self._reading(name) as member:
            with self._archive.open(member) as stream:
                header = read_header(stream, member.file_size)
            if header.bytes > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES >> 30} GiB")
            with self._archive.open(member) as stream:
                array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
            return array

    def chunks(self, name: str, rows: int) -> Iterator[npt.NDArray[Any]]:
        """One array in chunks of so many rows, so that its size does not matter.

        Raises:
            FileFormatError: there is none of that name, or it is damaged.
        """
        with self._reading(name) as member, self._archive.open(member) as stream:
            yield from _chunks(stream, member.file_size, rows)

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[zipfile.ZipInfo]:
        if name not in self._members:
            raise FileFormatError(f"{self._name}: it has no array '{name}'", hint=self._hint)
        member = self._members[name]
        try:
            if not member.filename.endswith(_SUFFIX):
                raise ValueError("it is no array")
            if member.compress_type not in _PACKED:
                raise ValueError("its compression method is not one that numpy writes")
            yield member
        except Exception as error:  # zipfile and its decompressors have a kind for each damage
            reason = (error.strerror if isinstance(error, OSError) else str(error)) or "it is damaged"
            raise FileFormatError(f"{self._name}: array '{name}' cannot be read: {reason}", hint=self._hint) from error


def read_header(stream: IO[bytes], held: int) -> Header:
    """The header at the start of an array's file of `held` bytes, which must have the values that it promises.

    Raises:
        ValueError: it is damaged, of Python objects or of values without bytes, or promises more than the file has.
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
    if header.bytes == 0 and header.shape[:1] > (0,):  # any number of such rows fits into no bytes
        raise ValueError(f"shape {list(header.shape)} has rows without values")
    return header


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """An NPZ file; the same arrays give the same bytes, since members carry no time."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def read_npz(path: Path, *, what: str, hint: str) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an archive.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no archive, or an array is damaged or larger than `MAX_BYTES`.
    """
    try:
        archive = NpzFile(OpenedFile(path), hint=hint)
    except OSError as error:
        raise os_error(error, path, what=what, verb="read") from error
    return {name: archive.read(name) for name in archive.arrays}


def _chunks(stream: IO[bytes], held: int, rows: int) -> Iterator[npt.NDArray[Any]]:
    shape, fortran, dtype = read_header(stream, held)
    if fortran and len(shape) > 1:
        raise ValueError("arrays in Fortran order are not read")
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    left = shape[0] if shape else 0
    while left > 0:
        size = min(left, rows)
        data = stream.read(size * row_bytes)
        if len(data) != size * row_bytes:
            raise EOFError("the file ends early")
        yield np.frombuffer(data, dtype=dtype).reshape(size, *shape[1:])
        left -= size
