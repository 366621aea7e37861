"""Where the evidence is not what was asked: what it was measured under, and in which direction the answer errs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from treeopt.acceptance.intervals import MIN_DOCUMENTS
from treeopt.acceptance.profile import Conditions
from treeopt.acceptance.published import same_target
from treeopt.acceptance.replay import ALL_POSITIONS_FLATTER
from treeopt.acceptance.rules import (
    BLOCK,
    GREEDY,
    INDEPENDENT_REJECTION,
    RECURSIVE_REJECTION,
    TARGET_SAMPLE,
    TYPICAL,
)
from treeopt.acceptance.traffic import Part
from treeopt.answer import Note
from treeopt.cost.drafter import PRICED_AS
from treeopt.files.shipped import DEFAULT_RANKS
from treeopt.planner.names import Names

# Rules by how often they accept the same guesses, rarest first: a sample of the target meets the drafter's first guess
# less often than its likeliest token does; guesses drawn from the drafter are rejected less than fixed ones.
_ACCEPTING: Final = (TARGET_SAMPLE, INDEPENDENT_REJECTION, RECURSIVE_REJECTION, BLOCK, GREEDY, TYPICAL)
# Drafters by the acceptance length that is published for them on the same targets, shortest first.
_GUESSING: Final = ("medusa", "eagle", "eagle3")
_KINDS: Final = {
    "dflash2": r"dflash-?2",
    "dflash": r"dflash",
    "dspark": r"dspark",
    "jetspec": r"jetspec",
    "peagle": r"\bp-?eagle",
    "pard": r"\bpard\b",
    "suffix": r"\bsuffix\b",
    "eagle3": r"eagle-?_?3",
    "eagle": r"eagle",
    "medusa": r"medusa",
    "mtp": r"\bmtp\b|nextn",
}
_NUMBERS: Final = re.compile(r"\d+")
_TOO_HIGH: Final = "so the acceptance length here is likely too high"
_TOO_LOW: Final = "so the acceptance length here is likely too low"
_UNKNOWN: Final = "in which direction the acceptance length here is off is not known"


def evidence_notes(parts: Sequence[Part], names: Names, model: str, drafter: str | None, context: int) -> list[Note]:
    """What a reader must know of every part of the evidence, its differences from the question first.

    Args:
        parts: the kinds of traffic.
        names: the question's inputs; its rule and temperature are those that will be served.
        model: the target that is priced.
        drafter: the kind of drafter that the step is priced with; None where a table of the user's own prices it.
        context: the longest committed prefix that was asked for.
    """
    return [note for part in parts for note in _of_part(part, names, model, drafter, context)]


def _of_part(part: Part, names: Names, model: str, drafter: str | None, context: int) -> Iterator[Note]:
    conditions = part.profile.conditions
    if part.profile.name == DEFAULT_RANKS:
        yield Note.warning(f"ranks are {part.profile.note}; measure yours and pass --ranks")
    elif part.profile.note:
        yield Note.note(f"ranks {part.name}: {part.profile.note}")
    if part.profile.source and not same_target(conditions.target or "", model):
        yield Note.warning(
            f"ranks {part.name} are of {conditions.target or 'a pair that is not stated'}, not of {model}: others' "
            "numbers of another model; measure yours and pass --ranks"
        )
    if drafter is not None:
        yield from _of_drafter(part.name, conditions, drafter)
    yield from _of_rule(part.name, conditions, names.rule)
    yield from _of_temperature(part.name, conditions, names.temperature)
    yield from _of_context(part.name, conditions, context)
    if part.trace is None and conditions.sampling == "all-positions":
        yield Note.warning(
            f"ranks {part.name}: {ALL_POSITIONS_FLATTER}, and without documents, so that the interval "
            "is several times too narrow; give a trace with doc_id and pos"
        )
    if part.trace is not None and part.trace.documents < MIN_DOCUMENTS:
        yield Note.note(f"ranks {part.name}: {part.trace.documents} documents are too few for an interval")


def drafter_kind(recorded: str | None) -> str | None:
    """The kind of drafter that a profile's free text names; None where it names none that is priced."""
    text = (recorded or "").lower()
    collected = PRICED_AS.get(text.partition(":")[0])
    return collected or next((kind for kind, words in _KINDS.items() if re.search(words, text)), None)


def _of_drafter(name: str, conditions: Conditions, ours: str) -> Iterator[Note]:
    theirs = drafter_kind(conditions.drafter)
    if theirs is None or theirs == ours:
        return
    off = _direction(_GUESSING, theirs, ours)
    yield Note.warning(
        f"ranks {name} are of the drafter {conditions.drafter}, the step is priced with {ours}, {off}: pass "
        f"--drafter {'model:NAME' if theirs == 'model' else theirs}"
    )


def _of_rule(name: str, conditions: Conditions, ours: str | None) -> Iterator[Note]:
    theirs = conditions.rule
    if ours is None or theirs is None or theirs == ours:
        return
    off = _direction(_ACCEPTING, theirs, ours)
    yield Note.warning(f"ranks {name} were measured under {theirs}, {ours} was asked for, {off}")


def _of_temperature(name: str, conditions: Conditions, ours: float | None) -> Iterator[Note]:
    theirs = conditions.temperature
    if ours is None or theirs is None or theirs == ours:
        return
    off = _TOO_HIGH if theirs < ours else _TOO_LOW
    yield Note.warning(
        f"ranks {name} were measured at temperature {theirs:g}, {ours:g} was asked for: the hotter, the fewer guesses "
        f"are accepted, {off}"
    )


def _of_context(name: str, conditions: Conditions, ours: int) -> Iterator[Note]:
    """The range is free text with one number or two: 512-2048, up to 4096."""
    numbers = [int(number) for number in _NUMBERS.findall((conditions.context or "").replace(",", ""))]
    if not numbers or (min(numbers) if len(numbers) > 1 else 0) <= ours <= max(numbers):
        return
    off = _TOO_HIGH if ours > max(numbers) else _TOO_LOW
    yield Note.warning(
        f"ranks {name} were measured at contexts of {conditions.context} tokens, {ours} was asked for: drafters "
        f"trained on short texts accept less the longer the context, {off}"
    )


def _direction(rising: Sequence[str], theirs: str, ours: str) -> str:
    """How the answer errs where what was measured and what is asked both stand in an order of rising acceptance."""
    if theirs not in rising or ours not in rising:
        return _UNKNOWN
    return _TOO_HIGH if rising.index(theirs) > rising.index(ours) else _TOO_LOW
