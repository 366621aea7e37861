"""Step times in CSV: every way to say a shape and a time, and what each mistake is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from treeopt.cost.served.csv_rows import read_csv_steps
from treeopt.cost.served.step import ServedStep
from treeopt.errors import FileFormatError


@pytest.fixture
def read(tmp_path: Path):
    def read_text(text: str) -> list[ServedStep]:
        path = tmp_path / "steps.csv"
        path.write_text(text)
        return read_csv_steps(path, path.read_text())

    return read_text


def test_k_counts_drafts_and_nodes_count_the_root(read) -> None:
    row = read("batch,k,verify_tokens,step_ms,source\n16,3,64,9.95,somewhere\n")[0]
    assert (row.batch, row.nodes, row.depth, row.widths, row.tokens) == (16, 4, 3, (1, 1, 1), 64)
    assert row.step_time_s == pytest.approx(9.95e-3)
    assert row.is_chain
    assert row.tokens_per_step is None


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("step_ms", "8"),
        ("step_s", "0.008"),
        ("step_us", "8000"),
        ("tpot_ms,accept_len", "4,2"),  # 4 ms per token, 2 tokens per step
        ("tok_s,AL", "1000,2"),  # 4 requests x 2 tokens in 8 ms
    ],
)
def test_every_way_to_say_a_time_is_eight_milliseconds(read, header: str, values: str) -> None:
    row = read(f"batch,k,{header}\n4,1,{values}\n")[0]
    assert row.step_time_s == pytest.approx(8e-3)


def test_plain_tokens_per_second_need_no_length(read) -> None:
    # SpecForge#339: 222.47 tok/s at batch 1 are 4.495 ms a step.
    assert read("batch,k,tok_s\n1,0,222.47\n")[0].step_time_s == pytest.approx(4.494988e-3, rel=1e-6)


def test_a_tree_by_its_paths_knows_its_widths(read) -> None:
    row = read('batch,paths,step_ms\n2,"[[0],[1],[0,0],[1,0],[0,1]]",9\n')[0]
    assert (row.nodes, row.depth, row.widths) == (6, 2, (1, 2))
    assert not row.is_chain


def test_a_triple_of_sglang_runs_topk_beams_after_the_first_pass(read) -> None:
    row = read("batch,steps,topk,num_draft_tokens,step_ms\n1,3,3,8,9\n")[0]
    assert (row.nodes, row.depth, row.widths) == (8, 3, (1, 3, 3))
    plain = read("batch,steps,topk,num_draft_tokens,step_ms\n1,0,0,0,9\n")[0]
    assert (plain.nodes, plain.depth, plain.widths) == (1, 0, ())


def test_a_tree_by_its_sizes_counts_as_narrow_without_a_width(read) -> None:
    narrow, wide = read("batch,nodes,depth,width,step_ms\n1,8,3,,9\n1,8,3,2,9\n")
    assert narrow.widths == (1, 1, 1)
    assert wide.widths == (1, 2, 2)


def test_a_byte_order_mark_and_blank_lines_are_no_rows(read) -> None:
    rows = read("\ufeffbatch,k,step_ms\n\n1,0,6.9\n , ,\n1,1,8\n")
    assert [row.depth for row in rows] == [0, 1]
    assert str(rows[1].place.error("x", hint="")).endswith("steps.csv:5: x")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("batch,k,step_ms\n1,0,6.9\n1,1,-8\n", 3, "step_ms -8 is out of range"),
        ("batch,k,step_ms\n1,0,0\n", 2, "step_ms 0 is out of range"),
        ("batch,k,step_ms\n1,0,nan\n", 2, "step_ms nan is out of range"),
        ("batch,k,step_ms\n1,0,inf\n", 2, "step_ms inf is out of range"),
        ("batch,k,step_ms\n1,0,fast\n", 2, "step_ms 'fast' is not a number"),
        ("batch,k,step_ms\n1,1.5,6\n", 2, "k 1.5 is not a whole number"),
        ("batch,k,step_ms\n0,1,6\n", 2, "batch 0 is out of range"),
        ("batch,k,step_ms\n,1,6\n", 2, "no batch"),
        ("batch,k,verify_tokens,step_ms\n16,3,48,9.95\n", 2, "48 tokens verified, but batch 16 with 4 tokens each"),
        ("batch,nodes,depth,step_ms\n1,3,3,9\n", 2, "3 nodes cannot be 3 deep"),
        ('batch,paths,step_ms\n1,"[[0,0]]",9\n', 2, "paths: "),
        ("batch,step_ms\n1,9\n", 1, "the header lacks what was drafted"),
        ("batch,k\n1,9\n", 1, "the header lacks a time"),
        ("k,step_ms\n1,9\n", 1, "the header lacks batch"),
        ("batch,k,step_ms\n1,0," + "9" * 200_000 + "\n", 2, "field larger than field limit"),
        ("batch,bs,k,step_ms\n1,1,0,9\n", 1, "two columns for batch"),
    ],
)
def test_a_mistake_is_named_with_its_line(read, text: str, line: int, says: str) -> None:
    with pytest.raises(FileFormatError) as raised:
        read(text)
    assert f"steps.csv:{line}: " in str(raised.value)
    assert says in str(raised.value)
    assert raised.value.hint
