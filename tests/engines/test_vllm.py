from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from engines.conftest import Read
from engines.routing import VLLM_SCHEDULE, parse_ranges
from engines.samples import BINARY, CHAIN, EAGLE, INTENT, chain
from hypothesis import given
from hypothesis import strategies as st
from plans import bucket_of, plan_of

from treeopt.acceptance.prompt_lookup import PromptLookup
from treeopt.check.matching import PlannedBuckets
from treeopt.draft_family import OFF, chain_length
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.source import parse_source
from treeopt.engines.vllm import VLLM
from treeopt.errors import FileFormatError, InputError
from treeopt.tree import DraftTree

Refused = Callable[..., None]
KEY = "num_speculative_tokens_per_batch_size"


def lookup(ranges: list[list[int]], batch: int) -> int:
    """vLLM's rule in words: the range that holds the batch, else the last one that ends before it."""
    for low, high, length in ranges:
        if low <= batch <= high:
            return length
    return max((r for r in ranges if r[1] < batch), key=lambda r: r[1])[2]


def written(schedule: DraftSchedule, version: str = "0.32.0", **setup: object) -> dict[str, object]:
    found = export(schedule, find_engine(f"vllm=={version}"), Setup(**setup))  # type: ignore[arg-type]
    assert isinstance(found.written.content, str)
    assert found.written.content in found.written.launch
    document: dict[str, object] = json.loads(found.written.content)
    return document


def test_one_intent() -> None:
    document = written(INTENT, drafter="eagle3", draft_model="D")
    assert document == {
        "method": "eagle3",
        "model": "D",
        "num_speculative_tokens": 4,
        KEY: [[1, 4, 4], [5, 16, 2], [17, 256, 0]],
    }


def test_the_last_range_ends_where_asked() -> None:
    assert written(INTENT, max_batch=512)[KEY] == [[1, 4, 4], [5, 16, 2], [17, 512, 0]]
    assert written(INTENT, max_batch=8)[KEY] == [[1, 4, 4], [5, 16, 2], [17, 17, 0]]


def test_graph_sizes_are_tokens_of_uniform_steps() -> None:
    schedule = DraftSchedule(
        steps=(ScheduleStep(1, chain(4)), ScheduleStep(3, chain(2)), ScheduleStep(10, OFF)), covers=12
    )
    sizes = export(schedule, find_engine("vllm"), Setup()).written.capture_sizes
    # 1, 2 requests of 5 tokens; 3, 4, 8, 9 of 3; 10, 12 of 1.
    assert sizes == (5, 9, 10, 12, 24, 27)


@pytest.mark.parametrize(
    ("drafter", "method", "has_model"),
    [("eagle", "eagle", True), ("mtp", "mtp", False), ("ngram", "ngram", False), ("model:x", "draft_model", True)],
)
def test_methods(drafter: str, method: str, has_model: bool) -> None:
    document = written(CHAIN, drafter=drafter)
    assert (document["method"], "model" in document) == (method, has_model)


@pytest.mark.parametrize("schedule", [CHAIN, INTENT])
def test_mtp_wants_a_multiple(schedule: DraftSchedule) -> None:
    for drafter, said in (("mtp", True), ("eagle3", False)):
        notes = export(schedule, find_engine("vllm"), Setup(drafter=drafter)).notes
        assert any("n_predict" in note for note in notes) == said
    notes = export(schedule, find_engine("vllm"), Setup(drafter="mtp", method="eagle3")).notes
    assert not any("n_predict" in note for note in notes)


def test_prompt_lookup_is_told_its_lengths() -> None:
    lookup = PromptLookup(rule="vllm", shortest=2, longest=4)
    usual, own = written(INTENT, drafter="ngram"), written(INTENT, drafter="ngram", lookup=lookup)
    assert [(d["prompt_lookup_min"], d["prompt_lookup_max"]) for d in (usual, own)] == [(1, 3), (2, 4)]
    assert "model" not in usual
    assert "prompt_lookup_min" not in written(CHAIN, drafter="eagle3")


def test_suffix_names_no_model_and_chooses_its_lengths() -> None:
    found = export(CHAIN, find_engine("vllm"), Setup(method="suffix"))
    assert json.loads(str(found.written.content)) == {"method": "suffix", "num_speculative_tokens": 4}
    assert any("chooses its own lengths" in note for note in found.notes)


