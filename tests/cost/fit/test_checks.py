"""Rows that are wrong are found and named by line; rows that fall are found and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from timing_rows import decode_lines, gemm_lines

from treeopt.cost.fit import checks
from treeopt.cost.fit.choose import fit_family
from treeopt.cost.fit.families import sample_of
from treeopt.cost.fit.kinds import rows_of
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.tables import read_table
from treeopt.cost.kernels.all_reduce import all_reduce_work
from treeopt.cost.kernels.fit import KernelFit
from treeopt.errors import FileFormatError, InputError


def rows_from(folder: Path, lines: list[str]) -> Rows:
    path = folder / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    return rows_of(read_table(path))[0]


@pytest.mark.parametrize("time", ["0", "-3.5", "nan", "", "inf"])
def test_times_that_nothing_takes(time: str, tmp_path: Path) -> None:
    lines = gemm_lines()
    lines[7] = f"toy,engine-1,64,4096,4096,{time}"
    with pytest.raises(FileFormatError, match=r"rows\.csv:8: the time is not a positive number: gemm bf16, tokens 64"):
        fit_family(rows_from(tmp_path, lines))


def test_sizes_that_nothing_has(tmp_path: Path) -> None:
    lines = gemm_lines()
    lines[3] = "toy,engine-1,4,0,4096,20"
    with pytest.raises(FileFormatError, match=r"rows\.csv:4: the outputs is not a positive number"):
        fit_family(rows_from(tmp_path, lines))


def test_a_row_in_milliseconds_among_microseconds(tmp_path: Path) -> None:
    lines = gemm_lines()
    *sizes, time_us = lines[20].split(",")
    lines[20] = ",".join([*sizes, f"{float(time_us) / 1000:.9g}"])
    with pytest.raises(FileFormatError, match=r"rows\.csv:21: .* is 1/9\d\d of what the other rows say") as caught:
        fit_family(rows_from(tmp_path, lines))
    assert "ms for us" in caught.value.hint
    lines[20] = ",".join([*sizes, f"{float(time_us) * 1000:.9g}"])
    with pytest.raises(FileFormatError, match=r"rows\.csv:21: .* is 99\d times what the other rows say"):
        fit_family(rows_from(tmp_path, lines))


def test_rows_that_contradict_name_both_lines(tmp_path: Path) -> None:
    lines = [*gemm_lines(), "toy,engine-1,1,4096,4096,99"]
    with pytest.raises(FileFormatError, match=r"rows\.csv:128: gemm bf16, .*: 99 us, but 17\.\d+ us in .*rows\.csv:2"):
        fit_family(rows_from(tmp_path, lines))


def test_repeated_rows_count_once_with_their_median(tmp_path: Path) -> None:
    lines = ["m,n,k,latency_us", *(f"{m},8,8,{t}" for m, t in ((1, 1.0), (1, 1.4), (1, 1.1), (2, 2.0)))]
    rows, doubles = checks.without_duplicates(rows_from(tmp_path, lines))
    assert (rows.time_s * 1e6).tolist() == pytest.approx([1.1, 2.0])
    assert doubles == 2


def test_rows_that_fall_are_named_and_kept(tmp_path: Path) -> None:
    lines = ["m,n,k,latency_us", *(f"{m},64,64,{t}" for m, t in ((1, 10), (2, 10.4), (4, 20), (8, 12), (16, 30)))]
    rows = rows_from(tmp_path, lines)
    found = checks.falls(rows, sample_of(rows))
    assert found is not None
    assert found.rows == 1  # 4 tokens take 20 us, 8 take 12
    assert found.worst == pytest.approx(20 / 12)
    assert found.where.startswith(f"{tmp_path}/rows.csv:4 (gemm bf16, tokens 4")
    rising = rows.where(np.array([True, True, False, True, True]))
    assert checks.falls(rising, sample_of(rising)) is None


def test_too_few_rows_or_shapes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="11 rows of 1 shapes are too few to fit gemm bf16"):
        fit_family(rows_from(tmp_path, gemm_lines()[:12]))
    with pytest.raises(InputError, match="28 rows of 2 shapes are too few"):
        fit_family(rows_from(tmp_path, gemm_lines()[:29]))
    with pytest.raises(InputError, match="9 rows of 3 shapes are too few to fit attention bf16"):
        fit_family(rows_from(tmp_path, decode_lines(((8, 1),))))


def reduce_rows(folder: Path, spikes: dict[int, float]) -> Rows:
    """Messages of 2^8 to 2^21 elements between 2 and 4 GPUs, 4 us and more; `spikes` scale those of 4 GPUs."""
    lines = ["kernel_source,num_gpus,elements_bf16,latency_us"]
    for tp in (2, 4):
        for e in range(8, 22):
            factor = spikes.get(e, 1.0) if tp == 4 else 1.0
            lines.append(f"x_graph,{tp},{2**e},{factor * (4 + 2**e / 1e5):.9g}")
    return rows_from(folder, lines)


def test_a_lonely_message_is_named_left_out_and_priced_from_its_neighbours(tmp_path: Path) -> None:
    found = fit_family(reduce_rows(tmp_path, {8: 5.0, 12: 10.0}))
    assert found.fit.rows == 26
    (said,) = (warning for warning in found.warnings if "neighbours" in warning)
    assert "2 of 28 rows" in said
    assert "left out" in said
    assert f"rows.csv:20 (all_reduce bf16, message_bytes {2**13}, tp 4: 40.4" in said
    without, whole = found.fit, fit_family(reduce_rows(tmp_path, {})).fit
    at, point = np.log([2.0**13]), np.log([[4.0]])

    def time_s(fit: KernelFit) -> float:
        assert fit.residuals is not None
        form_s = fit.roofline.time_s(all_reduce_work(np.exp(at), np.array(4.0)))
        return float((form_s * np.exp(fit.residuals.at(point, 0, at)))[0])

    assert time_s(without) == pytest.approx(time_s(whole), rel=0.01)


def test_a_lonely_gemm_is_named_and_kept(tmp_path: Path) -> None:
    lines = gemm_lines()
    *sizes, time_us = lines[20].split(",")
    lines[20] = ",".join([*sizes, f"{float(time_us) * 3:.9g}"])
    found = fit_family(rows_from(tmp_path, lines))
    assert found.fit.rows == len(lines) - 1
    assert any("1 of 126 rows" in said and "kept" in said and "rows.csv:21" in said for said in found.warnings)


def test_what_two_neighbours_share_is_no_spike(tmp_path: Path) -> None:
    rows = reduce_rows(tmp_path, {12: 3.0, 13: 3.0, 21: 9.0})
    assert not checks.spikes(rows, sample_of(rows)).any()
