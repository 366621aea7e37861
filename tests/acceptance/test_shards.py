from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treeopt.acceptance import shard_files
from treeopt.acceptance.loading import is_trace
from treeopt.acceptance.shards import TraceFiles
from treeopt.acceptance.trace import Trace
from treeopt.errors import FileFormatError, InputError
from treeopt.files.evidence_lines import SourceFile

Arrays = dict[str, Any]
DEPTH = 3


def document(doc_id: int | str, length: int, *, seed: int = 0) -> Arrays:
    """A document with random ranks, cut where it ends."""
    rng = np.random.default_rng([seed, length])
    rank = rng.integers(-1, 4, size=(length, DEPTH))
    rank[np.arange(length)[:, None] + np.arange(1, DEPTH + 1) >= length] = -2
    return {
        "rank": rank.astype(np.int8),
        "doc_id": np.array([doc_id] * length),
        "pos": np.arange(length, dtype=np.int32),
        "topk_prob": rng.random((length, DEPTH, 2)).astype(np.float16),
    }


def together(documents: list[Arrays]) -> Arrays:
    return {name: np.concatenate([d[name] for d in documents]) for name in documents[0]}


def save_npz(path: Path, arrays: Arrays) -> None:
    np.savez_compressed(path, **arrays)


def save_jsonl(path: Path, arrays: Arrays) -> None:
    rows = zip(*(array.tolist() for array in arrays.values()), strict=True)
    path.write_text("".join(json.dumps(dict(zip(arrays, row, strict=True))) + "\n" for row in rows))


def save_parquet(path: Path, arrays: Arrays) -> None:
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        name: arrow.array(array.astype(float).tolist() if name == "topk_prob" else array.tolist())
        for name, array in arrays.items()
    }
    parquet.write_table(arrow.table(columns), path, row_group_size=7)


SAVE: dict[str, Callable[[Path, Arrays], None]] = {"npz": save_npz, "jsonl": save_jsonl, "parquet": save_parquet}
DOCUMENTS = [document(i, length) for i, length in enumerate([5, 1, 9, 4, 12, 3, 7])]
WHOLE = together(DOCUMENTS)