@pytest.mark.parametrize(
    ("version", "drafter", "device", "asked"),
    [
        ("0.24.0", "eagle3", "cuda", False),  # V2 refuses every schedule
        ("0.25.1", "eagle3", "cuda", True),
        ("0.28.0", "mtp", "cuda", True),
        ("0.28.0", "model:x", "cuda", False),
        ("0.28.0", "ngram", "cuda", False),
        ("0.28.0", "eagle3", "cpu", False),  # V2 needs Triton
        ("0.29.0", "eagle3", "cuda", False),  # it takes V2 by itself
        ("0.33.0", "eagle", "cuda", False),
    ],
)
def test_the_runner_is_named_where_it_must_be(version: str, drafter: str, device: str, asked: bool) -> None:
    for schedule, said in ((INTENT, asked), (CHAIN, False)):
        setup = Setup(drafter=drafter, device=device)
        launch = export(schedule, find_engine(f"vllm=={version}"), setup).written.launch
        assert launch.startswith("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve" if said else "vllm serve")


@pytest.mark.parametrize(
    ("keys", "drafter"),
    [
        ('"method": "ngram"', "ngram:vllm:5-5"),  # vLLM's own lengths where none is given
        ('"method": "ngram", "prompt_lookup_max": 3', "ngram:vllm:3-3"),
        ('"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3', "ngram:vllm:1-3"),
        ('"method": "draft_model"', "model"),
        ('"method": "their_own"', None),
    ],
)
def test_the_drafter_is_read_back(keys: str, drafter: str | None) -> None:
    for form in (f for f in VLLM.formats if f.name != "token-tree"):
        key = f', "{KEY}": [[1, 4, 4]]' if form.name == "schedule" else ""
        found = form.read(parse_source(f'{{{keys}, "num_speculative_tokens": 4{key}}}', name="f"))
        assert found is not None
        assert found.drafter == drafter


