from __future__ import annotations

import json
import shlex
from collections.abc import Callable

import pytest
from engines.conftest import Read
from engines.routing import key_at
from engines.samples import CHAIN, INTENT, TRIPLE, chain
from hypothesis import given
from hypothesis import strategies as st

from treeopt.draft_family import OFF, DynamicTree, chain_length
from treeopt.engines.exporting import Export, export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.sglang_config import capture_sizes_for, default_capture_sizes, effective_start
from treeopt.errors import InputError

Refused = Callable[..., None]


def exported(schedule: DraftSchedule, **setup: object) -> Export:
    return export(schedule, find_engine("sglang"), Setup(**setup))  # type: ignore[arg-type]


def test_one_intent() -> None:
    found = exported(INTENT, drafter="eagle3")
    assert isinstance(found.written.content, str)
    assert json.loads(found.written.content) == {
        "1": {"candidate_steps": [4]},
        "5": {"candidate_steps": [2]},
        "17": {"candidate_steps": [0]},
    }
    assert {4, 16} <= set(found.written.capture_sizes)
    assert [key_at(b, (1, 5, 17), found.written.capture_sizes) for b in (1, 4, 5, 16, 17, 256)] == [1, 1, 5, 5, 17, 17]
    words = shlex.split(found.written.launch)
    assert words[words.index("--cuda-graph-bs-decode") + 1 :] == [str(n) for n in found.written.capture_sizes]
    for flag, value in (("steps", "4"), ("draft-tokens", "5")):
        assert words[words.index(f"--speculative-num-{flag}") + 1] == value
    assert words[words.index("--speculative-eagle-topk") + 1] == "1"


@pytest.mark.parametrize(
    ("batch", "captured", "key"),
    [
        # 1, 8, 32 on captured 1, 2, 4, ... 64, as run with SGLang 0.5.23.
        (5, (1, 2, 4, 8, 16, 32, 64), 8),
        (17, (1, 2, 4, 8, 16, 32, 64), 32),
        (4, (1, 2, 4, 8, 16, 32, 64), 1),
        (100, (1, 2, 4, 8, 16, 32, 64), 32),
        (5, (), 1),
    ],
)
def test_batches_are_padded_before_the_key_is_looked_up(batch: int, captured: tuple[int, ...], key: int) -> None:
    assert key_at(batch, (1, 8, 32), captured) == key


def test_default_captured_sizes() -> None:
    sizes = default_capture_sizes(300)
    assert sizes[:8] == (1, 2, 3, 4, 5, 6, 7, 8)
    assert {10, 32, 40, 64, 72, 256, 272, 288, 300} <= set(sizes)
    assert not {9, 33, 36, 65, 264} & set(sizes)
    assert effective_start(37, sizes) == 33
    assert effective_start(17, sizes) == 17
    assert effective_start(500, sizes) == 500


@given(
    starts=st.sets(st.integers(2, 300), min_size=1, max_size=6),
    max_batch=st.integers(1, 320),
)
def test_added_sizes_make_every_border_exact(starts: set[int], max_batch: int) -> None:
    keys = (1, *sorted(starts))
    captured = capture_sizes_for(keys, max_batch)
    for batch in range(1, 330):
        assert key_at(batch, keys, captured) == max(k for k in keys if k <= batch), batch


@given(start=st.integers(2, 300), sizes=st.sets(st.integers(1, 320), max_size=30))
def test_effective_start_is_where_the_key_begins_to_act(start: int, sizes: set[int]) -> None:
    captured = tuple(sorted(sizes))
    first = next(b for b in range(1, 400) if key_at(b, (0, start), captured) == start)
    assert effective_start(start, captured) == first


def test_triples_are_flags() -> None:
    assert exported(TRIPLE).written.content == (
        "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 12"
    )
    assert exported(CHAIN).written.content == (
        "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
    )
    with pytest.raises(InputError, match="cannot verify 999 tokens"):
        exported(DraftSchedule.constant(DynamicTree(5, 4, 999)))
    assert "sgl-project/sglang#13212" in {bug.reference for bug in exported(TRIPLE).bugs}
    assert "sgl-project/sglang#13212" not in {bug.reference for bug in exported(CHAIN).bugs}


def test_adaptive_lengths_need_an_eagle_drafter() -> None:
    with pytest.raises(InputError, match="these drafts change with the batch size"):
        exported(INTENT, drafter="ngram")
    assert "STANDALONE" in exported(CHAIN, drafter="model:llama-3.2-1b").written.launch
    launch = exported(INTENT, drafter="mtp").written.launch
    assert "NEXTN" in launch
    assert "draft-model" not in launch


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--speculative-num-steps 3", ["belong together"]),
        ("--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 999", ["2 to 69"]),
        ("--speculative-num-steps x --speculative-eagle-topk 4 --speculative-num-draft-tokens 9", ["whole number"]),
        ("serve --speculative-adaptive --speculative-adaptive-config f.json", ["another file"]),
        ('{"1-4": {"candidate_steps": [4]}}', ["SGLang ignores this key"]),
        ('{"1": {"candidate_steps": [1, 3, 7]}}', ["chooses among [1, 3, 7]"]),
        ('{"1": {"candidate_steps": []}}', ["chooses among []"]),
        ('{"1": {"candidate_steps": [-1]}}', ["out of range"]),
        ('{"1": {"candidate_steps": 4}}', ["expected a list"]),
    ],
)
def test_what_sglang_fails_on_or_ignores(refused: Refused, text: str, words: list[str]) -> None:
    refused(text, "sglang", *words)


def test_read_back(read: Read) -> None:
    command = (
        "python -m sglang.launch_server --speculative-num-steps=3 --speculative-eagle-topk 4 \\\n"
        " --speculative-num-draft-tokens 12"
    )
    assert read(command) == TRIPLE
    chain_of_3 = read("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16")
    assert chain_of_3.only == chain(3)  # SGLang corrects it to 4 tokens
    adaptive = read('{"ema_alpha": 0.2, "5": {"candidate_steps": [4]}, "17": {"candidate_steps": [0, 0]}}')
    assert [(s.batch_min, chain_length(s.draft)) for s in adaptive.steps] == [(1, 4), (17, 0)]


@given(
    lengths=st.lists(st.integers(0, 6), min_size=2, max_size=6),
    gaps=st.lists(st.integers(1, 40), min_size=6, max_size=6),
)
def test_every_schedule_reads_back(lengths: list[int], gaps: list[int]) -> None:
    from treeopt.engines.sglang import SGLANG
    from treeopt.engines.source import parse_source

    starts = [1 + sum(gaps[:i]) for i in range(len(lengths))]
    schedule = DraftSchedule(steps=tuple(ScheduleStep(b, chain(k)) for b, k in zip(starts, lengths, strict=True)))
    if schedule.only is not None:
        return
    text = exported(schedule).written.content
    assert isinstance(text, str)
    found = next(f for f in SGLANG.formats if f.name == "adaptive").read(parse_source(text, name="f"))
    assert found is not None
    assert found.schedule.steps == schedule.steps


def test_a_phase_without_drafts_is_named() -> None:
    assert OFF in [s.draft for s in INTENT.steps]
    assert "NVIDIA/TensorRT-LLM#16888" in {bug.reference for bug in exported(INTENT).bugs}
