"""Engines' cost tables: read, written, read again; and what they must not hold."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costs import FakeCost
from hypothesis import given
from hypothesis import strategies as st
from shared import SHARED, needs_shared

from treeopt.acceptance.position import PositionSurvival
from treeopt.cost.step_table import AdditiveTable, ChainTable, TableStep, TokenTable
from treeopt.cost.tables.loading import CostTable, load_cost_table, survival_of
from treeopt.cost.tables.sglang import (
    additive_table_json,
    additive_table_of,
    token_table_json,
    token_table_of,
)
from treeopt.cost.tables.vllm import VllmTable, chain_table_of, read_vllm_table, vllm_table_json
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import read_document

TOKENS = {"sample_batch_tokens": [8, 64, 512], "sample_steps_per_sec": [100.0, 80.0, 40.0], "max_batch_tokens": 1024}
ADDITIVE = {
    "bias_seconds": 0.006,
    "bs_probes": [1, 64],
    "alpha_seconds": [0.0, 0.002],
    "m_probes": [8, 512],
    "theta_seconds": [0.0, 0.01],
}
VLLM = {
    "is_online": False,
    "max_num_speculative_tokens": 3,
    "acceptance_rate_per_pos": [0.73, 0.52, 0.35],
    "batch_stats": {"1": {"0": 6.9, "1": 7.6, "3": 8.4}, "64": {"0": 9.8, "1": 12.1, "3": 17.0}},
}


@pytest.fixture
def load(tmp_path: Path):
    def load_value(value: Any) -> CostTable:
        path = tmp_path / "table.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return load_cost_table(path)

    return load_value


def test_sglang_steps_per_second_become_seconds(load) -> None:
    found = load(TOKENS)
    assert found.table == TokenTable(tokens=(8, 64, 512), step_s=(0.01, 0.0125, 0.025))
    again = load(token_table_json(found.table))
    assert again.table == found.table
    assert set(json.loads(token_table_json(found.table))) == set(TOKENS)


def test_sglang_additive_table_comes_back(load) -> None:
    found = load(ADDITIVE)
    assert isinstance(found.table, AdditiveTable)
    assert found.table.seconds(np.array(64), np.array(8), np.array(7)) == pytest.approx(0.006 + 0.002 + 0.01)
    assert json.loads(additive_table_json(found.table)) == ADDITIVE
    assert load(additive_table_json(found.table)).table == found.table


def test_vllm_table_comes_back_with_its_acceptance(load, tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(VLLM))
    found = read_vllm_table(read_document(path, what="table").root)
    assert found.survival is not None
    assert found.survival.mean_accepted_length == pytest.approx(2.6)
    assert found.table.seconds(np.array(64), np.array(4), np.array(3)) == pytest.approx(17.0e-3)
    written = json.loads(vllm_table_json(found))
    # K = 2 was not measured: it is written as what lies between.
    assert written["batch_stats"]["1"] == pytest.approx({"0": 6.9, "1": 7.6, "2": 8.0, "3": 8.4})
    del written["batch_stats"]["1"]["2"], written["batch_stats"]["64"]["2"]
    for batch, row in VLLM["batch_stats"].items():
        assert written["batch_stats"][batch] == pytest.approx(row)
    assert written["acceptance_rate_per_pos"] == pytest.approx(VLLM["acceptance_rate_per_pos"])
    again = load(vllm_table_json(found)).table
    assert again.step_s == pytest.approx(found.table.step_s)


def test_tables_of_a_cost_model_price_what_it_prices() -> None:
    # 5 ms, 1 ms per 64 requests, 2 ms per 64 tokens: additive, so an additive table of it is exact
    cost = FakeCost(step_s=5e-3, request_s=1e-3 / 64, token_s=2e-3 / 64)
    tokens = token_table_of(cost, batches=(1, 8, 64), nodes=4, context=0)
    assert tokens.tokens == (4, 32, 256)
    assert tokens.step_s == pytest.approx([5e-3 + 1e-3 / 64 * b + 2e-3 / 64 * 4 * b for b in (1, 8, 64)])
    chains = chain_table_of(cost, batches=(1, 64), draft_tokens=(0, 1, 3), context=0)
    assert chains.step_s[1] == pytest.approx([5e-3 + 1e-3 + 2e-3 * n for n in (1, 2, 3, 4)])
    found = additive_table_of(cost, batches=(1, 8, 64), nodes=(1, 4, 8), context=0)
    assert found.max_error < 1e-9
    priced = TableStep(table=found.table, name="t").step_time_s(8, 4, 3, np.ones(3, dtype=np.int64), 0)
    assert float(priced) == pytest.approx(5e-3 + 1e-3 / 8 + 1e-3)


def test_rows_of_served_chains_are_a_table_too(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("batch,k,step_ms\n1,0,6.87\n1,3,9.41\n16,0,7.3\n16,3,9.95\n")
    table = load_cost_table(path).table
    assert isinstance(table, ChainTable)
    assert table.seconds(np.array(16), np.array(4), np.array(3)) == pytest.approx(9.95e-3)
    assert load_cost_table(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text("batch,nodes,depth,step_ms\n1,8,3,9.41\n")
    with pytest.raises(InputError, match=r"steps\.csv:2: a tree's time says nothing of other trees"):
        load_cost_table(path)


def test_rows_of_trees_beside_chains_are_left_out_with_their_count(load) -> None:
    found = load("batch,nodes,depth,step_ms\n1,1,0,6.87\n1,8,3,9.41\n1,4,3,8.5\n")
    assert "1 of 3 rows are of trees, which say nothing of other trees: left out" in found.findings
    assert found.table.seconds(np.array([1, 1]), np.array([1, 4]), np.array([0, 3])).tolist() == [6.87e-3, 8.5e-3]


def test_tokens_per_second_without_acceptance_rank_the_drafts_by_themselves(load) -> None:
    # 40 tokens/s with 1 draft, 45 with 3, 50 plain, whatever is accepted
    found = load("batch,k,tok_s\n1,0,50\n1,1,40\n1,3,45\n")
    assert found.by_rate
    profile = found.profile()
    assert profile is not None
    assert "without acceptance" in profile.note
    for lengths in ((1.0, 2.0, 3.0, 4.0), (1.0, 1.5, 1.8, 2.0)):
        table = found.at_lengths(lambda K, lengths=lengths: lengths[K]).table
        step_s = [float(table.seconds(np.array(1), np.array(K + 1), np.array(K))) for K in (0, 1, 3)]
        assert [lengths[K] / s for K, s in zip((0, 1, 3), step_s, strict=True)] == pytest.approx([50, 40, 45])


def test_a_table_with_lengths_has_an_acceptance_of_its_own(load) -> None:
    found = load("batch,k,step_ms,accept_len\n1,0,6.9,1\n1,1,8,1.8\n4,1,9,1.8\n1,3,9.4,2.4\n")
    profile = found.profile()
    assert profile is not None
    assert profile.model().conditional(np.zeros((1, 0), dtype=np.int64)).tolist() == [[pytest.approx(0.8)]]
    assert survival_of({1: 1.8, 3: 2.4}).tolist() == pytest.approx([0.8, 0.3, 0.3])
    assert load("batch,k,step_ms\n1,0,6.9\n1,1,8\n").profile() is None


@given(st.dictionaries(st.integers(1, 20), st.floats(1.0, 9.0), min_size=1))
def test_the_levelled_lengths_are_a_survival(lengths: dict[int, float]) -> None:
    survival = survival_of(lengths)
    assert len(survival) == max(lengths)
    assert (np.diff(np.array([1.0, *survival])) <= 1e-12).all()
    assert (survival >= 0).all()


def test_a_pause_of_a_schedule_is_no_plain_step(load) -> None:
    found = load("batch,k,k_max,step_ms\n1,0,3,7.5\n1,3,3,9.4\n")
    assert not found.step().measures_plain(1)
    assert any("inside a schedule" in said for said in found.findings)
    both = load("batch,k,k_max,step_ms\n1,0,3,7.5\n1,0,0,6.9\n1,3,3,9.4\n")
    assert both.step().measures_plain(1)
    assert both.table.seconds(np.array(1), np.array(1), np.array(0)) == pytest.approx(6.9e-3)


def test_a_plain_step_that_nobody_measured_is_never_made_up(load) -> None:
    class Model:
        ridge_tokens = 100.0

        def step_time_s(self, batch, nodes, depth, widths, context):  # type: ignore[no-untyped-def]
            return np.ones(np.broadcast_shapes(np.shape(batch), np.shape(nodes)))

    for carried_by in (None, Model()):
        step = load("batch,k,step_ms\n1,3,11.64\n4,3,16.6\n").step(carried_by=carried_by)
        assert not step.measures_plain(1)
        found = step.step_time_s(np.array([1]), np.array([1]), np.array([0]), np.zeros((1, 1), dtype=np.int64), 100)
        assert np.isinf(found).all()


def test_rows_in_json_lines_are_a_table(load) -> None:
    run = {"batch_size": 1, "topk": 1, "acc_length": 1.5}
    runs = [
        {**run, "steps": 0, "num_draft_tokens": 0, "step_time": 0.0045},
        {**run, "steps": 2, "num_draft_tokens": 3, "step_time": 0.0056},
    ]
    table = load("\n".join(map(json.dumps, runs))).table
    assert table.seconds(np.array(1), np.array(3), np.array(2)) == pytest.approx(0.0056)


@pytest.mark.parametrize("order", list(itertools.permutations(("9.41", "9.5", "9.9"))))
def test_points_measured_again_are_their_median_in_any_order(load, order: tuple[str, ...]) -> None:
    table = load("batch,k,step_ms\n1,0,6.87\n" + "".join(f"1,3,{ms}\n" for ms in order)).table
    assert table.seconds(np.array(1), np.array(4), np.array(3)) == pytest.approx(9.5e-3)
    # The same batch size, written in two ways.
    times = dict(zip(("1", "01", "001"), map(float, order), strict=True))
    stats = {batch: {"0": 6.87 + 0.01 * i, "3": ms} for i, (batch, ms) in enumerate(times.items())}
    table = load({"batch_stats": stats}).table
    assert table.seconds(np.array(1), np.array(4), np.array(3)) == pytest.approx(9.5e-3)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (TOKENS | {"sample_batch_tokens": [8, 8, 512]}, "sample_batch_tokens: the samples do not rise"),
        (TOKENS | {"sample_steps_per_sec": [100.0, 80.0]}, "2 values for 3 samples"),
        (TOKENS | {"sample_steps_per_sec": [100.0, 80.0, -1.0]}, r"sample_steps_per_sec\[2\]: -1 is out of range"),
        (TOKENS | {"max_batch_tokens": 256}, "max_batch_tokens: 256 is out of range"),
        (TOKENS | {"max_tokens": 256}, "max_tokens: unknown key"),
        (ADDITIVE | {"bias_seconds": 0.0}, "bias_seconds: 0 s"),
        (ADDITIVE | {"alpha_seconds": [0.0, -0.1]}, "the smallest sum is not above 0 s"),
        (VLLM | {"acceptance_rate_per_pos": [0.5, 0.6]}, "acceptance_rate_per_pos: the rates rise"),
        (VLLM | {"batch_stats": {"1": {"0": 6.9, "1": 0.0076}}}, "as if given in a larger unit"),
        (VLLM | {"batch_stats": {"1": {"0": -6.9}}}, "is no measurement"),
        (VLLM | {"batch_stats": {}}, "no times"),
        ({"anything": 1}, "no step times are known in it"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(load, value: Any, says: str) -> None:
    with pytest.raises(FileFormatError, match=says):
        load(value)


def test_a_vllm_table_without_acceptance_is_written_without(load) -> None:
    table = VllmTable(table=ChainTable.from_cells({(1, 0): 0.007, (1, 1): 0.008}))
    assert "acceptance_rate_per_pos" not in json.loads(vllm_table_json(table))
    with_rates = VllmTable(table=table.table, survival=PositionSurvival(survival=np.array([0.5])))
    assert json.loads(vllm_table_json(with_rates))["acceptance_rate_per_pos"] == [0.5]


@needs_shared
def test_the_shared_vllm_sample_is_read() -> None:
    path = SHARED / "data" / "inputs" / "vllm_dynamic_speculative_config.json"
    found = read_vllm_table(read_document(path, what="table").root)
    assert found.survival is not None
    assert found.survival.mean_accepted_length == pytest.approx(1 + 0.73 + 0.52 + 0.35 + 0.25 + 0.18)
    assert found.table.seconds(np.array(64), np.array(6), np.array(5)) == pytest.approx(22.4e-3)
