"""What is shipped of published engines prices as what `benchmarks/published_speedups.py` fits to them.

Constants are shipped with two digits and trade against each other, so the steps that they price are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import published_speedups
import pytest
from shared import DATA, needs_shared

from treeopt.cost.engine import EngineSteps
from treeopt.cost.served.published import ERRORS, PUBLISHED, TYPICAL, ConstantsFrom

ROOT = Path(__file__).resolve().parents[3]
pytestmark = needs_shared


def ms_of(steps: EngineSteps) -> list[float]:
    seconds = (steps.step_s, steps.speculative_step_s, steps.draft_pass_s, steps.verified_token_s)
    return [1e3 * each for each in seconds]


def furthest(shipped: EngineSteps, runs: Sequence[published_speedups.Run]) -> float:
    """The most that a speculative step in plain steps differs between shipped constants and those fitted now."""
    fitted = published_speedups.fitted(runs)
    priced = [[published_speedups.ratio(each, run) for run in runs] for each in (np.array(ms_of(shipped)), fitted)]
    return float(np.abs(np.log(priced[0]) - np.log(priced[1])).max())


def test_typical_constants_are_those_of_all_sources() -> None:
    assert furthest(TYPICAL, published_speedups.runs(DATA)) < 0.02


@pytest.mark.parametrize(
    ("engine", "source"), [("sglang", "SpecBundle"), ("vllm", "vLLM issue 20780")], ids=["sglang", "vllm"]
)
def test_constants_of_an_engine_are_those_of_its_source(engine: str, source: str) -> None:
    own = [run for run in published_speedups.runs(DATA) if (run.source, run.drafter) == (source, "eagle3")]
    assert {run.engine for run in own} == {engine}
    steps = PUBLISHED[engine, "eagle3"]
    assert furthest(steps, own) < 0.02
    assert steps.evidence is not None
    assert steps.evidence.rows == len(own)


def test_the_page_names_the_intervals_that_are_shipped() -> None:
    page = (ROOT / "docs" / "price-error.md").read_text()
    for basis in (ConstantsFrom.ENGINE, ConstantsFrom.TYPICAL):
        low, high = ERRORS[basis].ratio
        assert f"inside the interval [{low:+.2f}, {high:+.2f}]" in page
