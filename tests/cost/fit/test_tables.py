"""Files of rows: read with their lines, selected, refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from treeopt.cost.fit.tables import Selection, check_selections, parse_selections, read_table
from treeopt.errors import FileFormatError, InputError, UnknownNameError


def test_csv_keeps_lines_past_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("gpu,m\na,1\n\nb,2\n")
    table = read_table(path)
    assert table.numbers("m").tolist() == [1.0, 2.0]
    assert table.place(1) == f"{path}:4"
    kept = table.select([Selection("gpu", "b"), Selection("nowhere", "x")])
    assert (kept.place(0), kept.texts("gpu").tolist()) == (f"{path}:4", ["b"])


def test_jsonl_fills_absent_keys(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"operator": "gemm", "m": 1}\n{"operator": "gemm", "n": 2.5}\n')
    table = read_table(path)
    assert table.numbers("m")[0] == 1.0
    assert np.isnan(table.numbers("m")[1])
    assert table.numbers("n")[1] == 2.5


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(arrow.table({"gemm_dtype": ["bfloat16", "fp8"], "m": [1, 2], "latency": [0.5, 0.25]}), path)
    table = read_table(path).select([Selection("gemm_dtype", "fp8")])
    assert table.numbers("latency").tolist() == [0.25]
    assert table.place(0) == f"{path}:2"
    path.write_text("no parquet")
    with pytest.raises(FileFormatError, match="cannot be read as Parquet"):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "the file is empty"),
        ("a.csv", "m,n\n", "no rows"),
        ("a.csv", "m,n\n1,2\n3\n", ":3: 1 cells under 2 columns"),
        ("a.jsonl", "{}\n[]\n", ":2: not a JSON object"),
        ("a.jsonl", "{\n", ":1: not valid JSON"),
        ("a.txt", "m\n1\n", "rows come as .csv, .jsonl or .parquet"),
    ],
)
def test_broken_files_say_where(name: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FileFormatError) as caught:
        read_table(path)
    assert message in str(caught.value)


def test_a_cell_that_is_no_number_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("m\n1\nfast\n")
    with pytest.raises(FileFormatError, match=rf"{path}:3: 'fast' in column m is not a number"):
        read_table(path).numbers("m")


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet"):
        if name.endswith(".parquet"):
            pytest.importorskip("pyarrow")
        with pytest.raises(InputError, match="no such file"):
            read_table(tmp_path / name)


def test_selections_are_parsed_and_checked(tmp_path: Path) -> None:
    assert parse_selections("gpu=h100_sxm, engine=vllm-0.24.0") == [("gpu", "h100_sxm"), ("engine", "vllm-0.24.0")]
    assert parse_selections("") == []
    with pytest.raises(InputError, match="'gpu' selects nothing"):
        parse_selections("gpu")
    path = tmp_path / "a.csv"
    path.write_text("gpu,m\nh100_sxm,1\n")
    with pytest.raises(UnknownNameError, match="unknown column 'gpus'"):
        check_selections([read_table(path)], [Selection("gpus", "x")])
    with pytest.raises(UnknownNameError, match="unknown gpu in the rows 'h100'") as caught:
        check_selections([read_table(path)], [Selection("gpu", "h100")])
    assert "did you mean h100_sxm" in caught.value.hint


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("m,n,k,m,latency_us\n1,2,3,4,5\n")
    with pytest.raises(FileFormatError, match=r"rows\.csv: two columns are called m"):
        read_table(path)
