from __future__ import annotations

import pytest

from treeopt.draft_family import Chains, DynamicTrees, StaticTrees, UniformTrees
from treeopt.engines.registry import ENGINES, find_engine
from treeopt.planner.engine_questions import format_questions
from treeopt.solve.problem import Limits, Problem

QUESTION = Problem(batches=(1, 8), limits=Limits(max_ranks=12))


@pytest.mark.parametrize(
    ("engine", "formats"),
    [
        ("vllm", ["schedule"]),
        ("vllm==0.22.0", ["chain"]),
        ("vllm==0.20.2", ["chain", "token-tree"]),
        ("sglang", ["triple", "adaptive"]),
        ("trtllm", ["schedule", "triple"]),
        ("trtllm==1.2.0", ["choices", "length"]),
        ("medusa", ["paths"]),
        ("llamacpp", ["flags"]),
    ],
)
def test_formats_that_hold_others_are_enough(engine: str, formats: list[str]) -> None:
    assert [f.format.name for f in format_questions(QUESTION, find_engine(engine).formats)] == formats


def test_limits_become_shapes() -> None:
    def only(engine: str, *, allow_off: bool = False) -> Problem:
        return format_questions(QUESTION, find_engine(engine).formats, allow_off=allow_off)[0].question

    vllm = only("vllm")
    assert (vllm.family, vllm.off_is_allowed, vllm.sharing.max_trees) == (Chains(per_batch=True), False, None)
    assert only("vllm", allow_off=True).off_is_allowed
    assert not only("llamacpp", allow_off=True).off_is_allowed
    assert only("llamacpp").sharing.max_trees == 1
    assert only("trtllm").family == Chains(per_batch=True, longest_first=True)
    assert isinstance(only("mlc").family, UniformTrees)
    medusa = only("medusa")
    assert (medusa.limits.max_ranks, medusa.sharing.max_trees, medusa.off_is_allowed) == (10, 1, False)
    assert only("eagle1").family == StaticTrees(max_ranks=10, min_depth=2, leading_parents=True)
    assert only("paths").off_is_allowed
    assert only("sequoia").limits.max_ranks == 12
    assert isinstance(only("openvino").family, DynamicTrees)


@pytest.mark.parametrize("engine", [e.name for e in ENGINES])
def test_every_engine_can_be_searched_for(engine: str) -> None:
    assert format_questions(QUESTION, find_engine(engine).formats)
