"""Ranks of drafts that are drawn from the drafter: the engine is told to draw them, or it is said that it is not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from engines.conftest import Part, Planned
from engines.samples import chain

from treeopt.engines.exporting import Export, export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.errors import InputError
from treeopt.plan.plan import Plan, Verification

BLOCK, DRAWN = "block", "recursive-rejection"


@pytest.fixture
def plan(planned: Planned) -> Plan:
    return planned(Part(1, 8, chain(3), 400.0, 3, 400.0, 100.0))


def exported(plan: Plan, rule: str, engine: str, setup: Setup) -> Export:
    return export(replace(plan, verification=Verification(rule=rule, temperature=1.0)), find_engine(engine), setup)


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("greedy", {}),
        ("target-sample", {}),  # the drafter's best guesses, which is vLLM's default
        (DRAWN, {"draft_sample_method": "probabilistic"}),
        (BLOCK, {"draft_sample_method": "probabilistic", "rejection_sample_method": "block"}),
    ],
)
def test_vllm_is_told_how_drafts_are_drawn_and_judged(plan: Plan, rule: str, settings: dict[str, str]) -> None:
    found = exported(plan, rule, "vllm", Setup(drafter="eagle3"))
    config = json.loads(str(found.content))
    assert {k: v for k, v in config.items() if "sample_method" in k} == settings
    # Runner V1 takes block verification for the standard one without a word.
    assert found.launch.startswith("VLLM_USE_V2_MODEL_RUNNER=1 ") == (rule == BLOCK)


def test_blocks_need_a_gpu_in_vllm(plan: Plan) -> None:
    with pytest.raises(InputError, match="blocks on model runner V2 alone"):
        exported(plan, BLOCK, "vllm", Setup(drafter="eagle3", device="cpu"))


def test_drafters_without_a_law_are_not_told_to_draw(plan: Plan) -> None:
    assert "sample_method" not in str(exported(plan, DRAWN, "vllm", Setup(drafter="ngram")).content)


@pytest.mark.parametrize(
    ("rule", "flag"),
    [(DRAWN, "--speculative-use-rejection-sampling"), (BLOCK, "--speculative-use-block-verification")],
)
def test_sglang_is_told_too(plan: Plan, rule: str, flag: str) -> None:
    found = exported(plan, rule, "sglang", Setup(drafter="eagle3"))
    assert flag in found.launch.split()
    assert not any("ranks are under" in note for note in found.notes)


@pytest.mark.parametrize("engine", ["vllm==0.24.0", "sglang==0.5.22", "trtllm", "transformers"])
@pytest.mark.parametrize("rule", [BLOCK, DRAWN])
def test_a_rule_that_nothing_switches_on_is_said(plan: Plan, rule: str, engine: str) -> None:
    found = exported(plan, rule, engine, Setup(drafter=find_engine(engine).usual_drafter))
    assert any(note.startswith(f"the plan's ranks are under {rule}, which nothing here") for note in found.notes)
    assert not any("ranks are under" in note for note in exported(plan, "greedy", engine, Setup()).notes)
