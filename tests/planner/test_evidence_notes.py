"""Evidence of something else than what was asked: a warning, with the direction in which the answer errs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import traffic_of

from treeopt.acceptance.profile import Conditions
from treeopt.acceptance.rules import APPROXIMATE_RULES, GREEDY, RULES, TARGET_SAMPLE
from treeopt.answer import Level, Note
from treeopt.planner.evidence_notes import drafter_kind, evidence_notes
from treeopt.planner.names import Names

HIGH, LOW = "likely too high", "likely too low"


def said(
    conditions: Conditions, names: Names | None = None, *, drafter: str = "eagle", context: int = 2048
) -> list[Note]:
    (part,) = traffic_of([0.6, 0.1]).parts
    own = replace(part, profile=replace(part.profile, conditions=conditions))
    return evidence_notes([own], names or Names(), "llama-3.1-8b", drafter, context)


@pytest.mark.parametrize(
    ("conditions", "names", "drafter", "context", "words"),
    [
        (Conditions(temperature=0.0), Names(temperature=0.8), "eagle", 2048, ["temperature 0, 0.8 was asked", HIGH]),
        (Conditions(temperature=1.0), Names(temperature=0.0), "eagle", 2048, ["temperature 1, 0 was asked", LOW]),
        (Conditions(rule=GREEDY), Names(rule=TARGET_SAMPLE), "eagle", 2048, ["under greedy, target-sample", HIGH]),
        (Conditions(rule=TARGET_SAMPLE), Names(rule=GREEDY), "eagle", 2048, ["under target-sample, greedy", LOW]),
        (Conditions(context="512-2048"), Names(), "eagle", 32768, ["contexts of 512-2048 tokens, 32768", HIGH]),
        (Conditions(context="8,192-16,384"), Names(), "eagle", 1024, ["contexts of 8,192-16,384", LOW]),
        (Conditions(context="up to 4096"), Names(), "eagle", 8192, ["up to 4096", HIGH]),
        (Conditions(drafter="org/EAGLE3-LLaMA3.1"), Names(), "eagle", 2048, ["EAGLE3", "--drafter eagle3", HIGH]),
        (Conditions(drafter="Medusa heads"), Names(), "eagle", 2048, ["Medusa", "--drafter medusa", LOW]),
        (Conditions(drafter="ngram:3"), Names(), "eagle", 2048, ["ngram:3", "--drafter ngram", "is not known"]),
    ],
)
def test_what_differs_is_a_warning_with_its_direction(
    conditions: Conditions, names: Names, drafter: str, context: int, words: list[str]
) -> None:
    (note,) = said(conditions, names, drafter=drafter, context=context)
    assert note.level is Level.WARNING
    assert all(word in note.text for word in words), note.text


@pytest.mark.parametrize(
    ("conditions", "names", "context"),
    [
        (Conditions(), Names(temperature=0.8, rule=GREEDY), 10**6),  # the evidence does not say
        (Conditions(temperature=0.8, rule=GREEDY, context="512-4096", drafter="eagle head"), Names(), 2048),
        (Conditions(temperature=0.8, rule=GREEDY), Names(temperature=0.8, rule=GREEDY), 2048),
        (Conditions(context="up to 4096", drafter="a head of ours"), Names(), 1),
    ],
)
def test_what_is_alike_or_unsaid_is_no_warning(conditions: Conditions, names: Names, context: int) -> None:
    assert said(conditions, names, context=context) == []


@given(st.sampled_from(RULES), st.sampled_from(RULES))
def test_the_error_turns_round_when_the_rules_are_exchanged(theirs: str, ours: str) -> None:
    """Whatever the two rules: exchanged, too high becomes too low; approximate acceptance is never the lower one."""
    here = [note.text for note in said(Conditions(rule=theirs), Names(rule=ours))]
    there = [note.text for note in said(Conditions(rule=ours), Names(rule=theirs))]
    assert len(here) == len(there) == (theirs != ours)
    for one, other in zip(here, there, strict=True):
        assert (HIGH in one, LOW in one) == (LOW in other, HIGH in other)
        assert (HIGH in one) != (LOW in one)
        if theirs in APPROXIMATE_RULES:
            assert HIGH in one


@pytest.mark.parametrize(
    ("recorded", "kind"),
    [
        (None, None),
        ("a head of ours", None),
        ("zhuyksir/EAGLE3-Qwen3-30B-A3B-DenseHead", "eagle3"),
        ("yuhuili/EAGLE-3-LLaMA3.1", "eagle3"),
        ("yuhuili/EAGLE-LLaMA3-Instruct-8B", "eagle"),
        ("DeepSeek MTP, one layer", "mtp"),
        ("early-exit:12", "model"),
        ("ngram:vllm:1-3", "ngram"),
    ],
)
def test_drafters_are_known_by_their_names(recorded: str | None, kind: str | None) -> None:
    assert drafter_kind(recorded) == kind
