"""The file of rows: what was appended is found again, whatever a killed run left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_device import HEADS, at

from treeopt.cost.fit.kinds import rows_of
from treeopt.cost.fit.tables import read_table
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.gemm import Gemm
from treeopt.errors import FileFormatError, InputError
from treeopt.profile.points import compaction, gemm, stream, tree_attention
from treeopt.profile.rows import RowFile

POINTS = (
    gemm(4, Gemm(100, 50), Dtype.FP32),
    tree_attention(2, 4, 128, HEADS, Dtype.FP32),
    stream(4096, Dtype.FP32),
    compaction(2, 3, 2, HEADS, Dtype.FP32),
)


@pytest.fixture
def rows(tmp_path: Path) -> RowFile:
    found = RowFile(path=tmp_path / "r.jsonl", device="paper")
    for number, point in enumerate(POINTS, start=1):
        found.append(at(point, number * 1e-3))
    return found


def test_times_are_found_by_point(rows: RowFile) -> None:
    other = gemm(4, Gemm(100, 50), Dtype.BF16)
    assert rows.times([*POINTS, other]) == {point: n * 1e-3 for n, point in enumerate(POINTS, start=1)}
    assert RowFile(path=rows.path.with_name("none.jsonl"), device="paper").times(POINTS) == {}


def test_the_fit_reads_them(rows: RowFile) -> None:
    found = rows_of(read_table(rows.path))
    assert [(part.family, part.dtype, len(part)) for part in found] == [
        ("gemm", "fp32", 1),
        ("attention", "fp32", 1),
        ("stream", "fp32", 1),
    ]
    assert found[1].sizes.tolist() == [[128, 2, 4, 4, 2, 32, 0]]


def test_a_row_that_was_cut_short_is_dropped(rows: RowFile) -> None:
    whole = rows.path.read_text()
    rows.path.write_text(whole[:-20])
    assert list(rows.times(POINTS)) == list(POINTS[:3])
    rows.append(at(POINTS[3], 4e-3))
    assert rows.path.read_text() == whole


def test_a_broken_line_elsewhere_is_an_error(rows: RowFile) -> None:
    lines = rows.path.read_text().splitlines()
    for broken in ("{", "[]", '{"operator": "gemm"}'):
        rows.path.write_text("\n".join([lines[0], broken, *lines[1:]]) + "\n")
        with pytest.raises(FileFormatError, match=r"r\.jsonl:2: not a timing row"):
            rows.times(POINTS)


def test_rows_of_another_device_are_refused(rows: RowFile) -> None:
    with pytest.raises(InputError, match=r"r\.jsonl:1 was timed on paper, this is stone"):
        RowFile(path=rows.path, device="stone").times(POINTS)


def test_a_row_holds_what_was_measured(rows: RowFile) -> None:
    assert json.loads(rows.path.read_text().splitlines()[0]) == {
        "operator": "gemm",
        "dtype": "fp32",
        "tokens": 4,
        "outputs": 100,
        "inputs": 50,
        "time_s": 1e-3,
        "spread": 0.0,
        "calls": 7,
        "error": 0.0,
        "device": "paper",
    }
