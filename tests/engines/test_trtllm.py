from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml
from engines.conftest import Read
from engines.samples import CHAIN, EAGLE, INTENT, chain
from hypothesis import given
from hypothesis import strategies as st

from treeopt.draft_family import DynamicTree, chain_length
from treeopt.engines.exporting import Export, export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.source import parse_source
from treeopt.engines.trtllm import TENSORRT_LLM
from treeopt.errors import InputError

Refused = Callable[..., None]
HEAD = "speculative_config: {decoding_type: Eagle3, speculative_model: D, max_draft_len: 4, "


def exported(schedule: DraftSchedule, version: str = "1.4.0rc4", **setup: object) -> Export:
    return export(schedule, find_engine(f"trtllm=={version}"), Setup(**setup))  # type: ignore[arg-type]


def section(found: Export) -> dict[str, object]:
    assert isinstance(found.written.content, str)
    value: dict[str, object] = yaml.safe_load(found.written.content)["speculative_config"]
    return value


def test_one_intent() -> None:
    found = exported(INTENT, drafter="eagle3", draft_model="D")
    assert section(found) == {
        "decoding_type": "Eagle3",
        "speculative_model": "D",
        "max_draft_len": 4,
        "draft_len_schedule": {4: 4, 16: 2},
    }
    assert found.written.capture_sizes == (4, 16)
    assert "NVIDIA/TensorRT-LLM#16888" in {bug.reference for bug in found.bugs}


def test_the_last_range_needs_an_end() -> None:
    schedule = DraftSchedule(steps=(ScheduleStep(1, chain(4)), ScheduleStep(5, chain(1))))
    assert section(exported(schedule, max_batch=64))["draft_len_schedule"] == {4: 4, 64: 1}
    assert any("above batch 64" in note for note in exported(schedule, max_batch=64).notes)


def test_the_longest_chain_comes_first() -> None:
    with pytest.raises(InputError, match="no more than the first range drafts"):
        exported(DraftSchedule(steps=(ScheduleStep(1, chain(2)), ScheduleStep(5, chain(4)))))


@pytest.mark.parametrize(
    ("triple", "fits"),
    [(DynamicTree(6, 10, 61), True), (DynamicTree(6, 10, 62), False), (DynamicTree(6, 10, 6), False)],
)
def test_dynamic_trees(triple: DynamicTree, fits: bool) -> None:
    if not fits:
        with pytest.raises(InputError, match="7 to 61"):
            exported(DraftSchedule.constant(triple))
        return
    with pytest.raises(InputError, match="is no chain"):  # only EAGLE and, on main, MTP have these keys
        exported(DraftSchedule.constant(triple), drafter="ngram")
    with pytest.raises(InputError, match="is no chain"):
        exported(DraftSchedule.constant(triple), "1.3.0rc27", drafter="mtp")
    assert section(exported(DraftSchedule.constant(triple), drafter="mtp"))["decoding_type"] == "MTP"
    assert section(exported(DraftSchedule.constant(triple), drafter="eagle3", draft_model="D")) == {
        "decoding_type": "Eagle3",
        "speculative_model": "D",
        "max_draft_len": 6,
        "use_dynamic_tree": True,
        "dynamic_tree_max_topK": 10,
        "max_total_draft_tokens": 60,
    }


def test_static_trees_up_to_1_3(read: Read) -> None:
    found = exported(EAGLE, "1.3.0rc27", drafter="medusa")
    choices = section(found)["medusa_choices"]
    assert isinstance(choices, list)
    assert len(choices) == 25
    assert section(found)["decoding_type"] == "Medusa"
    assert isinstance(found.written.content, str)
    assert read(found.written.content) == EAGLE
    # Not NVIDIA/TensorRT-LLM#10323, which is of trees of depth 1.
    assert [bug.reference for bug in found.bugs] == ["NVIDIA/TensorRT-LLM#10343"]
    assert exported(DraftSchedule.constant(DynamicTree(6, 10, 61)), "1.3.0").bugs == ()  # that bug is of static trees
    with pytest.raises(InputError, match="no chain"):
        exported(EAGLE, "1.4.0rc1")
    with pytest.raises(InputError, match="1 deep"):  # NVIDIA/TensorRT-LLM#10323
        exported(read("[[0], [1]]"), "1.2.0")


