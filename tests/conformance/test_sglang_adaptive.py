"""Adaptive files and captured sizes, judged by SGLang's own routing, in every release that has the keys."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conformance.sglang_code import adaptive
from conformance.wheels import names_of, needs_conformance, text, wheel
from engines.routing import key_at
from engines.samples import INTENT, chain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treeopt.draft_family import DynamicTree, chain_length
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.sglang_config import default_capture_sizes
from treeopt.errors import InputError

pytestmark = needs_conformance
KEYED = ("0.5.13", "0.5.14", "0.5.15", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")


@pytest.fixture(scope="module")
def sglang() -> Any:
    return adaptive("0.5.23")


def routed(sglang: Any, schedule: DraftSchedule, folder: Path, *, max_batch: int, release: str = "0.5.23") -> list[int]:
    """Steps per running batch size, by SGLang, with the captured sizes of the export."""
    written = export(schedule, find_engine(f"sglang=={release}"), Setup(max_batch=max_batch)).written
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


def undeclared(release: str, launch: str) -> list[str]:
    """The words of a start line that the release's parser does not know: flags, and the algorithm's name."""
    archive = wheel("sglang", release)
    files = [n for n in names_of(archive) if n.endswith("srt/server_args.py") or "/arg_groups/fields/" in n]
    arguments = "".join(text(archive, name) for name in files)
    words = shlex.split(launch)
    # Written out, or made from the field's name.
    lacking = [
        word
        for word in words
        if word.startswith("--") and f'"{word}"' not in arguments and f"{word[2:].replace('-', '_')}:" not in arguments
    ]
    algorithm = words[words.index("--speculative-algorithm") + 1]
    enum = text(archive, "sglang/srt/speculative/spec_info.py")
    known = [*re.findall(r"^    ([A-Z0-9_]+) = auto\(\)", enum, re.MULTILINE), "NEXTN"]  # that one is EAGLE's
    return lacking + [algorithm] * (algorithm not in known)


@pytest.mark.parametrize("release", ["0.5.11", "0.5.12", *KEYED])
def test_every_release_knows_the_flags_of_each_drafter(release: str) -> None:
    target = find_engine(f"sglang=={release}")
    for kind in target.kinds:
        found = export(DraftSchedule.constant(chain(3)), target, Setup(drafter=kind))
        assert undeclared(release, found.written.launch) == [], kind
        assert found.checked_by == "own code"
    tree = export(DraftSchedule.constant(DynamicTree(3, 4, 8)), target, Setup())
    assert undeclared(release, tree.written.launch) == []


@pytest.mark.parametrize("release", KEYED)
def test_every_release_routes_by_the_keys_that_it_is_given(release: str, tmp_path: Path) -> None:
    """And takes the flags of the start line; lengths of 0 from 0.5.14 on."""
    target, schedule = find_engine(f"sglang=={release}"), DraftSchedule(steps=(*INTENT.steps[:2],))
    found = routed(adaptive(release), schedule, tmp_path, max_batch=64, release=release)
    assert found == [4] * 4 + [2] * 395
    assert undeclared(release, export(schedule, target, Setup(max_batch=64)).written.launch) == []
    if release == "0.5.13":
        with pytest.raises(InputError, match="cannot be told to draft nothing"):
            export(INTENT, target, Setup())
        with pytest.raises(ValueError, match="positive ints"):
            routed_file(adaptive(release), {"1": [4], "17": [0]}, tmp_path)
    else:
        assert routed(adaptive(release), INTENT, tmp_path, max_batch=64, release=release)[16:] == [0] * 383


def test_the_release_before_ignores_the_keys_and_is_offered_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="change with the batch size"):
        export(DraftSchedule(steps=INTENT.steps[:2]), find_engine("sglang==0.5.12"), Setup())
    params = routed_file(adaptive("0.5.12"), {"1": [4], "5": [2]}, tmp_path)
    assert params.candidate_steps == [1, 3, 7]  # up to 7 where the file says 4, without a word


def routed_file(sglang: Any, keys: dict[str, list[int]], folder: Path) -> Any:
    path = folder / "keys.json"
    path.write_text(json.dumps({key: {"candidate_steps": steps} for key, steps in keys.items()}))
    first = next(iter(keys.values()))[0]
    given = {"initial_steps": first, "cfg_path": str(path)}
    wanted = inspect.signature(sglang.AdaptiveSpeculativeParams.__init__).parameters
    if "config" in wanted:
        given = {"initial_steps": 3, "config": sglang.load_adaptive_config(str(path))}
    return sglang.AdaptiveSpeculativeParams(**given)


def test_default_captured_sizes() -> None:
    graphs = text(wheel("sglang", "0.5.23"), "sglang/srt/arg_groups/cuda_graph_hook.py")
    start = graphs.index("def generate_decode_cuda_graph_batch_sizes")
    source = graphs[start : graphs.index("\ndef ", start + 1)]
    config = SimpleNamespace(disable_cuda_graph_padding=False, speculative_algorithm="EAGLE3")
    code: dict[str, Any] = {"Any": Any, "resolving_view": lambda args: args}
    exec(source, code)
    for max_batch in (1, 5, 24, 33, 48, 160, 256, 300, 512):
        theirs = code["generate_decode_cuda_graph_batch_sizes"](config, max_batch)
        assert tuple(sorted(theirs)) == default_capture_sizes(max_batch)
