from __future__ import annotations

import pytest
from engines.samples import BINARY, INTENT, TRIPLE, chain
from hypothesis import given
from hypothesis import strategies as st

from treeopt.draft_family import OFF, DynamicTree, chain_length, in_words
from treeopt.engines.schedule import DraftSchedule, ScheduleStep, parse_schedule
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import parse_document
from treeopt.plan.reading import parse_tree
from treeopt.tree import DraftTree


def test_ranges_follow_each_other_and_end_where_the_author_stopped() -> None:
    assert [(r.batch_min, r.batch_max, chain_length(r.draft)) for r in INTENT.ranges()] == [
        (1, 4, 4),
        (5, 16, 2),
        (17, 256, 0),
    ]
    assert [chain_length(INTENT.at(b)) for b in (1, 4, 5, 16, 17, 256, 10**6)] == [4, 4, 2, 2, 0, 0, 0]


def test_equal_neighbours_are_one_step() -> None:
    merged = DraftSchedule(
        steps=(
            ScheduleStep(1, chain(2)),
            ScheduleStep(5, chain(2)),
            ScheduleStep(9, chain(1)),
            ScheduleStep(17, chain(1)),
        )
    )
    assert [s.batch_min for s in merged.steps] == [1, 9]
    assert DraftSchedule(steps=(ScheduleStep(1, chain(2)), ScheduleStep(5, chain(2)))).only == chain(2)


@pytest.mark.parametrize(
    ("steps", "covers"),
    [
        ((), None),
        ((ScheduleStep(2, OFF),), None),
        ((ScheduleStep(1, OFF), ScheduleStep(1, chain(1))), None),
        ((ScheduleStep(1, OFF), ScheduleStep(9, OFF)), 4),
    ],
)
def test_schedules_that_are_none(steps: tuple[ScheduleStep, ...], covers: int | None) -> None:
    with pytest.raises(InputError):
        DraftSchedule(steps=steps, covers=covers)


@pytest.mark.parametrize(
    ("draft", "length", "words"),
    [
        (OFF, 0, "nothing"),
        (chain(3), 3, "a chain of 3"),
        (DynamicTree(3, 1, 4), 3, "a chain of 3"),
        (DynamicTree(3, 4, 12), None, "a dynamic tree (steps 3, topk 4, draft tokens 12)"),
        (DraftTree(((0,), (1,), (0, 0))), None, "a tree of 4 nodes, depth 2"),
        (DraftTree(((1,),)), None, "a tree of 2 nodes, depth 1"),  # not the top guess
    ],
)
def test_drafts_in_words(draft: DraftTree | DynamicTree, length: int | None, words: str) -> None:
    assert chain_length(draft) == length
    assert in_words(draft) == words


def test_one_static_tree_is_written_as_a_tree() -> None:
    assert parse_tree(parse_document(BINARY.yaml(), name="t", what="tree")) == BINARY.only


_DRAFTS = st.one_of(
    st.integers(0, 5).map(chain),
    st.builds(DynamicTree, st.integers(1, 6), st.integers(2, 8), st.integers(2, 64)),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(DraftTree.from_widths),
)


@given(
    drafts=st.lists(_DRAFTS, min_size=2, max_size=6),
    gaps=st.lists(st.integers(1, 50), min_size=6, max_size=6),
    tail=st.none() | st.integers(0, 9),
)
def test_a_written_schedule_reads_back(
    drafts: list[DraftTree | DynamicTree], gaps: list[int], tail: int | None
) -> None:
    starts = [1 + sum(gaps[:i]) for i in range(len(drafts))]
    covers = None if tail is None else starts[-1] + tail
    schedule = DraftSchedule(steps=tuple(map(ScheduleStep, starts, drafts)), covers=covers)
    if not isinstance(schedule.only, DraftTree):
        assert parse_schedule(parse_document(schedule.yaml(), name="s", what="trees")) == schedule


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ("[]", "there is no range"),
        ("[{batch: {min: 2, max: 4}, paths: []}]", "ends at 0"),
        ("[{batch: {min: 1, max: 4}, paths: []}, {batch: {min: 6, max: null}, paths: []}]", "ends at 4"),
        ("[{batch: {min: 1, max: null}, paths: []}, {batch: {min: 6, max: 9}, paths: []}]", "without end"),
        ("[{batch: {min: 1, max: null}, paths: [[0], [0]]}]", "listed twice"),
        ("[{batch: {min: 1, max: null}, paths: [[1, 0]]}]", "no parent"),
        ("[{batch: {min: 1, max: null}, dynamic: {steps: 0, topk: 1, nodes: 2}}]", "out of range"),
        ("[{batch: {min: 1, max: null}}]", "'paths' is missing"),
        ("[{batch: {min: 1, max: null}, path: []}]", "unknown key"),
    ],
)
def test_files_that_are_no_schedule(ranges: str, words: str) -> None:
    document = parse_document(f"format: treeopt.trees/1\nranges: {ranges}\n", name="s.yaml", what="trees")
    with pytest.raises(FileFormatError, match=r"s\.yaml:2: ") as caught:
        parse_schedule(document)
    assert words in str(caught.value)


def test_triples_stand_in_the_file() -> None:
    assert "dynamic: {steps: 3, topk: 4, nodes: 12}" in TRIPLE.yaml()
