from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from check.logs import trtllm_iteration, vllm_line, vllm_throughput
from check.simulated import chain, metrics_of
from plans import bucket_of, plan_of
from shared import SHARED, needs_shared

from treeopt.acceptance.errors import NoDraftsError
from treeopt.acceptance.importers import read_evidence
from treeopt.acceptance.replay import ALL_POSITIONS_FLATTER
from treeopt.check.check import DriftVerdict, check_plan, read_metrics
from treeopt.check.measured import Measured
from treeopt.check.report import CheckReport, FindingKind
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan
from treeopt.tree import DraftTree

CHAIN4, CHAIN2, OFF = DraftTree.chain(4), DraftTree.chain(2), DraftTree(())
BUSHY = DraftTree(((0,), (1,), (0, 0), (0, 1)))
F4 = [1.0, 0.7, 0.5, 0.35, 0.25]
CHAINS = plan_of(
    bucket_of(CHAIN4, 1, 4, f=F4, half_width=0.02),
    bucket_of(CHAIN2, 5, 16, f=F4[:3]),
    bucket_of(OFF, 17, 64, f=[1.0]),
    documents=100,
)
# Depth 1 is accepted with .6 + .2, depth 2 with .4 + .1; the top guesses alone with .6 and .4.
TREE = plan_of(bucket_of(BUSHY, 1, 8, f=[1.0, 0.6, 0.2, 0.4, 0.1], half_width=0.01), documents=100)


def kinds(report: CheckReport) -> list[FindingKind]:
    return [finding.kind for finding in report.findings]


def counted(survival: list[float], drafts: int = 100_000) -> Measured:
    return chain(np.rint(np.array(survival) * drafts), drafts)


def test_a_plan_that_holds() -> None:
    report = check_plan(CHAINS, metrics_of(counted(F4[1:])))
    assert not report.drifted
    (only,) = report.comparisons
    assert only.bucket.batch.max == 4
    assert only.verdict is DriftVerdict.STABLE
    assert only.change.share == pytest.approx(0.0, abs=1e-6)
    assert [d.planned for d in only.depths] == pytest.approx([0.7, 0.5 / 0.7, 0.7, 0.25 / 0.35])


def test_acceptance_fell_and_where() -> None:
    report = check_plan(CHAINS, metrics_of(counted([0.7, 0.3, 0.2, 0.15])))
    assert kinds(report) == [FindingKind.ACCEPTANCE_FELL]
    # 1 + .7 + .3 + .2 + .15 = 2.35 of 2.8; given depth 1, depth 2 fell from .714 to .429.
    assert "2.35 tokens per step, planned 2.80, most at depth 2: 0.714 to 0.429" in report.findings[0].seen


def test_acceptance_rose() -> None:
    assert kinds(check_plan(CHAINS, metrics_of(counted([0.8, 0.6, 0.5, 0.4])))) == [FindingKind.ACCEPTANCE_ROSE]


def test_below_the_gate_is_no_drift() -> None:
    metrics = metrics_of(counted([0.68, 0.48, 0.33, 0.23]))  # 2.72 of 2.8: -2.9 %
    assert not check_plan(CHAINS, metrics).drifted
    assert check_plan(CHAINS, metrics, gate=0.02).drifted


def test_each_length_is_compared_with_its_bucket() -> None:
    report = check_plan(CHAINS, metrics_of(counted(F4[1:]), counted([0.6, 0.4])))
    assert [c.bucket.batch.max for c in report.comparisons] == [4, 16]
    assert [f.where for f in report.findings] == ["batch 5-16"]


def test_mixed_lengths_are_compared_over_what_all_have() -> None:
    # Half of the drafts had 2 tokens, so depths 3 and 4 are halved; depths 1 and 2 are as planned.
    mixed = replace(counted([0.7, 0.5, 0.175, 0.125]), drafted=3.0)
    report = check_plan(CHAINS, metrics_of(mixed))
    assert not report.drifted
    assert report.comparisons[0].change.planned == pytest.approx(2.2)
    assert kinds(check_plan(CHAINS, metrics_of(replace(counted([0.5, 0.3, 0.1, 0.1]), drafted=3.0)))) == [
        FindingKind.ACCEPTANCE_FELL
    ]


def test_something_else_runs() -> None:
    report = check_plan(CHAINS, metrics_of(counted([0.7, 0.5, 0.35])))
    assert kinds(report) == [FindingKind.NOT_ACTIVE]
    seen = "3 draft tokens per draft, the plan drafts 4 at batch 1-4, 2 at batch 5-16, 0 at batch 17-64"
    assert report.findings[0].seen == seen


