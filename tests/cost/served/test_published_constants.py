"""What is shipped of published engines prices as what `benchmarks/published_speedups.py` fits to them.

Constants are shipped with two digits and trade against each other, so the steps that they price are compared.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import published_runs
import published_speedups
import pytest
from published_left_out import LEFT_OUT
from shared import DATA, needs_shared

from treeopt.cost.engine import EngineSteps
from treeopt.cost.served.published import ERRORS, PUBLISHED, TYPICAL, ConstantsFrom, EngineKey, generation

ROOT = Path(__file__).resolve().parents[3]
pytestmark = needs_shared


def ms_of(steps: EngineSteps) -> list[float]:
    seconds = (steps.step_s, steps.speculative_step_s, steps.draft_pass_s, steps.verified_token_s)
    return [1e3 * each for each in seconds]


def furthest(shipped: EngineSteps, runs: Sequence[published_runs.Run]) -> float:
    """The most that a speculative step in plain steps differs between shipped constants and those fitted now."""
    fitted = published_speedups.fitted(runs)
    priced = [published_speedups.ratios(each, runs) for each in (np.array(ms_of(shipped)), fitted)]
    return float(np.abs(np.log(priced[0]) - np.log(priced[1])).max())


def test_typical_constants_are_those_of_all_sources() -> None:
    assert furthest(TYPICAL, published_runs.runs(DATA)) < 0.02


@pytest.mark.parametrize("key", PUBLISHED, ids=" ".join)
def test_constants_of_an_engine_are_those_of_its_runs(key: EngineKey) -> None:
    own = [run for run in published_runs.runs(DATA) if run.key == key]
    steps = PUBLISHED[key].steps
    assert furthest(steps, own) < 0.02
    assert steps.evidence is not None
    assert steps.evidence.rows == len(own)
    assert steps.evidence.max_tokens == max(run.batch * run.nodes for run in own)
    assert {run.model for run in own} == set(steps.evidence.model.split(", "))


def test_the_page_names_the_intervals_that_are_shipped() -> None:
    page = (ROOT / "docs" / "price-error.md").read_text()
    for basis in (ConstantsFrom.ENGINE, ConstantsFrom.TYPICAL):
        ends = "[{:+.3f}, {:+.3f}]".format(*ERRORS[basis].ratio)
        assert f"- {basis}: the interval is {ends}" in page
        assert f"(these rows give {ends})" in page


def test_every_published_row_is_judged_or_left_out_for_a_reason() -> None:
    left_out = {each.table: [e for e in LEFT_OUT if e.table == each.table] for each in LEFT_OUT}
    for table in ("measured/speedup_by_batch", "drafters/throughput", "drafters/costs"):
        with (DATA / f"{table}.csv").open() as file:
            rows = list(csv.DictReader(file))
        unread = [row for row in rows if not any(each.holds(row) for each in left_out[table])]
        read = {"EAGLE-3 paper", "vLLM PR #16937", "SPEED-Bench"}
        assert all(any(row["source"].startswith(name) for name in read) for row in unread)
        assert all(each.count(DATA) for each in left_out[table])


def test_a_quantile_leaves_a_tenth_of_each_engine_on_either_side() -> None:
    """By hand: ten runs of one engine lie 0.1 to 1.0 off and ten of another 0.2 lower; a tenth of each is outside."""
    runs = [run for run in published_runs.runs(DATA) if run.source == "SpecBundle"][:10]
    rows = []
    for engine, shift in (("vllm", 0.0), ("sglang", -0.2)):
        off = np.arange(1, 11) / 10 + shift
        priced = np.array([run.ratio for run in runs]) / np.exp(off)
        key = (engine, "1", "eagle3")
        rows.append(published_speedups.Judged("a source", key, ConstantsFrom.ENGINE, "", tuple(runs), priced))
    low, high = published_speedups.interval(rows, ConstantsFrom.ENGINE)
    assert (low, high) == pytest.approx((-0.1, 0.9))


@pytest.mark.parametrize(
    ("engine", "release", "named"),
    [
        ("vllm", "0.6.3", "V0"),
        ("vllm", "0.8.0", "V1"),
        ("vllm", "v0.24.0rc1", "V1"),
        ("vllm", "1.0", "V1"),
        ("sglang", "0.5.14", "0.5"),
        ("sglang", "0.4.4.post1", "0.4"),
        ("trtllm", "1.3.0rc20", ""),
        ("", "", ""),
    ],
)
def test_generations_of_releases(engine: str, release: str, named: str) -> None:
    assert generation(engine, release) == named