def assert_whole(trace: Trace) -> None:
    for name, expected in WHOLE.items():
        np.testing.assert_allclose(getattr(trace, name), expected, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("kind", SAVE)
def test_every_kind_says_the_same(kind: str, tmp_path: Path) -> None:
    SAVE[kind](tmp_path / f"t.{kind}", WHOLE)
    found = TraceFiles.find(tmp_path / f"t.{kind}")
    assert_whole(found.load(confidence=True))
    assert list(found.count().counts) == list(Trace(**WHOLE).count())
    assert found.count().documents == 7
    assert found.load().topk_prob is None


@pytest.mark.parametrize("kind", SAVE)
@pytest.mark.parametrize("rows", [1, 2, 5, 11])
def test_documents_are_whole_wherever_the_chunks_end(
    kind: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_files, "_NPZ_ROWS", rows)
    monkeypatch.setattr(shard_files, "_PARQUET_ROWS", rows)
    monkeypatch.setattr(shard_files, "_JSONL_ROWS", rows)
    SAVE[kind](tmp_path / f"t.{kind}", WHOLE)
    blocks = list(TraceFiles.find(tmp_path / f"t.{kind}").blocks())
    assert len(blocks) > 1
    assert [d for block in blocks for d in np.unique(block.doc_id).tolist()] == list(range(7))


def test_order_and_division_of_the_shards_change_nothing(tmp_path: Path) -> None:
    expected = list(Trace(**WHOLE).count())
    for seed in range(10):
        shuffled = random.Random(seed).sample(DOCUMENTS, k=len(DOCUMENTS))
        folder = tmp_path / str(seed)
        folder.mkdir()
        for i in range(3):
            kind = ("npz", "jsonl")[(seed + i) % 2]
            SAVE[kind](folder / f"{i}.{kind}", together(shuffled[i::3]))
        files = random.Random(seed).sample(list(folder.iterdir()), k=3)
        found = TraceFiles.find(*files)
        assert list(found.count().counts) == expected
        assert_whole(found.load(confidence=True))
        assert found.sha256 == TraceFiles.find(folder).sha256


def test_a_document_that_came_twice_is_counted_once(tmp_path: Path) -> None:
    save_npz(tmp_path / "a.npz", together(DOCUMENTS[:5]))
    save_jsonl(tmp_path / "b.jsonl", together(DOCUMENTS[3:]))
    found = TraceFiles.find(tmp_path)
    assert found.count().documents == 7
    assert_whole(found.load(confidence=True))


def test_a_document_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    save_npz(tmp_path / "a.npz", WHOLE)
    save_npz(tmp_path / "b.npz", document(4, 12, seed=1))
    with pytest.raises(FileFormatError, match=r"b\.npz: document 4 is in .*a\.npz too, with other ranks"):
        TraceFiles.find(tmp_path).count()


def test_a_document_in_two_places_of_a_shard_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_npz(tmp_path / "a.npz", together([DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[0]]))
    for rows in (1 << 20, 2):
        monkeypatch.setattr(shard_files, "_NPZ_ROWS", rows)
        with pytest.raises(FileFormatError, match="document 0 goes on after another one"):
            TraceFiles.find(tmp_path).count()


def test_a_later_row_out_of_order_is_told_from_where_it_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = together(DOCUMENTS)
    wrong["pos"] = wrong["pos"].copy()
    wrong["pos"][8] = 7
    save_npz(tmp_path / "a.npz", wrong)
    monkeypatch.setattr(shard_files, "_NPZ_ROWS", 7)
    with pytest.raises(FileFormatError, match=r"row 2: position 7 follows 1 in .* \(rows counted from row 6 on\)"):
        TraceFiles.find(tmp_path).count()


def test_shards_must_be_alike(tmp_path: Path) -> None:
    save_npz(tmp_path / "a.npz", DOCUMENTS[0])
    save_npz(tmp_path / "b.npz", {**DOCUMENTS[1], "rank": DOCUMENTS[1]["rank"][:, :2]})
    with pytest.raises(FileFormatError, match=r"b\.npz: records 2 depths, .*a\.npz records 3"):
        TraceFiles.find(tmp_path).count()
    save_npz(tmp_path / "b.npz", document("x", 4))
    with pytest.raises(FileFormatError, match=r"b\.npz: doc_id is text, in .*a\.npz numbers"):
        TraceFiles.find(tmp_path).count()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{", ":2: not valid JSON"),
        (" " * (16 << 20) + "3", ": line 2 is longer than 16 MiB"),
        ("3", ":2: not a JSON object"),
        ('{"rank": [0, 1, 2], "doc_id": 0}', ":2: it has no 'pos'"),
        ('{"rank": [0, 1, 0.5], "doc_id": 0, "pos": 1}', ":2: 'rank' is of the wrong kind"),
        ('{"rank": [0, [1], 2], "doc_id": 0, "pos": 1}', ":2: 'rank' is of the wrong kind"),
        ('{"rank": [true, true, true], "doc_id": 0, "pos": 1}', ":2: 'rank' is of the wrong kind"),
        ('{"rank": [0, 1, 1e30], "doc_id": 0, "pos": 1}', ":2: 'rank' is of the wrong kind"),
        ('{"rank": [0, 1], "doc_id": 0, "pos": 1}', ":2: 'rank' is unlike that in line 1"),
        ('{"rank": [0, 1, 2], "doc_id": null, "pos": 1}', ":2: 'doc_id' is of the wrong kind"),
        ('{"rank": [0, 1, 2], "doc_id": "a", "pos": 1}', ":2: 'doc_id' is unlike that in line 1"),
        ('{"rank": [0, 1, -3], "doc_id": 0, "pos": 1}', ": 'rank' holds -3"),
    ],
)
def test_a_wrong_line_is_named(second: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"rank": [0, 1, 2], "doc_id": 0, "pos": 0}\n' + second + "\n")
    with pytest.raises(FileFormatError) as caught:
        TraceFiles.find(path).count()
    assert str(caught.value).startswith(f"{path}{message}")


def test_lines_that_change_between_chunks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "_JSONL_ROWS", 1)
    path = tmp_path / "t.jsonl"
    path.write_text('{"rank": [0, 1], "doc_id": 0, "pos": 0}\n{"rank": [0], "doc_id": 0, "pos": 1}\n')
    with pytest.raises(FileFormatError, match="'rank' is not alike in all rows"):
        TraceFiles.find(path).count()


