"""Tables that cannot be right are refused or named, with file and line."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from shared import SHARED, needs_shared

from treeopt.cost.served.checks import CheckedSteps
from treeopt.cost.served.reading import read_steps
from treeopt.errors import FileFormatError, InputError

PUBLISHED = SHARED / "data" / "measured" / "vllm_step_ms_by_batch_k.csv"


@pytest.fixture
def read(tmp_path: Path):
    def read_rows(rows: str) -> CheckedSteps:
        path = tmp_path / "steps.csv"
        path.write_text("batch,k,step_ms\n" + rows)
        return read_steps([path])

    return read_rows


def test_a_row_in_seconds_among_milliseconds_is_refused(read) -> None:
    with pytest.raises(FileFormatError, match=r"steps\.csv:4: 0\.00941 ms beside .* as if given in a larger unit"):
        read("1,0,6.87\n1,1,7.97\n1,3,0.00941\n1,5,10.8\n")


def test_a_row_in_microseconds_among_milliseconds_is_refused(read) -> None:
    with pytest.raises(FileFormatError, match=r"steps\.csv:3: 7970 ms beside .* in a unit 1000 times smaller"):
        read("1,0,6.87\n1,1,7970\n1,3,9.41\n1,5,10.8\n")


def test_times_that_fall_are_named_and_kept(read) -> None:
    found = read("1,0,6.87\n1,1,7.97\n1,3,7.41\n8,3,7.2\n")
    assert len(found.rows) == 4
    by_k, by_batch = found.findings
    assert by_k.endswith("steps.csv:4: batch 1 K=3 takes 7.41 ms, less than 7.97 ms with 2 more drafts: kept")
    assert by_batch.endswith("steps.csv:5: batch 8 K=3 takes 7.2 ms, less than 7.41 ms with 7 more requests: kept")


def test_noise_is_not_a_fall(read) -> None:
    assert read("1,0,6.87\n1,1,6.86\n").findings == ()


def test_a_row_listed_twice_counts_once(read) -> None:
    found = read("1,0,6.87\n1,1,7.97\n1,1,7.97\n")
    assert len(found.rows) == 2
    assert found.findings[0].endswith("steps.csv:4: batch 1 K=1 is listed twice: counted once")


def test_a_point_measured_twice_counts_twice(read) -> None:
    found = read("1,0,6.87\n1,1,7.97\n1,1,8.03\n")
    assert len(found.rows) == 3
    assert found.findings[0].endswith(
        "steps.csv:4: batch 1 K=1 was measured again: a fit takes all its times, a table the median"
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_order_of_rows_does_not_matter(read, order: tuple[int, ...]) -> None:
    again = ["1,1,7.97\n", "1,1,8.03\n", "1,1,8.03\n", "1,1,8.5\n"]
    found = read("1,0,6.87\n" + "".join(again[i] for i in order))
    assert sorted(row.step_time_s for row in found.rows) == pytest.approx([6.87e-3, 7.97e-3, 8.03e-3, 8.5e-3])
    assert len(found.findings) == 3  # one copy, two measured again; no fall from K = 1 to K = 1
    with pytest.raises(FileFormatError, match="batch 1 K=1 took"):
        read("".join(["1,1,7.97\n", "1,1,8.5\n", "1,1,8.5\n", "1,1,8.95\n"][i] for i in order))


def test_measurements_that_contradict_each_other_are_refused(read) -> None:
    with pytest.raises(FileFormatError, match=r"steps\.csv:4: batch 1 K=1 took 9\.5 ms, and 7\.97 ms before"):
        read("1,0,6.87\n1,1,7.97\n1,1,9.5\n")


def test_a_batch_size_that_repeats_another_is_left_out(read) -> None:
    found = read("1,0,6.87\n1,1,7.97\n4,0,6.87\n4,1,7.97\n16,0,7.3\n16,1,8.39\n")
    assert [row.batch for row in found.rows] == [1, 1, 16, 16]
    assert found.findings[0].endswith("steps.csv:4: all 2 times of batch 4 repeat those of batch 1: left out")


def test_a_batch_size_that_was_measured_again_is_no_copy(read) -> None:
    rows = "1,0,6.87\n1,1,7.97\n"
    for again in ("4,0,6.87\n4,0,6.9\n4,1,7.97\n", "4,0,6.9\n4,0,6.87\n4,1,7.97\n"):
        assert [row.batch for row in read(rows + again).rows] == [1, 1, 4, 4, 4]


def test_one_equal_time_is_no_copy(read) -> None:
    assert len(read("1,0,6.87\n1,1,7.97\n4,0,6.87\n").rows) == 3


def test_a_file_without_rows_or_that_is_missing_is_refused(tmp_path: Path, read) -> None:
    with pytest.raises(FileFormatError, match="a header and no rows"):
        read("")
    with pytest.raises(InputError, match="no such file"):
        read_steps([tmp_path / "none.csv"])


@needs_shared
def test_batch_4_of_the_published_table_repeats_batch_1() -> None:
    found = read_steps([PUBLISHED])
    assert len(found.rows) == 24
    assert 4 not in {row.batch for row in found.rows}
    assert any(f"{PUBLISHED}:8: all 6 times of batch 4 repeat those of batch 1" in line for line in found.findings)
