"""What an engine adds: padding and constants by hand, and the section of a hardware file."""

from __future__ import annotations

import numpy as np
import pytest

from treeopt.cost import EngineSteps
from treeopt.cost.engine import PUBLISHED_EAGER_S, StepsEvidence
from treeopt.errors import FileFormatError, InputError
from treeopt.files import typed
from treeopt.files.documents import parse_document
from treeopt.files.typed import yaml_text

SERVED = StepsEvidence(
    model="llama-3.1-8b", drafter="eagle", source="a stopwatch", rows=23, max_tokens=384, median=0.02, p90=0.06
)


def read(text: str) -> EngineSteps:
    return typed.read(EngineSteps, parse_document(text, name="gpu.yaml", what="hardware profile").root)


def test_tokens_are_padded_to_the_next_size_and_not_past_the_largest() -> None:
    engine = EngineSteps(capture_tokens=(1, 2, 4, 8))
    assert engine.padded(np.array([1.0, 2.0, 3.0, 5.0, 8.0, 9.0, 500.0])).tolist() == [1, 2, 4, 8, 8, 9, 500]
    assert EngineSteps().padded(np.array([3.0, 500.0])).tolist() == [3, 500]
    assert EngineSteps(capture_limit=8).padded(np.array([3.0, 500.0])).tolist() == [3, 500]


def test_the_constants_add_up() -> None:
    engine = EngineSteps(
        step_s=1e-3, speculative_step_s=4e-4, speculative_request_s=2e-5, draft_pass_s=6e-5, verified_token_s=7e-6
    )
    batch, nodes, passes = np.array([4, 4, 10]), np.array([1, 10, 4]), np.array([0, 3, 3])
    found = engine.time_s(batch, nodes, passes=passes)
    drafted = 1.4e-3 + 180e-6 + 280e-6  # 40 tokens each
    assert found == pytest.approx([1e-3 + 28e-6, drafted + 80e-6, drafted + 200e-6])


@pytest.mark.parametrize("sizes", [{"capture_tokens": (8, 384)}, {"capture_limit": 384}])
def test_a_step_past_the_largest_graph_pays_the_eager_penalty(sizes: dict[str, object]) -> None:
    engine = EngineSteps(eager_s=0.1, **sizes)  # type: ignore[arg-type]
    found = engine.time_s(np.array([64, 77]), np.array([6, 5]), passes=np.array(5))
    assert found.tolist() == [0.0, 0.1]


def test_without_graphs_there_is_no_penalty() -> None:
    found = EngineSteps(eager_s=0.1).time_s(np.array([1 << 20]), np.array([8]), passes=np.array(5))
    assert found.tolist() == [0.0]


def test_the_published_penalty_is_what_the_line_through_the_steps_before_leaves() -> None:
    # batch 64, K = 4, 5, 7: 15.70, 17.54, 120.57 ms
    assert pytest.approx((120.57 - (17.54 + 2 * (17.54 - 15.70))) * 1e-3, rel=1e-2) == PUBLISHED_EAGER_S


def test_other_captures_replace_those_of_the_profile() -> None:
    engine = EngineSteps(capture_tokens=(8, 64, 512), eager_s=0.2)
    assert engine.with_captures(None, None) is engine
    assert engine.with_captures((16, 32), None) == EngineSteps(capture_tokens=(16, 32), eager_s=0.2)
    limited = engine.with_captures(None, 100)
    assert (limited.capture_tokens, limited.largest_captured) == ((8, 64), 100)
    # without a measured penalty the published one
    assert EngineSteps().with_captures(None, 256) == EngineSteps(capture_limit=256, eager_s=PUBLISHED_EAGER_S)


def test_notes_say_where_the_constants_do_not_come_from() -> None:
    fitted = EngineSteps(step_s=1e-3, evidence=SERVED)
    assert fitted.notes(model="llama-3.1-8b", tokens=384) == []
    assert fitted.notes(model="qwen3-8b", tokens=385) == [
        "engine constants were fitted to served steps of llama-3.1-8b, not of qwen3-8b",
        "engine constants were fitted to 384 tokens per step, asked for 385",
    ]
    guessed = EngineSteps().with_captures(None, 256)
    assert guessed.notes(model="qwen3-8b", tokens=256) == []
    (note,) = guessed.notes(model="qwen3-8b", tokens=257)
    assert note.startswith("past 256 tokens a step leaves the captured graphs: 99 ms are taken for it")
    assert EngineSteps(eager_s=0.05).with_captures(None, 256).notes(model="qwen3-8b", tokens=257) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step_s": -1e-3}, "step_s=-0.001"),
        ({"verified_token_s": float("nan")}, "verified_token_s=nan"),
        ({"capture_tokens": (8, 4)}, "capture sizes 8, 4"),
        ({"capture_tokens": (0, 4)}, "capture sizes 0, 4"),
        ({"capture_tokens": (4, 8), "capture_limit": 6}, "a capture limit of 6 tokens below the captured sizes 4, 8"),
        ({"capture_limit": 0}, "a capture limit of 0 tokens"),
    ],
)
def test_what_no_engine_does_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EngineSteps(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "engine",
    [
        EngineSteps(),
        EngineSteps(step_s=9e-4, verified_token_s=7e-6, capture_tokens=(1, 2, 4), eager_s=0.1, evidence=SERVED),
        EngineSteps(speculative_step_s=4e-4, speculative_request_s=1e-5, draft_pass_s=6e-5, capture_limit=384),
    ],
)
def test_a_section_is_read_as_it_was_written(engine: EngineSteps) -> None:
    assert read(yaml_text(engine)) == engine


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("step_s: 1e-3\nstep_ms: 1", 2, "step_ms: unknown key"),
        ("step_s: -1e-3", 1, "step_s: -0.001 is out of range"),
        ("step_s: 1e-3\ncapture_tokens: [4, 2]", 1, "capture sizes 4, 2"),
        ("capture_tokens: [1, 2.5]", 1, "2.5 is not a whole number"),
        ("capture_limit: 0", 1, "capture_limit: 0 is out of range"),
        ("evidence:\n  model: x", 1, "'drafter' is missing"),
    ],
)
def test_a_broken_section_names_the_line(text: str, line: int, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        read(text)
    assert str(caught.value).startswith(f"gpu.yaml:{line}: ")
    assert message in str(caught.value)
    assert caught.value.hint