def test_parquet_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    for columns, message in (
        ({"doc_id": [0], "pos": [0]}, "no column 'rank'"),
        ({"rank": [[0, 1], [0]], "doc_id": [0, 0], "pos": [0, 1]}, "the lists of 'rank' are not equally long"),
        ({"rank": [[0, None]], "doc_id": [0], "pos": [0]}, "'rank' has gaps"),
        ({"rank": [[0, 1], None], "doc_id": [0, 0], "pos": [0, 1]}, "'rank' has gaps"),
        ({"rank": [0], "doc_id": [0], "pos": [0]}, "'rank' is int64"),
    ):
        parquet.write_table(arrow.table(columns), path)
        with pytest.raises(FileFormatError, match=message):
            TraceFiles.find(path).count()
    path.write_bytes(b"PAR1 but cut")
    with pytest.raises(InputError):
        TraceFiles.find(path).count()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.npz", "", True),
        ("a.parquet", "", True),
        ("a.jsonl", '\n{"rank": [0], "doc_id": 0}\n', True),  # whatever else is wrong with it
        ("a.jsonl", '{"accept_length": 3.0}\n', False),  # an engine's log
        ("a.jsonl", "[1]\n", False),
        ("a.jsonl", "rank doc_id\n", False),
        ("a.jsonl", "", False),
        ("a.json", '{"rank": [0], "doc_id": 0}', True),  # by what it holds
    ],
)
def test_what_is_a_trace(name: str, text: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert is_trace(SourceFile(tmp_path / name)) is expected
    assert is_trace(SourceFile(tmp_path))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no shards there"):
        TraceFiles.find(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        TraceFiles.find(tmp_path / "missing.npz")
    (tmp_path / "t.csv").touch()
    with pytest.raises(InputError, match="not a trace"):
        TraceFiles.find(tmp_path / "t.csv")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(FileFormatError, match="empty"):
        TraceFiles.find(tmp_path / "empty.jsonl").count()
    np.savez(tmp_path / "short.npz", **{**WHOLE, "pos": WHOLE["pos"][:-1]})
    with pytest.raises(FileFormatError, match="'pos' has"):
        TraceFiles.find(tmp_path / "short.npz").count()


def test_conditions_are_read_and_must_agree(tmp_path: Path) -> None:
    said = {"target": "t", "temperature": 0.0}
    save_npz(tmp_path / "a.npz", {**DOCUMENTS[0], "conditions": np.array(json.dumps(said))})
    save_npz(tmp_path / "b.npz", {**DOCUMENTS[1], "conditions": np.array(json.dumps(said))})
    profile = TraceFiles.find(tmp_path).profile(name="both")
    assert (profile.conditions.target, profile.conditions.temperature, profile.documents) == ("t", 0.0, 2)
    assert profile.kind == "paths"
    assert profile.evidence.trials == 4  # of 5 and 1 rows; a document's last row has no token left to guess
    save_npz(tmp_path / "b.npz", {**DOCUMENTS[1], "conditions": np.array('{"target": "t", "temperature": 1.0}')})
    with pytest.raises(InputError, match=r"b\.npz: temperature is 1\.0, in .*a\.npz it is 0\.0"):
        TraceFiles.find(tmp_path).conditions()
    save_npz(tmp_path / "b.npz", {**DOCUMENTS[1], "conditions": np.array("[")})
    with pytest.raises(FileFormatError, match="its conditions:2: not valid YAML"):
        TraceFiles.find(tmp_path).conditions()
    save_npz(tmp_path / "plain.npz", DOCUMENTS[2])
    assert TraceFiles.find(tmp_path / "plain.npz").conditions().known() == {"sampling": "all-positions"}


def test_parquet_metadata_holds_the_conditions(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({name: array.tolist() for name, array in DOCUMENTS[0].items() if name != "topk_prob"})
    table = table.replace_schema_metadata({"treeopt.conditions": '{"target": "t"}'})
    parquet.write_table(table, tmp_path / "t.parquet")
    assert TraceFiles.find(tmp_path).conditions().target == "t"