def test_medusa_is_gone_in_0_33() -> None:
    assert written(CHAIN, drafter="medusa")["method"] == "medusa"
    with pytest.raises(InputError, match=r"runs a medusa drafter before 0\.33\.0"):
        written(CHAIN, version="0.33.0", drafter="medusa")


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ("[[2,4,4]]", "starts at 2"),
        ("[[5,2,4]]", "out of range"),
        ("[[1,4,4],[4,8,2]]", "overlaps"),
        ("[[1,4,4],[1,4,2]]", "overlaps"),
        ("[[0,4,4]]", "out of range"),
        ("[[1,4,-1]]", "out of range"),
        ("[[1,4]]", "three whole numbers"),
        ("[[1,4,2.7]]", "not a whole number"),  # vLLM makes it 2
        ('[[1,4,"2"]]', "three whole numbers"),  # and this 2 as well
        ("[[1,4,true]]", "expected a number"),
        ("[]", "there is no range"),
    ],
)
def test_schedules_that_vllm_refuses_or_misreads(ranges: str, words: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        parse_ranges(ranges)
    assert words in str(caught.value)


def test_gaps_caps_and_order(read: Read) -> None:
    text = json.dumps({"num_speculative_tokens": 3, KEY: [[32, 64, 1], [1, 16, 5]]})
    schedule = read(text)
    assert [(s.batch_min, chain_length(s.draft)) for s in schedule.steps] == [(1, 3), (32, 1)]
    assert schedule.covers == 64


def test_what_vllm_does_without_saying_so_is_noted() -> None:
    found = VLLM_SCHEDULE.read(
        parse_source(f'{{"num_speculative_tokens": 3, "{KEY}": [[6, 9, 1], [1, 4, 5], [10, 12, 2]]}}', name="f")
    )
    assert found is not None
    assert found.notes == (
        "vLLM drafts 3 at batch 1-4, not 5: num_speculative_tokens caps it",
        "batch 5-5 is in no range: vLLM carries the length before it forward",
    )
    assert [chain_length(found.schedule.at(b)) for b in (1, 4, 5, 6, 9, 10, 13)] == [3, 3, 3, 1, 1, 2, 2]


def test_all_shapes_of_the_file(read: Read) -> None:
    config = {"num_speculative_tokens": 4, KEY: [[1, 4, 4], [5, 16, 2], [17, 256, 0]]}
    one_line = json.dumps(config)
    for text in (
        one_line,
        json.dumps({"speculative_config": config}),
        f"speculative-config: {one_line}",
        f"vllm serve M --speculative-config '{one_line}'",
        f"vllm serve M -sc '{one_line}' \\\n --port 8000",
        json.dumps(config[KEY]),
    ):
        assert read(text) == INTENT, text


@given(
    lengths=st.lists(st.integers(0, 6), min_size=2, max_size=6),
    gaps=st.lists(st.integers(1, 40), min_size=6, max_size=6),
    more=st.integers(0, 20),
)
def test_what_is_written_means_the_same_to_vllm(lengths: list[int], gaps: list[int], more: int) -> None:
    starts = [1 + sum(gaps[:i]) for i in range(len(lengths))]
    schedule = DraftSchedule(steps=tuple(ScheduleStep(b, chain(k)) for b, k in zip(starts, lengths, strict=True)))
    if schedule.only is not None:
        return
    ranges = written(schedule, max_batch=starts[-1] + more)[KEY]
    assert isinstance(ranges, list)
    for batch in range(1, starts[-1] + 60):
        assert lookup(ranges, batch) == chain_length(schedule.at(batch)), batch
    assert parse_ranges(json.dumps(ranges)).steps == schedule.steps


def test_legacy_trees() -> None:
    document = written(BINARY, version="0.20.2", drafter="eagle")
    assert document["speculative_token_tree"] == "[(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]"
    assert document["num_speculative_tokens"] == 6
    found = export(BINARY, find_engine("vllm==0.20.2"), Setup())
    assert any(note.startswith("legacy") for note in found.notes)
    assert "vllm-project/vllm#42121" in {bug.reference for bug in found.bugs}
    with pytest.raises(InputError, match="different numbers of children"):
        export(EAGLE, find_engine("vllm==0.20.2"), Setup())
    with pytest.raises(InputError, match="is no chain"):
        export(BINARY, find_engine("vllm==0.21.0"), Setup())


@pytest.mark.parametrize(
    ("tree", "tokens", "words"),
    [
        ("[(0,), (1,), (0, 0)]", 3, ["different numbers of children"]),
        ("[(0,), (2,)]", 2, ["better-ranked sibling"]),
        ("[(0,), (1, 0)]", 2, ["no parent"]),
        ("[(0,), (0,)]", 2, ["listed twice"]),
        ("[(), (0,)]", 1, ["the root is listed"]),
        ("[(0,), (0, 0)]", 9, ["the tree has 2 draft tokens"]),
        ("[(0,", 1, ["not a Python list of paths"]),
        ("__import__('os')", 1, ["not a Python list of paths"]),
    ],
)
def test_legacy_trees_that_vllm_accepts_and_misdrafts(
    refused: Refused, tree: str, tokens: int, words: list[str]
) -> None:
    refused(json.dumps({"num_speculative_tokens": tokens, "speculative_token_tree": tree}), "vllm==0.20.2", *words)


def test_legacy_trees_read_back(read: Read) -> None:
    text = json.dumps(
        {"num_speculative_tokens": 6, "speculative_token_tree": str([list(p) for p in BINARY.only.paths])}
    )  # type: ignore[union-attr]
    assert read(text) == BINARY
    assert isinstance(read(text).only, DraftTree)


def test_what_shows_the_drafts_at_work_is_what_check_says() -> None:
    """The same words: draft tokens per draft, by batch sizes."""
    schedule = DraftSchedule(steps=(ScheduleStep(1, chain(3)), ScheduleStep(2, chain(2))), covers=16)
    proof = export(schedule, find_engine("vllm"), Setup()).written.proof
    assert "the draft tokens per draft, is 3 at batch 1, 2 at batch 2-16" in proof
    plan = plan_of(bucket_of(chain(3), 1, 1), bucket_of(chain(2), 2, 16))
    assert PlannedBuckets.of(plan).planned == "3 at batch 1, 2 at batch 2-16"
