"""Damaged evidence: an error that says so, or a valid reading; never another exception."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from acceptance.importers.samples import SAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from treeopt.acceptance.importers import KINDS, Imported, read_evidence
from treeopt.errors import TreeoptError

JSON_KEYS = sorted({key for sample in SAMPLES.values() for key in sample.decode(errors="ignore").split('"')[1::2]})
# What numbers, structure and encodings turn into when files are damaged or mean.
PIECES = st.sampled_from(
    [
        *(b"", b"-1", b"0", b"1e999", b"9" * 30, b"9" * 5000, b"nan", b"NaN", b"Infinity", b"null", b"[]", b"{}"),
        *(b'"x"', b"\t", b"\xff\xfe", b"\0", b"\n", b"\r", b",", b"[" * 3000, b"true", b"0.00000", b"1.0000001"),
        *(b"\xe2\x80\xa8", b"\x1b[0m", b'"\\ud800"'),
    ]
)


def outcome(data: bytes, **options: object) -> Imported | TreeoptError:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample"
        path.write_bytes(data)
        try:
            found = read_evidence([path], **options)  # type: ignore[arg-type]
        except TreeoptError as error:
            return error
    for profile in found.profiles:
        model = profile.model()
        row = model.conditional(np.zeros((1, 0), dtype=np.int64))
        assert np.all(row >= 0)
        assert row.sum() <= 1 + 1e-9
    return found


def test_every_kind_has_a_sample_that_is_detected() -> None:
    assert list(SAMPLES) == list(KINDS)
    for kind, sample in SAMPLES.items():
        found = outcome(sample)
        assert isinstance(found, Imported), f"{kind}: {found}"
        assert found.kind == kind


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=15)
@given(data=st.data())
def test_damaged_samples(kind: str, data: st.DataObject) -> None:
    sample = SAMPLES[kind]
    at = data.draw(st.integers(0, len(sample)))
    until = data.draw(st.integers(at, min(at + 12, len(sample))))
    outcome(sample[:at] + data.draw(PIECES) + sample[until:], kind=kind)
    outcome(sample[:at])


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=15)
@given(data=st.data())
def test_numbers_of_any_size(kind: str, data: st.DataObject) -> None:
    sample = SAMPLES[kind]
    digits = [i for i, byte in enumerate(sample) if chr(byte).isdigit()]
    at = data.draw(st.sampled_from(digits or [0]))
    number = data.draw(st.one_of(st.integers(-(10**25), 10**25), st.floats()).map(str))
    outcome(sample[:at] + number.encode() + sample[at + 1 :], kind=kind)


@settings(max_examples=100)
@given(data=st.binary(max_size=200), kind=st.sampled_from([None, *KINDS]))
def test_random_bytes(data: bytes, kind: str | None) -> None:
    outcome(data, kind=kind)


@settings(max_examples=100)
@given(
    data=st.recursive(
        st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(JSON_KEYS), inner, max_size=4),
        max_leaves=12,
    ),
    kind=st.sampled_from(list(KINDS)),
)
def test_json_of_any_shape(data: object, kind: str) -> None:
    outcome(json.dumps(data).encode(), kind=kind)
