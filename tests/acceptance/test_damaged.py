"""Damaged traces of every kind: a message that names the file, at once; no other exception, no silent read."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import SHARED, needs_shared

from treeopt.acceptance.importers import read_evidence
from treeopt.acceptance.loading import load_profile, read_trace
from treeopt.errors import InputError

BREAK = SHARED / "data" / "faults" / "break"
WHOLE: dict[str, Any] = {
    "rank": np.array([[0, 1], [2, -2], [-2, -2], [0, -1], [-1, -2], [-2, -2]], dtype=np.int8),
    "doc_id": np.array([7, 7, 7, 3, 3, 3]),
    "pos": np.array([0, 1, 2, 5, 6, 7]),
    "topk_prob": np.full((6, 2, 4), 0.25, dtype=np.float16),
}


def npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **WHOLE, conditions=np.array(json.dumps({"target": "t", "temperature": 0})))
    return file.getvalue()


def jsonl() -> bytes:
    rows = ({name: array[i].tolist() for name, array in WHOLE.items()} for i in range(6))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet() -> bytes:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    writer.write_table(arrow.table({name: array.tolist() for name, array in WHOLE.items()}), file)
    return file.getvalue()


def outcome(data: bytes, suffix: str) -> object:
    """What each reader of a trace makes of the file; an InputError names it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"sample{suffix}"
        path.write_bytes(data)
        found = []
        for read in (load_profile, lambda p: load_profile(p, keep=True, confidence=True), read_trace):
            try:
                found.append(read(path))
            except InputError as error:
                found.append(error)
    assert all("sample" in str(item) for item in found if isinstance(item, InputError))
    return found


@pytest.mark.parametrize(("make", "suffix"), [(npz, ".npz"), (jsonl, ".jsonl"), (parquet, ".parquet")])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_changed_bytes(make: Callable[[], bytes], suffix: str, data: st.DataObject) -> None:
    raw = bytearray(make())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    outcome(bytes(raw[: data.draw(st.integers(0, len(raw)))]), suffix)
    outcome(bytes(raw), suffix)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.fixed_dictionaries({"rank": VALUES, "doc_id": VALUES, "pos": VALUES}), min_size=1, max_size=3))
def test_rows_of_any_value(rows: list[dict[str, object]]) -> None:
    found = outcome("".join(json.dumps(row) + "\n" for row in rows).encode(), ".jsonl")
    assert isinstance(found, list)
    for row in rows:
        if not (isinstance(row["rank"], list) and row["rank"] and all(type(r) is int for r in row["rank"])):
            assert all(isinstance(item, InputError) for item in found)


DTYPES = st.sampled_from(["?", "i1", "u8", "f4", "f2", "c8", "U0", "U3", "S2", "V0", "V3", "M8[s]", "m8[D]", "O"])


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(WHOLE)), DTYPES, st.lists(st.integers(0, 7), max_size=3))
def test_arrays_of_any_kind_and_shape(name: str, dtype: str, shape: list[int]) -> None:
    file = io.BytesIO()
    np.savez(file, **{**WHOLE, name: np.zeros(shape, dtype=dtype)})
    found = outcome(file.getvalue(), ".npz")
    assert isinstance(found, list)
    if dtype not in ("i1", "u8") and name in ("rank", "pos"):
        assert all(isinstance(item, InputError) for item in found[1:])


def test_members_with_one_name_are_refused(tmp_path: Path) -> None:
    with contextlib.suppress(UserWarning), zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        with zipfile.ZipFile(io.BytesIO(npz())) as whole:
            for name in whole.namelist():
                archive.writestr(name, whole.read(name))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("rank.npy", b"")
    with pytest.raises(InputError, match="two arrays have one name"):
        load_profile(tmp_path / "t.npz")


def test_an_archive_is_opened_and_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.npz").write_bytes(npz())
    opened: list[object] = []
    decoded: list[str] = []
    plain, member = zipfile.ZipFile.__init__, zipfile.ZipFile.open
    monkeypatch.setattr(
        zipfile.ZipFile, "__init__", lambda self, *args, **named: (opened.append(self), plain(self, *args, **named))[1]
    )
    monkeypatch.setattr(
        zipfile.ZipFile,
        "open",
        lambda self, name, *args, **named: (decoded.append(str(name)), member(self, name, *args, **named))[1],
    )
    profile = load_profile(tmp_path / "t.npz", keep=True, confidence=True)
    assert profile.trace is not None
    assert profile.trace.topk_prob is not None
    assert len(opened) == 1
    assert len(set(decoded)) == 5  # each array, and the conditions


@needs_shared
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("docdate.npz", "'doc_id' is datetime64"),
        ("pos_text.npz", "'pos' is <U5, expected whole numbers"),
        ("zerosize.npz", "has rows without values"),
        ("flipped.parquet", "cannot be read as Parquet"),
        ("pos_decimal.parquet", "'pos' holds decimal128"),
        ("depth_20000.jsonl", "'rank' records 20000 depths"),
        ("rank_bool.jsonl", "'rank' is of the wrong kind"),
    ],
)
def test_the_files_that_broke_something(name: str, words: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    for read in (load_profile, read_trace):
        with pytest.raises(InputError, match=words):
            read(BREAK / name)


@needs_shared
def test_a_tensor_that_is_one_value_shown_often_takes_no_memory() -> None:
    pytest.importorskip("torch")
    with pytest.raises(InputError, match="a head claims more values than the file holds"):
        read_evidence([BREAK / "heads_expanded_bomb.pt"])


def test_reading_a_trace_needs_no_library_that_starts_slowly() -> None:
    code = "import sys, treeopt.acceptance.loading; print(*{'torch', 'pyarrow', 'csv', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
