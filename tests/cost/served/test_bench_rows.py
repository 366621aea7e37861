"""Step times out of engines' own benchmark files, values as their sources print them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from shared import SHARED, needs_shared

from treeopt.cost.served.bench_rows import read_bench_steps
from treeopt.cost.served.step import ServedStep, payoffs
from treeopt.errors import FileFormatError

INPUTS = SHARED / "data" / "inputs"


def read_file(path: Path) -> list[ServedStep]:
    return read_bench_steps(path, path.read_text())


@pytest.fixture
def read(tmp_path: Path):
    def read_value(value: Any) -> list[ServedStep]:
        path = tmp_path / "bench.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return read_file(path)

    return read_value


def test_vllm_bench_serve_is_batch_times_length_over_throughput(read) -> None:
    run = {
        "max_concurrency": 8,
        "output_throughput": 2000.0,
        "spec_decode_num_drafts": 100,
        "spec_decode_draft_tokens": 300,
        "spec_decode_accepted_tokens": 150,
    }
    row = read(run)[0]
    assert (row.batch, row.depth, row.tokens_per_step) == (8, 3, 2.5)
    assert row.step_time_s == pytest.approx(8 * 2.5 / 2000.0)
    plain = read({"max_concurrency": 8, "output_throughput": 1600.0})[0]
    assert (plain.nodes, plain.step_time_s) == (1, pytest.approx(8 / 1600.0))


def test_sglang_bench_states_the_step_time_in_seconds(read) -> None:
    lines = (
        '{"batch_size": 1, "steps": 0, "topk": 0, "num_draft_tokens": 0, "acc_length": 1.0, "step_time": 0.00457}\n'
        '{"batch_size": 64, "steps": 4, "topk": 4, "num_draft_tokens": 16, "acc_length": 2.553, "step_time": 0.12492}\n'
    )
    plain, tree = read(lines)
    assert (plain.nodes, plain.step_time_s) == (1, 0.00457)
    assert (tree.batch, tree.nodes, tree.depth, tree.widths) == (64, 16, 4, (1, 4, 4, 4))
    assert tree.step_time_s == 0.12492


def test_trtllm_iterations_of_one_point_are_their_median(read) -> None:
    def iteration(ms: float, *, contexts: int = 0) -> dict[str, Any]:
        return {
            "iterLatencyMS": ms,
            "inflightBatchingStats": {"numContextRequests": contexts, "numGenRequests": 8},
            "specDecodingStats": {
                "numDraftTokens": 24,
                "numAcceptedTokens": 12,
                "numRequestsWithDraftTokens": 8,
                "iterLatencyMS": 2.1,
            },
        }

    rows = read([iteration(18.0), iteration(20.0), iteration(90.0), iteration(400.0, contexts=1)])
    assert len(rows) == 1
    assert (rows[0].batch, rows[0].depth, rows[0].tokens_per_step) == (8, 3, 2.5)
    assert rows[0].step_time_s == pytest.approx(20e-3)


def test_vllm_table_is_milliseconds_by_batch_and_k(read) -> None:
    rows = read({"batch_stats": {"1": {"0": 6.9, "3": 8.4}, "64": {"0": 9.8}}})
    assert [(row.batch, row.depth, row.step_time_s) for row in rows] == [
        (1, 0, pytest.approx(6.9e-3)),
        (1, 3, pytest.approx(8.4e-3)),
        (64, 0, pytest.approx(9.8e-3)),
    ]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"batch_stats": {"1": {"0": -6.9}}}, "-6.9 is no measurement"),
        ({"batch_stats": {"one": {"0": 6.9}}}, "no batch size and K"),
        ({"max_concurrency": 4, "output_throughput": 0.0}, "output_throughput: 0 is no measurement"),
        ({"max_concurrency": None, "output_throughput": 10.0}, "max_concurrency: expected a number"),
        ({"nothing": 1}, "no step times are known in it"),
    ],
)
def test_what_is_no_measurement_is_refused(read, value: Any, says: str) -> None:
    with pytest.raises(FileFormatError, match=says):
        read(value)


@pytest.mark.parametrize("order", list(itertools.permutations((6.4, 6.9, 7.0))))
def test_a_step_is_held_against_the_median_plain_step(read, order: tuple[float, ...]) -> None:
    plain = [{"max_concurrency": 1, "output_throughput": 1e3 / ms} for ms in order]
    drafts = {"spec_decode_num_drafts": 10, "spec_decode_draft_tokens": 30, "spec_decode_accepted_tokens": 15}
    found = payoffs(read([*plain, {"max_concurrency": 1, "output_throughput": 2.5e3 / 13.8, **drafts}]))
    assert [p.break_even_length for p in found] == pytest.approx([13.8 / 6.9])


@needs_shared
def test_break_even_of_specforge_339_is_reproduced() -> None:
    """Steps in file order: 2.59 2.83 2.13 2.92 3.14 4.01 at batch 1; none of them accepts that much."""
    found = payoffs(read_file(INPUTS / "specforge_bench_eagle3_results.json"))
    assert [round(p.break_even_length, 2) for p in found] == [2.59, 2.83, 2.13, 2.92, 3.14, 4.01, 2.35, 3.01]
    assert [p.step.tokens_per_step for p in found] == [1.86, 2.2, 1.99, 2.52, 2.42, 3.2, 1.86, 2.27]
    assert not any(p.pays for p in found)
    # Its own speedups, by tokens/s.
    assert [round(p.speedup or 0.0, 3) for p in found[:6]] == [0.718, 0.778, 0.933, 0.863, 0.771, 0.798]


@needs_shared
def test_the_shared_samples_are_read() -> None:
    expected = {
        "sglang_bench_speculative_output.jsonl": 3,
        "trtllm_iteration_stats.json": 1,
        "vllm_dynamic_speculative_config.json": 8,
    }
    assert {name: len(read_file(INPUTS / name)) for name in expected} == expected
    with pytest.raises(FileFormatError, match="output_throughput: 0 is no measurement"):
        read_file(INPUTS / "vllm_bench_serve_result.json")  # its rates were blanked
