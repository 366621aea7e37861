"""An engine told to accept by the plan's f."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from engines.conftest import Part, Planned
from engines.samples import CHAIN, chain

from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.errors import InputError
from treeopt.plan.plan import Plan

F = (0.8, 0.5, 0.3)


@pytest.fixture
def plan(planned: Planned) -> Plan:
    """A chain of 3 up to batch 8, of 1 up to 32."""
    made = planned(Part(1, 8, chain(3), 400.0, 3, 400.0, 100.0), Part(9, 32, chain(1), 900.0, 1, 900.0, 800.0))
    first = replace(made.buckets[0], path_probabilities=np.array([1.0, *F]))
    return replace(made, buckets=(first, *made.buckets[1:]))


def test_vllm_accepts_by_position_under_a_schedule(plan: Plan) -> None:
    found = export(plan, find_engine("vllm"), Setup(drafter="eagle3"), synthetic=True)
    config = json.loads(str(found.written.content))
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_rates"] == list(F)  # as many as num_speculative_tokens
    assert config["num_speculative_tokens"] == 3
    assert found.written.content in found.written.launch  # type: ignore[operator]
    plain = export(plan, find_engine("vllm"), Setup(drafter="eagle3")).written.content
    assert "synthetic" not in str(plain)


def test_llamacpp_by_position_and_sglang_by_its_mean(plan: Plan) -> None:
    llama = export(plan, find_engine("llamacpp"), Setup(drafter="eagle3"), batch=4, synthetic=True)
    assert "--spec-synth-rates 0.8,0.5,0.3" in llama.written.launch
    sglang = export(plan, find_engine("sglang"), Setup(drafter="eagle3"), batch=4, synthetic=True)
    assert sglang.written.launch.startswith("SGLANG_SIMULATE_ACC_LEN=2.6 python")  # 1 + .8 + .5 + .3


@pytest.mark.parametrize(
    ("engine", "device", "words"),
    [
        ("vllm==0.19.1", "cuda", "vLLM 0.19.1 cannot be told what to accept"),
        ("trtllm", "cuda", "cannot be told what to accept"),
        ("vllm", "cpu", "vLLM on a CPU cannot pretend acceptance"),
    ],
)
def test_who_cannot_pretend_says_so(plan: Plan, engine: str, device: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        export(plan, find_engine(engine), Setup(drafter="eagle3", device=device), batch=4, synthetic=True)


def test_drafts_that_have_no_f_are_refused() -> None:
    with pytest.raises(InputError, match="no acceptance of a chain of 4"):
        export(CHAIN, find_engine("vllm"), Setup(), synthetic=True)
