"""How engines choose by batch size, in our own words; tests/conformance holds it against the engines' code."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import parse_source
from treeopt.engines.vllm import VLLM

VLLM_SCHEDULE: Final = next(form for form in VLLM.formats if form.name == "schedule")


def key_at(batch: int, keys: Sequence[int], captured: Sequence[int]) -> int:
    """SGLang's key for a running batch size, which it pads to a captured one; none is without CUDA graphs."""
    place = bisect_left(captured, batch)
    padded = captured[place] if place < len(captured) else batch
    return keys[max(bisect_right(keys, padded) - 1, 0)]


def parse_ranges(text: str, *, cap: int = 1000) -> DraftSchedule:
    """What is read from vLLM's list of [first batch, last batch, length] beside num_speculative_tokens."""
    config = f'{{"num_speculative_tokens": {cap}, "num_speculative_tokens_per_batch_size": {text}}}'
    found = VLLM_SCHEDULE.read(parse_source(config, name="schedule"))
    assert found is not None
    return found.schedule