def test_nothing_is_drafted() -> None:
    assert kinds(check_plan(CHAINS, metrics_of())) == [FindingKind.NOT_ACTIVE]
    # In the bucket that should not speculate, nothing is right and anything is wrong.
    assert not check_plan(CHAINS, metrics_of(), batch=32).drifted
    assert kinds(check_plan(CHAINS, metrics_of(counted(F4[1:])), batch=32)) == [FindingKind.NOT_ACTIVE]


def test_a_tree_by_depth() -> None:
    assert not check_plan(TREE, metrics_of(counted([0.8, 0.5]))).drifted
    assert kinds(check_plan(TREE, metrics_of(counted([0.7, 0.4])))) == [FindingKind.ACCEPTANCE_FELL]


def test_a_chain_where_a_tree_should_run() -> None:
    report = check_plan(TREE, metrics_of(counted([0.6, 0.4])))
    assert kinds(report) == [FindingKind.NOT_ACTIVE]
    assert "as 2 top guesses alone would give" in report.findings[0].seen


def test_a_mean_above_what_the_tree_can_give() -> None:
    report = check_plan(TREE, metrics_of(Measured(name="gauge", length=3.4)))
    assert kinds(report) == [FindingKind.ABOVE_BOUND]
    assert "a tree of depth 2 gives 3 at most" in report.findings[0].seen


def test_a_mean_without_counts_is_unclear() -> None:
    report = check_plan(TREE, metrics_of(Measured(name="gauge", length=1.9)))
    assert not report.drifted
    assert any("no count of steps" in note for note in report.notes)


def test_which_tree_must_be_known() -> None:
    report = check_plan(CHAINS, metrics_of(Measured(name="gauge", length=2.0)))
    assert not report.comparisons
    assert any("give --batch" in note for note in report.notes)
    assert check_plan(CHAINS, metrics_of(Measured(name="gauge", length=2.0)), batch=8).comparisons


def test_a_larger_tree_that_accepts_less() -> None:
    # The longer chain is fine by itself, yet accepts less than the shorter one that it holds.
    plan = plan_of(bucket_of(CHAIN4, 1, 4, f=[1.0, 0.5, 0.3, 0.2, 0.1]), bucket_of(CHAIN2, 5, 16, f=F4[:3]))
    report = check_plan(plan, metrics_of(counted([0.5, 0.3, 0.2, 0.1]), counted([0.9, 0.6])))
    assert FindingKind.LARGER_TREE_ACCEPTS_LESS in kinds(report)
    assert "2.10 tokens per step with K = 4, 2.50 with K = 2" in report.findings[-1].seen
    fine = check_plan(CHAINS, metrics_of(counted(F4[1:]), counted(F4[1:3])))
    assert not fine.drifted


def log_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "log.txt"
    path.write_text(text)
    return path


GOOD, BAD = (0.7, 0.5, 0.3, 0.2), (0.6, 0.3, 0.1, 0.1)


