"""Contradictions inside one file: reported with both numbers and their place, never averaged away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treeopt.acceptance.position import MAX_DRAFT_TOKENS
from treeopt.files.evidence_lines import Place

LENGTH_ROUNDING: Final = 0.0051  # engines print mean lengths with two decimals
_HINT: Final = "these cannot both be right: check how the file was made, or leave this part out"


def check_accepted(place: Place, *, drafted: float, accepted: float) -> None:
    """No more tokens are accepted than drafted."""
    if accepted > drafted:
        raise place.error(f"{accepted:.10g} draft tokens accepted, but only {drafted:.10g} drafted", hint=_HINT)


def check_draft_tokens(place: Place, draft_tokens: int) -> None:
    """K is a length that engines draft, and none that would exhaust memory."""
    if not 1 <= draft_tokens <= MAX_DRAFT_TOKENS:
        raise place.error(f"{draft_tokens} draft tokens per step", hint=f"expected 1 to {MAX_DRAFT_TOKENS}")


def check_drafted(place: Place, *, drafts: float, drafted: float, draft_tokens: int) -> None:
    """No draft is longer than K."""
    check_draft_tokens(place, draft_tokens)
    if drafted > drafts * draft_tokens:
        raise place.error(
            f"{drafted:.10g} tokens drafted, but {drafts:.10g} drafts of {draft_tokens} "
            f"make at most {drafts * draft_tokens:.10g}",
            hint=_HINT,
        )


def check_survival(place: Place, values: Sequence[float], total: float, *, places: Sequence[Place] = ()) -> None:
    """Per-position counts or rates lie in 0 to `total` and do not rise: position i needs all positions before it.

    `places`: where each value stands, if not all at one place.
    """
    before = total
    for i, value in enumerate(values):
        place = places[i] if places else place
        if value > total:
            raise place.error(f"{value:.10g} at position {i}: more than {total:.10g}", hint=_HINT)
        if value > before:
            raise place.error(
                f"acceptance rises from {before:.10g} at position {i - 1} to {value:.10g} at position {i}",
                hint="a position counts only if all positions before it were accepted: are these conditional rates?",
            )
        before = value


def check_mean(place: Place, *, stated: float, computed: float, source: str) -> None:
    """A stated mean accepted length is the one that its counts give."""
    if abs(stated - computed) > LENGTH_ROUNDING:
        raise place.error(f"mean accepted length {stated:.10g} stated, but {source} give {computed:.4g}", hint=_HINT)


def check_rate(place: Place, *, stated: float, computed: float, rounding: float, what: str = "acceptance rate") -> None:
    """A stated rate (fraction) is the one that its counts give."""
    if stated > 1.0:
        raise place.error(f"{what} {stated:.2%}: more than 100 %", hint="is this percent, or a fraction?")
    if abs(stated - computed) > rounding:
        raise place.error(f"{what} {stated:.4g} stated, but the counters give {computed:.4g}", hint=_HINT)


def check_output(place: Place, *, steps: float, accepted: float, emitted: float) -> None:
    """Steps do not accept more tokens than the output has: engines count drafts past the end of the text.

    vllm-project/vllm#56101 describes the case.
    """
    if steps + accepted > emitted:
        raise place.error(
            f"{steps:.10g} steps and {accepted:.10g} accepted tokens make {steps + accepted:.10g}, "
            f"but the output has {emitted:.10g}: tokens past its end were counted",
            hint="let requests run to their token limit (ignore_eos), or leave this request out",
        )
