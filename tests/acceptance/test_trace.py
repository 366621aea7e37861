from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import SHIPPED, shipped_trace, shuffled, trace_of

from treeopt.acceptance import shard_files
from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.shards import TraceFiles
from treeopt.acceptance.trace import Trace
from treeopt.errors import FileFormatError, InputError


def arrays(**changed: Any) -> dict[str, Any]:
    """Two documents of three rows, two depths."""
    value: dict[str, Any] = {
        "rank": np.array([[0, 1], [2, -2], [-2, -2], [0, -1], [-1, -2], [-2, -2]], dtype=np.int8),
        "doc_id": np.array([7, 7, 7, 3, 3, 3]),
        "pos": np.array([0, 1, 2, 5, 6, 7]),
    }
    return {**value, **changed}


def saved(folder: Path, **content: Any) -> TraceFiles:
    np.savez_compressed(folder / "trace.npz", **content)
    return TraceFiles.find(folder / "trace.npz")


def items(counts: PathCounts) -> list[tuple[tuple[int, ...], float]]:
    return [(item.path, item.count) for item in counts]


def test_a_trace_in_memory() -> None:
    trace = Trace(**arrays())
    assert (len(trace), trace.depth, trace.documents) == (6, 2, 2)
    assert trace.bounds.tolist() == [0, 3, 6]
    assert trace.document.tolist() == [1, 1, 1, 0, 0, 0]  # by id, not by order
    assert trace.complete.tolist() == [True, False, False, True, False, False]


def test_selecting_documents() -> None:
    chosen = Trace(**arrays(topk_prob=np.zeros((6, 2, 4)))).select(np.array([False, True]))
    assert chosen.doc_id.tolist() == [7, 7, 7]
    assert chosen.rank.tolist() == [[0, 1], [2, -2], [-2, -2]]
    assert chosen.topk_prob is not None
    assert chosen.topk_prob.shape == (3, 2, 4)


def test_counting_with_weights() -> None:
    trace = Trace(**arrays())
    assert items(trace.count()) == [((0,), 2.0), ((2,), 1.0), ((0, 1), 1.0)]
    weighted = trace.count(np.array([0.5, 0, 0, 2, 0, 0]))
    assert (weighted.starts, items(weighted)) == (2.5, [((0,), 2.5), ((0, 1), 0.5)])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rank": np.zeros((6, 2))}, r"'rank' is float64 \[6, 2\]"),
        ({"rank": np.zeros(6, dtype=np.int8)}, r"'rank' is int8 \[6\]"),
        ({"rank": np.full((6, 2), -3)}, "'rank' holds -3"),
        ({"doc_id": np.array([7, 7, 7])}, r"'doc_id' has \[3\] entries"),
        ({"pos": np.zeros((6, 1), dtype=int)}, r"'pos' has \[6, 1\] entries"),
        ({"pos": np.zeros(6)}, "'pos' is float64, expected whole numbers"),
        ({"pos": np.array(["x"] * 6)}, "'pos' is <U1, expected whole numbers"),
        ({"doc_id": np.array(["2026-01-01"] * 6, dtype="datetime64[D]")}, r"'doc_id' is datetime64\[D\]"),
        ({"rank": np.zeros((6, 2), dtype=bool)}, "'rank' is bool"),
        ({"rank": np.zeros((6, 20000), dtype=np.int8)}, "'rank' records 20000 depths"),
        ({"topk_prob": np.zeros((6, 3, 8))}, r"'topk_prob' has \[6, 3, 8\] entries"),
        ({"topk_prob": np.zeros((6, 2, 8), dtype=int)}, "'topk_prob' is int64"),
        ({"topk_prob": np.full((6, 2, 8), np.nan)}, "row 0: 'topk_prob' is nan at depth 1, guess 0"),
        ({"topk_prob": np.full((6, 2, 8), -3.5)}, "row 0: 'topk_prob' is -3.5 at depth 1, guess 0"),
        ({"doc_id": np.array([7, 7, 3, 7, 3, 3])}, "row 3: document 7 goes on after another one"),
        ({"pos": np.array([0, 1, 3, 5, 6, 7])}, "row 2: position 3 follows 1 in document 7"),
        ({"pos": np.array([0, 1, 1, 5, 6, 7], dtype=np.uint8)}, "row 2: position 1 follows 1 in document 7"),
        (
            {"rank": np.array([[0, 1], [-2, 0], [-2, -2], [0, -1], [-1, -2], [-2, -2]])},
            "row 1: a rank is recorded past the end of document 7",
        ),
        (
            {"rank": np.array([[0, 1], [2, -2], [-2, -2], [0, -1], [-1, -2], [0, 0]])},
            "row 5: a rank is recorded past the end of document 3",
        ),
    ],
)
def test_arrays_that_are_no_trace(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        Trace(**arrays(**changed))
    with pytest.raises(FileFormatError, match=rf"trace\.npz: {message}"):
        saved(tmp_path, **arrays(**changed)).load(confidence="topk_prob" in changed)


def test_an_empty_trace(tmp_path: Path) -> None:
    nothing = {"rank": np.zeros((0, 2), dtype=np.int8), "doc_id": np.zeros(0), "pos": np.zeros(0)}
    with pytest.raises(InputError, match="the trace is empty"):
        Trace(**nothing)
    file = saved(tmp_path, **nothing)
    for read in (file.load, file.count):
        with pytest.raises(FileFormatError, match=r"trace\.npz: the trace is empty"):
            read()


def test_loading_reads_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "_NPZ_ROWS", 4)
    content = arrays(topk_prob=np.arange(48.0).reshape(6, 2, 4) / 48)
    file = saved(tmp_path, **content)
    assert file.load().topk_prob is None
    trace = file.load(confidence=True)
    for name, array in content.items():
        assert np.array_equal(getattr(trace, name), array)
    assert items(file.count().counts) == items(trace.count())
    assert file.count().documents == trace.documents == 2


def test_the_shipped_trace() -> None:
    trace = shipped_trace()
    source = np.load(SHIPPED)
    assert (len(trace), trace.documents) == (len(source["rank"]), 160)
    assert items(trace.count()) == items(TraceFiles.find(SHIPPED).count().counts)
    assert trace.complete.sum() == len(trace) - 160 * trace.depth


def test_the_order_of_documents_is_not_their_number() -> None:
    trace = trace_of([np.full((5, 1), rank) for rank in range(4)])
    other = shuffled(trace, [2, 0, 3, 1])
    assert other.rank[:4].tolist() == [[2]] * 4
    for number in range(4):
        assert np.array_equal(trace.rank[trace.document == number], other.rank[other.document == number])


def test_documents_may_have_names() -> None:
    trace = replace(Trace(**arrays()), doc_id=np.array(["b", "b", "b", "a", "a", "a"]))
    assert trace.document.tolist() == [1, 1, 1, 0, 0, 0]


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("rank: 1")
    with pytest.raises(FileFormatError, match="not an NPZ file"):
        read_trace(tmp_path / "text.npz")
    content = arrays()
    del content["pos"]
    with pytest.raises(FileFormatError, match="it has no array 'pos'") as caught:
        saved(tmp_path, **content).load()
    assert "pos [T]" in caught.value.hint
    assert saved(tmp_path, **arrays()).load(confidence=True).topk_prob is None
    with pytest.raises(InputError, match=r"absent\.npz"):
        read_trace(tmp_path / "absent.npz")