@pytest.mark.parametrize(
    ("drafter", "method", "written", "key"),
    [
        (None, "Medusa", "Medusa", "medusa_choices"),
        ("eagle", "medusa", "Medusa", "medusa_choices"),
        ("medusa", "Eagle", "Eagle", "eagle_choices"),
        (None, None, "Eagle3", "eagle_choices"),
    ],
)
def test_a_static_tree_stands_under_the_key_of_the_method(
    drafter: str | None, method: str | None, written: str, key: str
) -> None:
    found = section(exported(EAGLE, "1.3.0", drafter=drafter, method=method))
    assert found["decoding_type"] == written
    assert [name for name in found if name.endswith("_choices")] == [key]


def test_a_method_without_trees_gets_no_tree_keys() -> None:
    """A chain is a static tree too, but only EAGLE and Medusa have a key for one."""
    for setup in ({"method": "NGram"}, {"drafter": "ngram"}):
        found = exported(CHAIN, "1.3.0", **setup)
        assert found.kind == "length"
        assert section(found) == {"decoding_type": "NGram", "max_matching_ngram_size": 3, "max_draft_len": 4}
    with pytest.raises(InputError, match="is no chain"):
        exported(EAGLE, "1.3.0", method="NGram")


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("draft_len_schedule: {4: 2, 16: 4}}", ["2 tokens up to batch 4, but max_draft_len is 4"]),
        ("draft_len_schedule: {4: 4, 16: 5}}", ["5 exceeds max_draft_len 4"]),
        ("draft_len_schedule: {}}", ["there is no batch size"]),
        ("draft_len_schedule: {0: 4}}", ["out of range"]),
        ("draft_len_schedule: {4: -1}}", ["out of range"]),
        ("draft_len_schedule: [[4, 4]]}", ["expected a mapping"]),
        ("use_dynamic_tree: true, dynamic_tree_max_topK: 2, max_total_draft_tokens: 9}", ["5 to 9"]),
        ("eagle_choices: [[0], [1, 0]]}", ["no parent"]),
        ("eagle_choices: [[0], [0]]}", ["listed twice"]),
        ("eagle_choices: '[[0], ['}", ["not a list of paths"]),
    ],
)
def test_what_the_engine_refuses(refused: Refused, rest: str, words: list[str]) -> None:
    refused(HEAD + rest, None, *words, "file.txt:1")


def test_read_back(read: Read) -> None:
    lengths = read(HEAD + "draft_len_schedule: {16: 2, 4: 4}}")
    assert lengths.steps == INTENT.steps
    limited = read(HEAD + "max_concurrency: 16}")
    assert [(s.batch_min, chain_length(s.draft)) for s in limited.steps] == [(1, 4), (17, 0)]
    assert read(HEAD + "draft_len_schedule: null}") == CHAIN
    dynamic = read(HEAD + "use_dynamic_tree: true, dynamic_tree_max_topK: 3}")
    assert dynamic.only == DynamicTree(4, 3, 13)  # all 12 by default
    gap = read(HEAD + "eagle_choices: '[[0], [2], [0, 1]]'}", "trtllm==1.3.0")
    assert gap.only.paths == ((0,), (2,), (0, 1))  # type: ignore[union-attr]


@given(
    drops=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    gaps=st.lists(st.integers(1, 40), min_size=6, max_size=6),
)
def test_falling_schedules_read_back(drops: list[int], gaps: list[int]) -> None:
    """Down to nothing: then the table's end says the same as the schedule."""
    lengths = [sum(drops[i:]) for i in range(len(drops))] + [0]
    starts = [1 + sum(gaps[:i]) for i in range(len(lengths))]
    schedule = DraftSchedule(steps=tuple(ScheduleStep(b, chain(k)) for b, k in zip(starts, lengths, strict=True)))
    content = exported(schedule).written.content
    assert isinstance(content, str)
    form = next(f for f in TENSORRT_LLM.formats if f.name == "schedule")
    found = form.read(parse_source(content, name="f"))
    assert found is not None
    assert found.schedule.steps == schedule.steps
