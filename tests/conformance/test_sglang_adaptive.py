"""Adaptive files and captured sizes, judged by SGLang's own routing (sglang 0.5.23)."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conformance.wheels import needs_conformance, text, wheel
from engines.routing import key_at
from engines.samples import INTENT, chain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treeopt.draft_family import chain_length
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.sglang import default_capture_sizes

pytestmark = needs_conformance
_STANDINS = {
    "sglang.srt.arg_groups.overrides": ("resolved_view", "resolving_view"),
    "sglang.srt.runtime_context": ("attn_dp_enabled_of",),
    "sglang.srt.speculative.spec_info": ("SpeculativeAlgorithm",),
    "sglang.srt.utils": ("log_info_on_rank0",),
}


@pytest.fixture(scope="module")
def sglang() -> Iterator[Any]:
    """The module of the wheel; what it imports besides is not used by the routing."""
    archive = wheel("sglang", "0.5.23")
    with pytest.MonkeyPatch.context() as patch:
        for name, members in _STANDINS.items():
            module = ModuleType(name)
            vars(module).update(dict.fromkeys(members, lambda *args, **kwargs: None))
            patch.setitem(sys.modules, name, module)
        code: dict[str, Any] = {"__name__": "adaptive_spec_params", "logger": logging.getLogger("sglang")}
        exec(text(archive, "sglang/srt/speculative/adaptive_spec_params.py"), code)
        graphs = text(archive, "sglang/srt/arg_groups/cuda_graph_hook.py")
        yield SimpleNamespace(**{k: v for k, v in code.items() if not k.startswith("__")}, graphs=graphs)


def routed(sglang: Any, schedule: DraftSchedule, folder: Path, *, max_batch: int) -> list[int]:
    """Steps per running batch size, by SGLang, with the captured sizes of the export."""
    written = export(schedule, find_engine("sglang"), Setup(max_batch=max_batch)).written
    path = folder / "adaptive.json"
    path.write_text(str(written.content))
    longest = max(chain_length(s.draft) or 0 for s in schedule.steps)
    assert longest in sglang.resolve_candidate_steps_from_config(str(path))  # --speculative-num-steps must be one
    params = sglang.AdaptiveSpeculativeParams(initial_steps=longest, cfg_path=str(path))
    params.set_cuda_graph_bs(list(written.capture_sizes))
    return [params.get_steps_for_batch(b) for b in range(1, 400)]


def test_one_intent(sglang: Any, tmp_path: Path) -> None:
    assert routed(sglang, INTENT, tmp_path, max_batch=256) == [4] * 4 + [2] * 12 + [0] * 383


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(0, 7), min_size=2, max_size=7),
    gaps=st.lists(st.integers(1, 60), min_size=7, max_size=7),
    max_batch=st.integers(1, 390),
)
def test_every_border_is_exact(
    sglang: Any, tmp_path: Path, lengths: list[int], gaps: list[int], max_batch: int
) -> None:
    starts = [1 + sum(gaps[:i]) for i in range(len(lengths))]
    schedule = DraftSchedule(steps=tuple(ScheduleStep(b, chain(k)) for b, k in zip(starts, lengths, strict=True)))
    if schedule.only is None:
        found = routed(sglang, schedule, tmp_path, max_batch=max_batch)
        assert found == [chain_length(schedule.at(b)) for b in range(1, 400)]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.sets(st.integers(1, 99), min_size=1, max_size=5), captured=st.sets(st.integers(1, 99), max_size=9))
def test_the_routing_is_as_described(sglang: Any, tmp_path: Path, keys: set[int], captured: set[int]) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({str(k): {"candidate_steps": [k]} for k in keys}))
    params = sglang.AdaptiveSpeculativeParams(initial_steps=min(keys), cfg_path=str(path))
    params.set_cuda_graph_bs(sorted(captured))
    for batch in range(1, 120):
        assert params.get_steps_for_batch(batch) == key_at(batch, sorted(keys), sorted(captured))


def test_default_captured_sizes(sglang: Any) -> None:
    start = sglang.graphs.index("def generate_decode_cuda_graph_batch_sizes")
    source = sglang.graphs[start : sglang.graphs.index("\ndef ", start + 1)]
    config = SimpleNamespace(disable_cuda_graph_padding=False, speculative_algorithm="EAGLE3")
    code: dict[str, Any] = {"Any": Any, "resolving_view": lambda args: args}
    exec(source, code)
    for max_batch in (1, 5, 24, 33, 48, 160, 256, 300, 512):
        theirs = code["generate_decode_cuda_graph_batch_sizes"](config, max_batch)
        assert tuple(sorted(theirs)) == default_capture_sizes(max_batch)
