"""What a decoder reports: its steps, and the tokens as they come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class StepTimes(NamedTuple):
    """Where a step's time went, in seconds; reading the target's answer is part of `verify_s`."""

    draft_s: float = 0.0
    verify_s: float = 0.0
    accept_s: float = 0.0
    compact_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The whole step."""
        return sum(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepReport:
    """What one step did, one entry per running request.

    Args:
        kind: "prefill" reads prompts and emits the first token of each; "verify" is a decoding step.
        requests: their numbers in the list of prompts.
        nodes: N, the tokens that each verified, root included.
        accepted: draft tokens that each accepted.
        emitted: the tokens that each emitted; one more than accepted, unless an end token was accepted.
        finished: whether that was its last step.
    """

    kind: Literal["prefill", "verify"]
    requests: tuple[int, ...]
    nodes: tuple[int, ...]
    accepted: tuple[int, ...]
    emitted: tuple[tuple[int, ...], ...]
    finished: tuple[bool, ...]
    times: StepTimes

    @property
    def batch(self) -> int:
        """B, the requests of the step."""
        return len(self.requests)


class Emission(NamedTuple):
    """Tokens of one request as they come out of a stream."""

    request: int
    tokens: tuple[int, ...]
    finished: bool
