"""What waiting for prompts leaves of a speedup, said beside the answer."""

from __future__ import annotations

import re

import pytest

from treeopt import search
from treeopt.cost.prefill import Prompts, between_tokens_s
from treeopt.plan.plan import Plan
from treeopt.planner.inputs import load_inputs
from treeopt.planner.names import Names

NAMES = {"hardware": "h100-sxm-vllm-0.24", "model": "llama-3.1-8b", "drafter": "eagle3"}


def said(plan: Plan) -> list[str]:
    return [note.text for note in plan.notes if note.text.startswith("served at")]


def test_what_is_left_of_the_speedup() -> None:
    """Both ways wait as long for the prompts: (plain + w) / (speculative + w) per token."""
    plan = search(64, prompt_tokens=2048, output_tokens=512, only_listed=True, **NAMES)
    (bucket,) = plan.buckets
    assert bucket.plain is not None
    kernels = load_inputs(Names(**NAMES)).kernels  # type: ignore[arg-type]
    wait = between_tokens_s(kernels, Prompts(2048, 512), batch=64)
    ours, plain = 64 / bucket.tokens_per_s.value, 64 / bucket.plain.tokens_per_s.value
    (text,) = said(plan)
    waits, whole, before, after = map(float, re.findall(r"(\d+\.\d+)(?: ms|x)", text))
    assert waits == pytest.approx(1e3 * wait, abs=0.05)
    assert whole == pytest.approx(1e3 * (wait + ours), abs=0.05)
    assert before == pytest.approx(plain / ours, abs=0.006)
    assert after == pytest.approx((plain + wait) / (ours + wait), abs=0.006)
    assert 1 < after < before


def test_nobody_waits_alone_or_without_prompts() -> None:
    assert said(search(1, prompt_tokens=2048, **NAMES)) == []
    assert said(search(8, **NAMES)) == []


def test_smaller_chunks_are_asked_for() -> None:
    small, large = (said(search(8, prompt_tokens=4096, chunk_tokens=c, only_listed=True, **NAMES)) for c in (256, 4096))
    assert small != large
