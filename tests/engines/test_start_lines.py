"""What else a plan depends on is in the start line: how drafts are drawn and judged, which graphs are captured."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

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


def with_graphs(plan: Plan, **graphs: Any) -> Plan:
    hardware = replace(plan.sources.hardware, **graphs)
    return replace(plan, sources=replace(plan.sources, hardware=hardware))


def test_graphs_that_the_plan_was_priced_with_are_captured(plan: Plan) -> None:
    asked = with_graphs(plan, capture_tokens=(1, 4, 32), capture_limit=2048)
    launch = export(asked, find_engine("vllm"), Setup(drafter="eagle3")).launch
    assert launch.endswith(" --cudagraph-capture-sizes 1 4 32 --max-cudagraph-capture-size 2048")
    assert "capture" not in export(asked, find_engine("vllm"), Setup(drafter="eagle3", device="cpu")).launch
    assert "capture" not in export(plan, find_engine("vllm"), Setup(drafter="eagle3")).launch


def test_steps_without_a_graph_are_told(planned: Planned) -> None:
    """200 requests with 3 guesses are 800 tokens, vLLM captures 512 by itself."""
    made = planned(Part(1, 8, chain(1), 400.0, 1, 400.0, 100.0), Part(9, 200, chain(3), 900.0, 3, 900.0, 800.0))
    notes = export(made, find_engine("vllm"), Setup(drafter="eagle3")).notes
    assert [note for note in notes if "no graph" in note] == [
        "steps of more than 512 tokens have no graph, the widest here has 800: --max-cudagraph-capture-size 800 "
        "captures it (--capture-limit 800 of search prices it so)"
    ]
    told = export(with_graphs(made, capture_limit=800), find_engine("vllm"), Setup(drafter="eagle3"))
    assert not any("no graph" in note for note in told.notes)
