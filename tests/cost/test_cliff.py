"""Jumps and spikes: where they were put, and nowhere on smooth curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_steps import step_of

from treeopt.arrays import FloatArray
from treeopt.cost import EngineSteps, ModelStep, Ngram
from treeopt.cost.cliff import cliff


def staircase(tokens: FloatArray) -> FloatArray:
    """1 ms up to 256 tokens and 1.5 ms beyond, with 1.3 ms at 192."""
    return np.where(tokens == 192, 1.3e-3, np.where(tokens > 256, 1.5e-3, 1e-3))


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (192, "30% longer for 192 tokens per step than for 191"),
        (191, "30% longer for 192 tokens per step than for 191"),
        (256, "50% longer for 257 tokens per step than for 256"),
        (257, "50% longer for 257 tokens per step than for 256"),
    ],
)
def test_a_jump_is_told_on_both_sides(tokens: int, said: str) -> None:
    assert said in (cliff(staircase, tokens) or "")


@pytest.mark.parametrize("tokens", [1, 2, 100, 193, 255, 258, 1024])
def test_a_level_stretch_has_none(tokens: int) -> None:
    assert cliff(staircase, tokens) is None


def test_a_spike_with_gentle_slopes_is_told_by_the_larger_step_that_is_shorter() -> None:
    def hill(tokens: FloatArray) -> FloatArray:
        return np.interp(tokens, [100, 150, 190, 200], [1e-3, 1.2e-3, 1e-3, 1e-3])

    assert "20% longer for 150 tokens per step than for 190" in (cliff(hill, 150) or "")


@given(tokens=st.integers(1, 3000), start_s=st.floats(1e-6, 1e-2), rate=st.floats(0, 1))
def test_time_that_grows_no_faster_than_tokens_has_none(tokens: int, start_s: float, rate: float) -> None:
    assert cliff(lambda T: start_s * (1 + rate * T), tokens) is None


@pytest.fixture
def llama_fp8(shipped_model, shipped_hardware) -> ModelStep:  # type: ignore[no-untyped-def]
    times = shipped_hardware("h100-sxm-vllm-0.24").kernel_times()
    return ModelStep(model=shipped_model("llama-3.1-8b"), times=times, drafter=Ngram(), dtype="fp8")


def test_the_hard_tiles_of_fp8_are_told(llama_fp8: ModelStep) -> None:
    # CUTLASS tiles of 256 rows: the 257th token starts another.
    note = "257 tokens per step than for 256"
    assert note in (llama_fp8.cliff(256) or "")
    assert any(note in said for said in llama_fp8.notes(batch=64, nodes=4, context=100))
    assert not any("tokens per step than" in said for said in llama_fp8.notes(batch=60, nodes=4, context=100))


def test_a_padded_step_is_told_of_the_size_that_it_is_padded_to(llama_fp8: ModelStep) -> None:
    assert llama_fp8.cliff(250) is None
    assert "for 256" in (replace(llama_fp8, engine=EngineSteps(capture_tokens=(256,))).cliff(250) or "")


def test_a_datasheet_has_no_cliffs() -> None:
    assert [step_of("qwen3-30b-a3b", "ngram", 2).cliff(tokens) for tokens in (1, 2, 64, 256, 300)] == [None] * 5
