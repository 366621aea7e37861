from __future__ import annotations

import pytest
from engines.conftest import Part, Planned
from engines.samples import EAGLE, chain

from treeopt.draft_family import OFF, SGLANG, Chains, DynamicTrees, StaticTrees, chain_length
from treeopt.engines.fitting import fit_plan, fit_schedule
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.errors import InputError
from treeopt.tree import DraftTree

TREE: DraftTree = EAGLE.only  # type: ignore[assignment]
SMALL = DraftTree(((0,), (1,), (0, 0)))
# At 1-4 a tree, at 5-16 a chain, from 17 on nothing; the chain at 17-64 is slower than nothing.
PARTS = (
    Part(1, 4, TREE, 400.0, 4, 300.0, 100.0),
    Part(5, 16, chain(2), 800.0, 2, 800.0, 500.0),
    Part(17, 64, OFF, 1000.0, 1, 900.0, 1000.0),
)
SCHEDULES = Chains(per_batch=True, may_be_off=True)


def steps(schedule: DraftSchedule) -> list[tuple[int, int | None]]:
    return [(s.batch_min, chain_length(s.draft)) for s in schedule.steps]


def test_the_best_chain_stands_in_with_its_price(planned: Planned) -> None:
    fitted = fit_plan(planned(*PARTS), SCHEDULES)
    assert steps(fitted.schedule) == [(1, 4), (5, 2), (17, 1)]
    assert fitted.schedule.covers == 64
    assert [(*x.batch, x.planned, x.exported) for x in fitted.losses] == [
        (1, 4, "a tree of 26 nodes, depth 5", "a chain of 4"),
        (17, 64, "nothing", "a chain of 1"),
    ]
    assert [x.share for x in fitted.losses] == [pytest.approx(0.25), pytest.approx(0.1)]


def test_off_where_asked(planned: Planned) -> None:
    fitted = fit_plan(planned(*PARTS), SCHEDULES, allow_off=True)
    assert steps(fitted.schedule) == [(1, 4), (5, 2), (17, 0)]
    assert [x.batch.min for x in fitted.losses] == [1]
    # A tree whose best chain is slower than nothing becomes nothing.
    slow = Part(1, 4, TREE, 400.0, 4, 90.0, 100.0)
    fitted = fit_plan(planned(slow, *PARTS[1:]), SCHEDULES, allow_off=True)
    assert steps(fitted.schedule) == [(1, 0), (5, 2), (17, 0)]
    assert fitted.losses[0].share == pytest.approx(0.75)


def test_engines_that_cannot_be_off(planned: Planned) -> None:
    fitted = fit_plan(planned(*PARTS), Chains(per_batch=True), allow_off=True)
    assert steps(fitted.schedule) == [(1, 4), (5, 2), (17, 1)]


def test_nothing_to_export(planned: Planned) -> None:
    plan = planned(PARTS[2])
    for limits in (SCHEDULES, Chains(), DynamicTrees(rule=SGLANG), StaticTrees(min_depth=1)):
        with pytest.raises(InputError, match="the plan does not speculate at batch 17-64"):
            fit_plan(plan, limits)
        with pytest.raises(InputError, match="nothing is drafted"):
            fit_schedule(DraftSchedule.constant(OFF), limits)
    assert fit_plan(plan, StaticTrees()).schedule.only == OFF


def test_one_setting_for_several_buckets(planned: Planned) -> None:
    plan = planned(*PARTS)
    with pytest.raises(InputError, match="the plan has several: batch 1-4, batch 5-16, batch 17-64") as caught:
        fit_plan(plan, Chains())
    assert caught.value.hint.startswith("add --batch B")
    fitted = fit_plan(plan, Chains(), batch=3)
    assert fitted.schedule.only == chain(4)
    assert any("chosen for batch 1-4" in note for note in fitted.notes)


def test_trees_that_fit_are_kept(planned: Planned) -> None:
    plan = planned(*PARTS)
    fitted = fit_plan(plan, StaticTrees(max_ranks=10), batch=1)
    assert (fitted.schedule.only, fitted.losses) == (TREE, ())
    with pytest.raises(InputError, match=r"the tree of batch 1-4 does not fit: \[3\] has a rank of 3") as caught:
        fit_plan(plan, StaticTrees(max_ranks=3, max_depth=9), batch=1)
    assert "search with --max-ranks 3 --max-depth 9" in caught.value.hint


def test_a_static_tree_is_no_triple(planned: Planned) -> None:
    fitted = fit_plan(planned(PARTS[0]), DynamicTrees(rule=SGLANG))
    assert fitted.schedule.only == chain(4)
    assert [x.share for x in fitted.losses] == [pytest.approx(0.25)]


def test_smaller_batches_get_the_first_drafts(planned: Planned) -> None:
    fitted = fit_plan(planned(*PARTS[1:]), SCHEDULES)
    assert steps(fitted.schedule) == [(1, 2), (17, 1)]
    assert any("starts at batch 5" in note for note in fitted.notes)


def test_no_longer_chain_after_the_first(planned: Planned) -> None:
    limits = Chains(per_batch=True, may_be_off=True, longest_first=True)
    rising = planned(Part(1, 4, chain(2), 400.0, 2, 400.0, 100.0), Part(5, 16, SMALL, 800.0, 3, 700.0, 500.0))
    fitted = fit_plan(rising, limits)
    assert steps(fitted.schedule) == [(1, 2)]
    assert [x.share for x in fitted.losses] == [None]  # a chain of 2 has no price there
    off_first = planned(Part(1, 4, OFF, 100.0, 1, 90.0, 100.0), PARTS[1])
    with pytest.raises(InputError, match="large batch sizes only"):
        fit_plan(off_first, limits, allow_off=True)


def test_capped_chains_have_no_price(planned: Planned) -> None:
    fitted = fit_plan(planned(PARTS[0]), Chains(max_length=3))
    assert fitted.schedule.only == chain(3)
    assert [x.share for x in fitted.losses] == [None]


def test_schedules_are_taken_as_they_are() -> None:
    schedule = DraftSchedule(steps=(ScheduleStep(1, chain(4)), ScheduleStep(5, OFF)))
    assert fit_schedule(schedule, SCHEDULES).schedule == schedule
    with pytest.raises(InputError, match="batch 5 and up: it cannot be told to draft nothing"):
        fit_schedule(schedule, Chains(per_batch=True))
    with pytest.raises(InputError, match="change with the batch size"):
        fit_schedule(schedule, Chains())
