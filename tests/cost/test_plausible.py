"""Prices that can be: no step gets cheaper with more tokens, in thousands of questions over all that is shipped."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treeopt.cost import Dtype, KernelTimes, ModelStep, Ngram, load_hardware, load_model
from treeopt.cost.kernels.family import Family
from treeopt.errors import InputError
from treeopt.files.shipped import locate, shipped_names

HARDWARE = shipped_names("hardware")
MODELS = shipped_names("models")
FORMATS = [None, *Dtype, "fp8_tensor", "bf16/mxfp4"]
NODES = 64
# So many random questions, one profile, model, format and size each; TREEOPT_TEST_QUESTIONS=5000 asks more.
QUESTIONS = int(os.environ.get("TREEOPT_TEST_QUESTIONS", "500"))


@cache
def times_of(name: str) -> KernelTimes:
    return load_hardware(locate("hardware", name).path).kernel_times()


@cache
def step_of(hardware: str, model: str, dtype: str | None, tp: int, kv_dtype: str | None) -> ModelStep | None:
    """None where the GPU has no arithmetic for the format, or the heads do not share out."""
    shape = load_model(locate("models", model).path)
    try:
        return ModelStep(model=shape, times=times_of(hardware), drafter=Ngram(), dtype=dtype, tp=tp, kv_dtype=kv_dtype)
    except InputError:
        return None


# 100 examples of 64 sizes each: more than 5,000 questions.
@settings(max_examples=100)
@given(
    hardware=st.sampled_from(HARDWARE),
    model=st.sampled_from(MODELS),
    dtype=st.sampled_from(FORMATS),
    tp=st.sampled_from((1, 2, 4, 8)),
    kv_dtype=st.sampled_from((None, "fp8")),
    batch=st.integers(1, 512),
    context=st.integers(0, 30_000),
)
def test_no_step_gets_cheaper_with_more_tokens(
    hardware: str, model: str, dtype: str | None, tp: int, kv_dtype: str | None, batch: int, context: int
) -> None:
    step = step_of(hardware, model, dtype, tp, kv_dtype)
    if step is None:
        return
    nodes = np.arange(1, NODES + 1)
    # Chains, whose accepted tokens stand where they belong already; guesses looked up cost nothing.
    widths = (np.arange(NODES) < nodes[:, None] - 1).astype(np.int64)
    found = step.step_time_s(batch, nodes, nodes - 1, widths, context)
    assert np.isfinite(found).all()
    assert (np.diff(found) >= -1e-12 * found[1:]).all()


def test_a_step_of_n_tokens_takes_at_least_a_plain_one_in_random_questions() -> None:
    """Each priced anew, as a search prices it, constants and captured sizes of the engine among it: never a clamp."""
    rng = np.random.default_rng(0)
    asked = 0
    while asked < QUESTIONS:
        hardware, model, dtype = (rng.choice(np.array(names, object)) for names in (HARDWARE, MODELS, FORMATS))
        step = step_of(hardware, model, dtype, int(rng.choice((1, 2, 4, 8))), rng.choice((None, "fp8")))
        if step is None:
            continue
        engine = load_hardware(locate("hardware", hardware).path).engine() if rng.random() < 0.5 else step.engine
        batch, nodes = int(rng.geometric(0.02)), int(rng.integers(2, NODES + 1))
        context, depth = int(rng.integers(0, 30_000)), int(rng.integers(1, nodes))
        served = replace(step, engine=engine)
        plain, drafted = (
            float(served.step_time_s(batch, n, d, np.ones(max(d, 1), np.int64) * (d > 0), context))
            for n, d in ((1, 0), (nodes, depth))
        )
        assert 0.0 < plain <= drafted * (1 + 1e-12), (hardware, model, dtype, served.tp, batch, nodes, context)
        asked += 1


@pytest.mark.parametrize("name", [name for name in HARDWARE if "vllm-0.24" in name and name.startswith("h")])
def test_slow_kernels_are_told(name: str) -> None:
    times = times_of(name)
    said = times.implausible(Family.EXPERTS, Dtype.FP8)
    assert said is not None
    assert "fp8 experts of" in said
    assert "a slow kernel" in said
    assert "launches from the host" in (times.implausible(Family.GEMM, Dtype.FP8_BLOCK) or "")
    assert times.implausible(Family.GEMM, Dtype.BF16) is None
    assert times.implausible(Family.EXPERTS, Dtype.BF16) is None


def test_a_narrow_format_that_is_slower_is_told() -> None:
    step = step_of("h200-sxm-vllm-0.24", "qwen3-30b-a3b", "fp8_tensor", 1, None)
    assert step is not None
    notes = step.notes(batch=32, nodes=4, context=1024)
    assert any("the narrower format should not be slower" in note for note in notes)
    wide = step_of("h200-sxm-vllm-0.24", "qwen3-30b-a3b", "bf16", 1, None)
    assert wide is not None
    assert not any(note.startswith("implausible") for note in wide.notes(batch=32, nodes=4, context=1024))


def test_sizes_outside_the_rows_are_told() -> None:
    step = step_of("a100-sxm-vllm-0.14", "deepseek-v3", "bf16", 8, None)
    assert step is not None
    limits = {
        limit.size: limit for limit in times_of("a100-sxm-vllm-0.14").fits.get(Family.EXPERTS, Dtype.BF16).fit.limits
    }  # type: ignore[union-attr]
    said = [note for note in step.notes(batch=8, nodes=2, context=100) if "hidden" in note]
    assert bool(said) == (limits["hidden"].high < 7168)
