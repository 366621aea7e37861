"""The error of the price and of the acceptance in one interval, and the verdict that follows it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared import DATA, needs_shared

from treeopt.cost.hardware import load_hardware
from treeopt.cost.served.published import ERRORS, TYPICAL, ConstantsFrom, engine_of, served_constants
from treeopt.files.shipped import locate
from treeopt.planner.inputs import load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.planner.price_interval import with_price_error
from treeopt.solve.bucket import Bucket, Verdict
from treeopt.solve.problem import Problem


def buckets(batches: tuple[int, ...] = (8,), **names: str) -> tuple[Bucket, ...]:
    inputs = load_inputs(Names(ranks="eagle3-llama-3.1-8b-mt-bench", drafter="eagle3", **names))  # type: ignore[arg-type]
    return make_plan(Problem(batches=batches, context=300), inputs, command="test").buckets


def test_without_counts_the_interval_is_that_of_the_price() -> None:
    """By hand: the ranks carry no counts, so the speedup lies between S exp(-0.129) and S exp(0.121)."""
    (bucket,) = buckets(hardware="h100-sxm-vllm-0.24")
    low, high = ERRORS[ConstantsFrom.ENGINE].ratio
    assert bucket.speedup is not None
    assert bucket.speedup.level == 0.8
    assert bucket.speedup.low == pytest.approx(bucket.speedup.value * math.exp(-high))
    assert bucket.speedup.high == pytest.approx(bucket.speedup.value * math.exp(-low))


def test_published_eagle3_on_vllm_is_promised_as_it_was_served() -> None:
    """vLLM issue 20780: Llama-3.1-8B with EAGLE-3 at batch 1 gained 1.75x with K = 4 and 1.71x with K = 5."""
    (bucket,) = buckets((1,), hardware="h100-sxm-vllm-0.24")
    assert bucket.num_speculative_tokens in (4, 5)
    assert bucket.speedup is not None
    assert bucket.speedup.value == pytest.approx(1.73, rel=0.05)
    assert bucket.verdict is Verdict.PAYS


@needs_shared
def test_the_same_served_with_its_own_rates_is_promised_within_its_interval() -> None:
    """The issue's rates by position, its measured 1.75x with K = 4 and 1.71x with K = 5; once K = 5 at 2.46x.

    The constants are those of the issue and of a run of vLLM that was faster, each with the same weight.
    """
    ranks = str(DATA / "faults" / "vllm20780_eagle3_pos.yaml")
    inputs = load_inputs(Names(ranks=ranks, drafter="eagle3"))
    (bucket,) = make_plan(Problem(batches=(1,), context=300), inputs, command="test").buckets
    assert bucket.num_speculative_tokens in (4, 5)
    assert bucket.speedup is not None
    assert bucket.speedup.value == pytest.approx(1.71, rel=0.12)
    assert bucket.speedup.low is not None
    assert bucket.speedup.high is not None
    assert bucket.speedup.low < 1.71 < 1.75 < bucket.speedup.high


@given(st.sampled_from((1, 4, 16, 64, 256)), st.sampled_from(("l40s", "h200-sxm-sglang-0.5.14", "a100-sxm-trtllm-1.0")))
def test_verdict_and_interval_agree(batch: int, hardware: str) -> None:
    """It pays only where the whole interval is above 1, and what would decide is told only where it covers 1."""
    (bucket,) = buckets((batch,), hardware=hardware)
    gain = bucket.speedup if bucket.speculate else bucket.chain_speedup
    assert gain is not None
    assert gain.low is not None
    assert gain.high is not None
    if gain.low > 1:
        assert bucket.verdict is Verdict.PAYS
    elif gain.high < 1:
        assert bucket.verdict is Verdict.DOES_NOT_PAY
    else:
        assert bucket.verdict is Verdict.NOT_KNOWN
    assert (bucket.pays_if is None) == (bucket.verdict is not Verdict.NOT_KNOWN)
    assert list(bucket.contradictions()) == []


def test_what_the_engine_may_add_is_where_the_speedup_is_one() -> None:
    """An engine that adds just as much as is told makes the draft as fast as plain decoding, term by term."""
    inputs = load_inputs(Names(hardware="l40s"))
    (bucket,) = make_plan(Problem(batches=(32,)), inputs, command="test").buckets
    assert bucket.pays_if is not None
    assert bucket.plain is not None
    terms = inputs.kernels.terms(
        batch=32,
        nodes=bucket.nodes,
        depth=bucket.depth,
        widths=bucket.tree.expanded_widths.tolist(),
        context=bucket.context.max,
    )
    plain = inputs.kernels.terms(batch=32, nodes=1, depth=0, widths=[0], context=bucket.context.max)
    step_s = bucket.step_time_s - (terms.engine_s - plain.engine_s) + bucket.pays_if.extra_ms_below * 1e-3
    assert bucket.acceptance_length.value / step_s == pytest.approx(1 / bucket.plain.step_time_s)


def test_a_wider_error_gives_a_wider_interval() -> None:
    inputs = load_inputs(Names(ranks="example", hardware="l40s"))
    (bucket,) = make_plan(Problem(batches=(8,)), inputs, command="test").buckets
    own = with_price_error(bucket, ERRORS[ConstantsFrom.OWN], inputs.kernels)
    assert own.speedup is not None
    assert bucket.speedup is not None
    assert own.speedup.low is not None
    assert bucket.speedup.low is not None
    assert own.speedup.low > bucket.speedup.low


@pytest.mark.parametrize(
    ("hardware", "drafter", "basis"),
    [
        ("h100-sxm-vllm-0.24", "eagle", ConstantsFrom.OWN),
        ("h100-sxm-vllm-0.24", "eagle3", ConstantsFrom.ENGINE),
        ("h100-sxm-vllm-0.24", "mtp", ConstantsFrom.TYPICAL),
        ("a100-sxm-sglang-0.5.10", "eagle3", ConstantsFrom.ENGINE),
        ("b200-trtllm-1.3", "eagle3", ConstantsFrom.TYPICAL),
        ("l40s", "eagle", ConstantsFrom.TYPICAL),
        ("h200-sxm-vllm-0.24", "eagle", ConstantsFrom.ENGINE),
    ],
)
def test_whose_constants_are_taken(hardware: str, drafter: str, basis: ConstantsFrom) -> None:
    found = served_constants(load_hardware(locate("hardware", hardware).path), drafter)
    assert found.basis is basis
    assert found.steps.step_s > 0


def test_what_is_published_of_another_generation_is_not_taken_and_is_said() -> None:
    hardware = load_hardware(locate("hardware", "h200-sxm-vllm-0.24").path)
    assert hardware.measurement is not None
    old = replace(hardware, measurement=replace(hardware.measurement, engine="vllm-0.6.3"))
    found, ours = served_constants(old, "eagle3"), served_constants(hardware, "eagle3")
    assert (found.basis, found.steps, found.runs_of) == (ConstantsFrom.TYPICAL, TYPICAL, "vLLM V1")
    assert ours.runs_of == "vLLM V1, H100, bf16, tp 1, April to July 2025"


def test_what_the_constants_are_from_is_said() -> None:
    def said(**names: str) -> list[str]:
        inputs = load_inputs(Names(ranks="eagle3-llama-3.1-8b-mt-bench", drafter="eagle3", **names))  # type: ignore[arg-type]
        return [note.text for note in inputs.notes(8, 300, 4) if "engine adds" in note.text]

    (published,) = said(hardware="h200-sxm-sglang-0.5.14")
    assert "(SGLang 0.5, H200, bf16 and fp8_block, tp 1 to 8, December 2025), not of 0.5.14 itself" in published
    (typical,) = said(hardware="b200-trtllm-1.3")
    assert "is not published; typical times count" in typical


def test_engines_of_profiles() -> None:
    assert engine_of(load_hardware(locate("hardware", "h100-sxm-trtllm-1.3").path)) == "trtllm"
    assert engine_of(load_hardware(locate("hardware", "l40s").path)) is None
    assert TYPICAL.evidence is None


def test_step_times_of_the_user_carry_no_error_of_others(tmp_path: object) -> None:
    from pathlib import Path

    rows = Path(str(tmp_path)) / "rows.csv"
    rows.write_text("batch,k,step_ms\n8,0,7.0\n8,1,8.0\n8,2,8.5\n8,3,9.0\n")
    (bucket,) = buckets((8,), hardware="h100-sxm-vllm-0.24", cost=str(rows))
    assert bucket.speedup is not None
    assert not bucket.speedup.has_interval
    assert bucket.pays_if is None