def varied(survival: tuple[float, ...], lines: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [vllm_line(1000, np.round(np.array(survival) + rng.choice([-0.02, 0.02]), 3).tolist()) for _ in range(lines)]


@pytest.mark.parametrize(
    ("after", "expected"), [(BAD, [FindingKind.ACCEPTANCE_FELL, FindingKind.COLLAPSE_AFTER_PAUSE]), (GOOD, [])]
)
def test_collapse_after_a_pause(tmp_path: Path, after: tuple[float, ...], expected: list[FindingKind]) -> None:
    pause = [vllm_throughput(90.0)] * 4
    text = "\n".join([*varied(GOOD, 8, 1), *pause, *varied(after, 8, 2)])
    plan = plan_of(bucket_of(CHAIN4, 1, 64, f=[1.0, *GOOD]))
    report = check_plan(plan, read_metrics([log_of(tmp_path, text)]))
    assert kinds(report) == expected
    if expected:
        assert "until drafting stopped (line 10)" in report.findings[-1].seen


def test_a_fall_without_a_pause_is_no_collapse(tmp_path: Path) -> None:
    text = "\n".join([*varied(GOOD, 8, 1), *varied(BAD, 8, 2)])
    plan = plan_of(bucket_of(CHAIN4, 1, 64, f=[1.0, *GOOD]))
    assert kinds(check_plan(plan, read_metrics([log_of(tmp_path, text)]))) == [FindingKind.ACCEPTANCE_FELL]


def test_collapse_in_iterations(tmp_path: Path) -> None:
    def run(accepted: list[int]) -> list[dict[str, object]]:
        return [trtllm_iteration(100, 4, n) for n in accepted]

    iterations = run([180, 190, 170, 185, 175]) + [trtllm_iteration(0, 0, 0)] * 3 + run([80, 90, 85, 88, 82])
    plan = plan_of(bucket_of(CHAIN4, 1, 64, f=[1.0, 0.7, 0.5, 0.4, 0.2]))
    report = check_plan(plan, read_metrics([log_of(tmp_path, json.dumps(iterations))]))
    assert FindingKind.COLLAPSE_AFTER_PAUSE in kinds(report)


@pytest.mark.parametrize(("quiet", "told"), [(6, True), (4, False)])
def test_drafting_that_stops_for_good(tmp_path: Path, quiet: int, told: bool) -> None:
    """TensorRT-LLM's acceptance_rate_threshold: five iterations that draft, then none."""
    iterations = [trtllm_iteration(100, 4, 180)] * 5 + [trtllm_iteration(0, 0, 0)] * quiet
    plan = plan_of(bucket_of(CHAIN4, 1, 64, f=[1.0, 0.7, 0.5, 0.4, 0.2]))
    report = check_plan(plan, read_metrics([log_of(tmp_path, json.dumps(iterations))]))
    found = [f for f in report.findings if f.kind is FindingKind.STOPPED_FOR_GOOD]
    assert bool(found) == told
    if told:
        assert "acceptance_rate_threshold" in found[0].next_step
        assert "in the last 6 of 11 iterations" in found[0].seen


def test_counters_that_stand_still(tmp_path: Path) -> None:
    names = ("drafts", "draft_tokens", "accepted_tokens")
    text = "".join(f'vllm:spec_decode_num_{name}_total{{engine="0"}} 0.0\n' for name in names)
    with pytest.raises(NoDraftsError):
        read_evidence([log_of(tmp_path, text)])
    metrics = read_metrics([log_of(tmp_path, text)])
    assert metrics.drafted_nothing
    assert kinds(check_plan(CHAINS, metrics)) == [FindingKind.NOT_ACTIVE]
    silent = read_metrics([log_of(tmp_path, vllm_line(0, (0.0, 0.0)) + "\n")])
    assert silent.drafted_nothing


def test_windows_show_more_error_than_counts_tell(tmp_path: Path) -> None:
    lines = [vllm_line(1000, (0.9, 0.8, 0.7, 0.6)), vllm_line(1000, (0.3, 0.2, 0.1, 0.1))] * 5
    (source,) = read_metrics([log_of(tmp_path, "\n".join(lines))]).sources
    assert source.length == pytest.approx(1 + (3.0 + 0.7) / 2)
    assert source.error == pytest.approx(np.std([4.0, 1.7] * 5, ddof=1) / np.sqrt(10))


@pytest.mark.parametrize("gate", [0.0, 1.0, -0.1, float("nan")])
def test_a_gate_that_is_no_share(gate: float) -> None:
    with pytest.raises(InputError, match="no share"):
        check_plan(CHAINS, metrics_of(), gate=gate)


def test_all_positions_flatter() -> None:
    ranks = replace(CHAINS.sources.ranks, sampling="all-positions")
    plan: Plan = replace(CHAINS, sources=replace(CHAINS.sources, ranks=ranks))
    assert any(ALL_POSITIONS_FLATTER in note for note in check_plan(plan, metrics_of(counted(F4[1:]))).notes)


def test_head_accuracies_say_nothing_of_a_tree() -> None:
    heads = replace(counted([0.6, 0.4]), draft_tokens=None)
    report = check_plan(TREE, metrics_of(heads))
    assert report.comparisons == ()
    assert any("top guesses alone say nothing of a tree" in note for note in report.notes)
    assert check_plan(plan_of(bucket_of(CHAIN2, 1, 8, f=F4[:3])), metrics_of(heads)).comparisons


def test_two_sources_of_one_tree_are_not_one_inside_the_other() -> None:
    report = check_plan(CHAINS, metrics_of(counted([0.6, 0.4]), counted([0.9, 0.6])), batch=8)
    assert set(kinds(report)) == {FindingKind.ACCEPTANCE_FELL, FindingKind.ACCEPTANCE_ROSE}


def test_an_interval_of_drafts_taken_as_independent_counts_three_times() -> None:
    errors = []
    for documents in (None, 100):
        plan = plan_of(bucket_of(CHAIN4, 1, 4, f=F4, half_width=0.196), documents=documents)
        errors.append(check_plan(plan, metrics_of(counted(F4[1:]))).comparisons[0].change.planned_error)
    assert errors == pytest.approx([0.3, 0.1], rel=1e-4)


@pytest.mark.parametrize(
    ("drafted", "batch", "judged"),
    [
        (4.0, 3, 4),
        (3.6, 3, 4),  # the last drafts of a text are shorter
        (2.0, 3, None),
        (2.0, 8, 2),
        (2.4, 8, 2),  # steps of four requests while the batch filled up
        (1.977, 8, 2),
        (2.6, 8, None),
        (1.0, 8, None),
        (2.0, 32, None),  # the plan drafts nothing there
    ],
)
def test_a_bucket_is_judged_by_what_was_drafted_there(drafted: float, batch: int, judged: int | None) -> None:
    """Within half a token per draft, whatever number of positions the counters have."""
    source = replace(counted(F4[1:]), drafted=drafted, draft_tokens=4)
    report = check_plan(CHAINS, metrics_of(source), batch=batch)
    if judged is None:
        assert kinds(report) == [FindingKind.NOT_ACTIVE]
        assert report.findings[0].seen.startswith(f"{drafted:.3g} draft tokens per draft, the plan drafts ")
        return
    assert not report.drifted
    (only,) = report.comparisons
    assert (only.bucket.tree.depth, len(only.depths)) == (judged, judged)


@pytest.mark.parametrize(("batch", "told"), [(3.86, 4), (8.2, 16), (4.6, 16), (None, None), (900.0, None)])
def test_the_batch_is_that_of_the_file(batch: float | None, told: int | None) -> None:
    """A mean without a draft length, which alone could be of any bucket."""
    gauge = Measured(name="gauge", length=2.0, error=0.01, batch=batch)
    report = check_plan(CHAINS, metrics_of(gauge))
    assert [c.bucket.batch.max for c in report.comparisons] == ([] if told is None else [told])
    assert any("give --batch" in note for note in report.notes) == (told is None)
    assert [c.bucket.batch.max for c in check_plan(CHAINS, metrics_of(gauge), batch=2).comparisons] == [
        4
    ]  # who says it


def test_a_chain_that_runs_in_place_of_the_plan() -> None:
    three = counted(F4[1:4])  # what the plan's f says of three guesses: 1 + .7 + .5 + .35
    deployed = DraftSchedule.constant(DraftTree.chain(3))
    for batch in (2, 8, 32):
        assert kinds(check_plan(CHAINS, metrics_of(three), batch=batch)) == [FindingKind.NOT_ACTIVE]
        report = check_plan(CHAINS, metrics_of(three), batch=batch, deployed=deployed)
        assert not report.drifted
        assert report.comparisons[0].change.planned == pytest.approx(2.55)
    fell = check_plan(CHAINS, metrics_of(counted([0.5, 0.3, 0.2])), batch=8, deployed=deployed)
    assert kinds(fell) == [FindingKind.ACCEPTANCE_FELL]
    assert kinds(check_plan(CHAINS, metrics_of(counted(F4[1:3])), batch=8, deployed=deployed)) == [
        FindingKind.NOT_ACTIVE
    ]
    with pytest.raises(InputError, match="no acceptance of a chain of 5"):
        check_plan(CHAINS, metrics_of(three), deployed=DraftSchedule.constant(DraftTree.chain(5)))
    with pytest.raises(InputError, match="is no chain"):
        check_plan(CHAINS, metrics_of(three), deployed=DraftSchedule.constant(BUSHY))


def test_what_is_missing_to_tell() -> None:
    """Said once, and enough when it has come."""
    few = check_plan(CHAINS, metrics_of(counted(F4[1:], 200)), batch=2)
    (note,) = few.notes
    (number,) = re.findall(r"about ([\d,]+) more steps would tell a change of 10%", note)
    enough = 200 + int(number.replace(",", ""))
    assert check_plan(CHAINS, metrics_of(counted(F4[1:], round(enough * 1.05))), batch=2).notes == ()
    assert check_plan(CHAINS, metrics_of(counted(F4[1:], round(enough * 0.8))), batch=2).notes
    wide = plan_of(bucket_of(CHAIN4, 1, 4, f=F4, half_width=1.0), documents=100)
    assert "the plan's own interval is too wide" in check_plan(wide, metrics_of(counted(F4[1:]))).notes[0]


@needs_shared
@pytest.mark.parametrize(("batch", "judged"), [(None, "2-16"), (4, "2-16")])
def test_a_served_schedule_is_active(batch: int | None, judged: str) -> None:
    """vLLM 0.32 under lengths 3, 2, 1 at 4 requests: 2,319 drafted in 1,173 drafts, and three series of positions."""
    folder = SHARED / "data" / "faults" / "engines"
    metrics = read_metrics([folder / "m_v13c4_before.prom", folder / "m_v13c4_after.prom"])
    (source,) = metrics.sources
    assert source.drafted == pytest.approx(2319 / 1173)
    assert source.batch == pytest.approx((1615 + 24) / 425)
    report = check_plan(load_plan(folder / "tplan.yaml"), metrics, batch=batch)
    assert not report.drifted
    assert [c.bucket.batches for c in report.comparisons] == [judged]
    one = read_metrics([folder / "m_v13c1_before.prom", folder / "m_v13c1_after.prom"])
    assert one.sources[0].batch == pytest.approx(1.0)
    report = check_plan(load_plan(folder / "tplan.yaml"), one)
    assert [c.bucket.batches for c in report.comparisons] == ["1"]
    assert not report.drifted
