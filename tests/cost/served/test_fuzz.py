"""Whatever a file holds, it gives rows or an error that says what is wrong; never another exception."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treeopt.cost.served.reading import read_steps
from treeopt.cost.tables.loading import load_cost_table
from treeopt.errors import TreeoptError

BENCH = ("batch_size", "steps", "topk", "num_draft_tokens", "acc_length", "step_time", "metrics", "accept_length")
SERVE = ("max_concurrency", "output_throughput", "spec_decode_num_drafts", "spec_decode_draft_tokens")
STATS = ("inflightBatchingStats", "numGenRequests", "numContextRequests", "iterLatencyMS", "specDecodingStats")
TABLE = ("sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens", "batch_stats", "1", "4")
ADDITIVE = ("bias_seconds", "bs_probes", "alpha_seconds", "m_probes", "theta_seconds")
KEYS = st.sampled_from(BENCH + SERVE + STATS + TABLE + ADDITIVE)
VALUES = st.sampled_from([None, -1, 0, 1, 4, 2.5, 1e300, "x", True, [1, 2], [2, 1], [], {}, {"1": {"0": 7.0}}])
CELLS = st.sampled_from(["", "1", "0", "-1", "2.5", "nan", "1e999", "[[0]]", "[[0],[0]]", "x", "1000", '"'])
COLUMNS = st.sampled_from(
    [
        "batch",
        "k",
        "nodes",
        "depth",
        "width",
        "paths",
        "steps",
        "topk",
        "num_draft",
        "step_ms",
        "step_us",
        "tok_s",
        "al",
    ]
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES | st.dictionaries(KEYS, VALUES, max_size=6), min_size=1, max_size=8))
def test_json_gives_rows_or_an_error_that_says_why(tmp_path: Path, value: object) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(value))
    _read(path)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(COLUMNS, min_size=2, max_size=6, unique=True), st.lists(st.lists(CELLS, max_size=7), max_size=5))
def test_csv_gives_rows_or_an_error_that_says_why(tmp_path: Path, header: list[str], rows: list[list[str]]) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(",".join(row) for row in [header, *rows]))
    _read(path)


@pytest.mark.parametrize(
    "text", ["", "\0", "{", "[]", "{}", "[[[[", '{"batch_stats": {"1": {"0": ' + "9" * 400 + "}}}"]
)
def test_broken_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    for read in (lambda: read_steps([path]), lambda: load_cost_table(path)):
        with pytest.raises(TreeoptError):
            read()


def _read(path: Path) -> None:
    for read in (lambda: read_steps([path]).rows, lambda: load_cost_table(path).table):
        message, hint = _outcome(read)
        assert hint == "read" or (hint and str(path) in message)


def _outcome(read: Callable[[], object]) -> tuple[str, str]:
    """What was read, or what the error says."""
    try:
        return repr(read()), "read"
    except TreeoptError as error:
        return str(error), error.hint
