"""What prompts add between steps, against arithmetic by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.cost import EngineSteps, ModelStep, Ngram, load_hardware, load_model
from treeopt.cost.prefill import MAX_PROMPT, Prompts, between_tokens_s, prefill_s
from treeopt.errors import InputError
from treeopt.files.shipped import locate


def step(hardware: str = "h100-sxm", model: str = "llama-3.1-8b") -> ModelStep:
    return ModelStep(
        model=load_model(locate("models", model).path),
        times=load_hardware(locate("hardware", hardware).path).kernel_times(),
        drafter=Ngram(),
        engine=EngineSteps(),
    )


def test_a_long_prompt_takes_its_arithmetic() -> None:
    """By hand: 6.98e9 weights of the layers and 8,192 tokens are 2 x 6.98e9 x 8192 operations, attention half of
    8192 x 8192 pairs at 4 x 32 x 128 operations in each of 32 layers; at 989 TFLOP/s 116 and 18 ms. Norms, rotary
    positions and activations move 32 (8 x 4096 + 3 x 14336 + 12288) values of 2 bytes per token: 14 ms at 3.35 TB/s;
    the step that is there anyway has streamed the weights, 4 ms less."""
    peak, bandwidth, tokens = 989e12, 3.35e12, 8192
    arithmetic_s = (2 * 6.98e9 * tokens + 32 * 4 * 32 * 128 * tokens**2 / 2) / peak
    moved_s = (2 * tokens * 32 * (8 * 4096 + 3 * 14336 + 12288) - 2 * 6.98e9) / bandwidth
    assert prefill_s(step(), Prompts(tokens, 100), running=1) == pytest.approx(arithmetic_s + moved_s, rel=0.01)


def test_every_other_request_is_replaced_once() -> None:
    one, prompts = step(), Prompts(1024, 100)
    each = prefill_s(one, prompts, running=9)
    assert between_tokens_s(one, prompts, batch=9) == pytest.approx(8 * each / 100)
    assert between_tokens_s(one, prompts, batch=1) == 0.0


@given(
    st.sampled_from(("h100-sxm", "h200-sxm-sglang-0.5.14", "b200-vllm-0.24")),
    st.integers(1, 6000),
    st.integers(64, 8192),
    st.integers(1, 256),
)
def test_a_longer_prompt_never_takes_less(hardware: str, tokens: int, chunk: int, running: int) -> None:
    one = step(hardware)
    short, long = (prefill_s(one, Prompts(n * tokens, 100, chunk), running=running) for n in (1, 2))
    assert 0.0 <= short <= 1.02 * long  # a measured GEMM may fall from one size to the next


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (Prompts(0, 1), "prompts of 0 tokens"),
        (Prompts(1, 0), "answers of 0 tokens"),
        (Prompts(1, 1, 0), "chunks of 0 tokens"),
        (Prompts(MAX_PROMPT + 1, 1), "prompts of 1048577 tokens"),
    ],
)
def test_numbers_that_cannot_be(prompts: Prompts, words: str) -> None:
    with pytest.raises(InputError, match=words):
        prompts.checked()
