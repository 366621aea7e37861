"""NPZ files whose bytes were changed on purpose, as the two readers of foreign ones tell them."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treeopt.acceptance.shards import TraceFiles
from treeopt.errors import FileFormatError
from treeopt.files import npz
from treeopt.files.npz import read_npz
from treeopt.tree import DraftTree
from treeopt.verify.dump import StepDump
from treeopt.verify.dump_reading import load_dump

LOCAL, CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
MAGIC = b"\x93NUMPY\x01\x00"


def a_dump(path: Path) -> Any:
    return load_dump(path, DraftTree.chain(1))


def a_trace(path: Path) -> Any:
    return TraceFiles.find(path).count()


def member(content: str, values: bytes = bytes(8)) -> bytes:
    raw = content.encode()
    return MAGIC + struct.pack("<H", len(raw)) + raw + values


def header(shape: str, dtype: str = "<i8") -> str:
    return f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}\n"


def archive_of(path: Path, raw: bytes) -> Path:
    """A dump and a trace in one, in which the array that either needs is `raw`."""
    text = io.BytesIO()
    np.save(text, np.array(StepDump.FORMAT))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("format.npy", text.getvalue())
        for name in ("prefix_len", "rank"):
            archive.writestr(f"{name}.npy", raw)
    return path


def patched(path: Path, offset: int, value: int) -> Path:
    """A field of every member changed, `offset` bytes into its entry in the directory and 2 fewer before its data."""
    raw = bytearray(archive_of(path, member(header("(1, 1)"))).read_bytes())
    for mark, at in ((LOCAL, offset - 2), (CENTRAL, offset)):
        place = raw.find(mark)
        while place >= 0:
            raw[place + at : place + at + 2] = struct.pack("<H", value)
            place = raw.find(mark, place + 4)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("read", [a_dump, a_trace])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header("(1000000, 10000000)"), "the file ends early"),
        (header(f"({10**30}, 1)"), "the file ends early"),
        (header("(-1, 3)"), "the file ends early"),
        (header("(1, 1)", "zz"), "its header is damaged"),
        (header("(1, 1)", "|O"), "Python objects"),
        ("{'descr': '<i8', 'shape': (((", "its header is damaged"),
        ("(" * 9000, "its header is damaged"),
        (header("(1, 1)") + " " * 20000, "its header is damaged"),
    ],
)
def test_headers_that_lie(read: Callable[[Path], Any], content: str, words: str, tmp_path: Path) -> None:
    path = archive_of(tmp_path / "file.npz", member(content))
    with pytest.raises(FileFormatError, match=words) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "pickle" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("read", [a_dump, a_trace])
@pytest.mark.parametrize(("offset", "value", "words"), [(10, 97, "compression method"), (8, 1, "encrypted")])
def test_members_that_cannot_be_unpacked(
    read: Callable[[Path], Any], offset: int, value: int, words: str, tmp_path: Path
) -> None:
    with pytest.raises(FileFormatError, match=words):
        read(patched(tmp_path / "file.npz", offset, value))


@pytest.mark.parametrize("read", [a_dump, a_trace])
def test_a_directory_of_another_version(read: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="not an NPZ file"):
        read(patched(tmp_path / "file.npz", 6, 99))


def test_arrays_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "file.npz", a=np.zeros(200))
    assert read_npz(tmp_path / "file.npz", what="file", hint="")["a"].shape == (200,)
    monkeypatch.setattr(npz, "MAX_BYTES", 1599)
    with pytest.raises(FileFormatError, match="'a' cannot be read: it is larger"):
        read_npz(tmp_path / "file.npz", what="file", hint="")


def test_members_that_are_no_arrays(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(FileFormatError, match=r"'notes\.txt' cannot be read: it is no array"):
        read_npz(tmp_path / "file.npz", what="file", hint="")


@pytest.mark.parametrize("read", [a_dump, a_trace])
def test_every_changed_byte_is_told_as_a_wrong_file(read: Callable[[Path], Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "file.npz"
    np.savez_compressed(path, format=np.array(StepDump.FORMAT), prefix_len=3, rank=rng.integers(-1, 4, (5, 2)))
    whole = path.read_bytes()
    for _ in range(600):
        raw = bytearray(whole)
        for place in rng.integers(len(raw), size=rng.integers(1, 4)):
            raw[place] = rng.integers(256)
        path.write_bytes(raw)
        with contextlib.suppress(FileFormatError):
            read(path)


@pytest.mark.parametrize(
    ("shape", "dtype"), [(f"({10**15}, 0)", "<i8"), (f"({10**15},)", "<U0"), (f"({10**9}, {10**9})", "|V0")]
)
def test_rows_without_values_take_no_time(shape: str, dtype: str, tmp_path: Path) -> None:
    path = archive_of(tmp_path / "file.npz", member(header(shape, dtype)))
    with pytest.raises(FileFormatError, match="has rows without values"):
        TraceFiles.find(path).count()
