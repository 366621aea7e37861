"""What serving counters tell: how far a chain of first guesses got, or only how far it got on average.

Both kinds see rank 0 alone. They support chains of any length up to the one that ran, and never a second guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.acceptance.conversions import (
    accepted_from_survival,
    conditional_from_survival,
    constant_from_mean,
    mean_from_survival,
    nodes_from_draft_tokens,
    survival_from_accepted,
    survival_from_conditional,
)
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.table import DepthRankModel
from treeopt.arrays import FloatArray

MAX_DRAFT_TOKENS = 1024  # far above what any engine drafts, far below what an absurd number would allocate


@dataclass(frozen=True, kw_only=True)
class PositionSurvival:
    """Probability `[D]` that the first i drafts of a chain were all accepted, and the drafts behind it if counted.

    Raises:
        EvidenceError: a value outside 0 to 1, or one that is larger than the one before it.
    """

    survival: FloatArray
    drafts: float | None = None

    def __post_init__(self) -> None:
        _check_survival(self.survival, 1.0, key="probabilities")

    @classmethod
    def from_counts(cls, *, drafts: float, accepted: FloatArray) -> PositionSurvival:
        """From the number of drafts and, per position, how many had all tokens up to there accepted."""
        if not np.isfinite(drafts) or drafts <= 0:
            raise EvidenceError(f"{drafts:g} drafts", keys=("drafts",), hint="give how many drafts were verified")
        _check_survival(accepted, drafts, key="accepted")
        return cls(survival=survival_from_accepted(accepted, drafts), drafts=drafts)

    @property
    def accepted(self) -> FloatArray | None:
        """`[D]` drafts accepted up to each position, where they were counted."""
        return None if self.drafts is None else accepted_from_survival(self.survival, self.drafts)

    @property
    def trials(self) -> float | None:
        """Drafts behind the evidence, where they were counted."""
        return self.drafts

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per step of the whole chain, the bonus token counted."""
        return mean_from_survival(self.survival)

    def model(self) -> DepthRankModel:
        """A path model with one rank: exact for every shorter chain, whatever the joint law."""
        return DepthRankModel(conditional_from_survival(self.survival)[:, None])


@dataclass(frozen=True, kw_only=True)
class MeanLength:
    """One mean accepted length (bonus token counted) of chains of K drafts.

    Raises:
        EvidenceError: K out of range, or a mean that K drafts cannot have.
    """

    mean_accepted_length: float
    draft_tokens: int
    drafts: float | None = None

    def __post_init__(self) -> None:
        K, longest = self.draft_tokens, nodes_from_draft_tokens(self.draft_tokens)
        if not 1 <= K <= MAX_DRAFT_TOKENS:
            raise EvidenceError(
                f"{K} draft tokens: expected 1 to {MAX_DRAFT_TOKENS}",
                keys=("draft_tokens",),
                hint="draft tokens are the drafts per step, without the root",
            )
        if not 1.0 <= self.mean_accepted_length <= longest:
            raise EvidenceError(
                f"mean accepted length {self.mean_accepted_length:g}: {K} drafts give 1 to {longest}",
                keys=("mean_accepted_length",),
                hint="it counts the bonus token; if yours does not, say `bonus_counted: false`",
            )

    @property
    def trials(self) -> float | None:
        """Drafts behind the evidence, where they were counted."""
        return self.drafts

    @cached_property
    def assumed_acceptance(self) -> float:
        """The assumption: every draft is accepted with this same probability, given the ones before it.

        Measured acceptance rises or falls along the chain, so chains far from K long are extrapolated.
        """
        return constant_from_mean(self.mean_accepted_length, self.draft_tokens)

    @property
    def survival(self) -> FloatArray:
        """`[K]` probability that the first i drafts are all accepted, under the assumption."""
        return survival_from_conditional(np.full(self.draft_tokens, self.assumed_acceptance))

    def model(self) -> DepthRankModel:
        """A path model with one rank and the assumed acceptance at every depth."""
        return DepthRankModel(np.full((self.draft_tokens, 1), self.assumed_acceptance))


def _check_survival(values: FloatArray, total: float, *, key: str) -> None:
    if values.ndim != 1 or not 1 <= len(values) <= MAX_DRAFT_TOKENS:
        raise EvidenceError(
            f"expected one value for each of 1 to {MAX_DRAFT_TOKENS} positions",
            keys=(key,),
            hint="list them in the order of the draft",
        )
    before = total
    for i, value in enumerate(values.tolist()):
        if not np.isfinite(value) or not 0 <= value <= total:
            raise EvidenceError(
                f"{value:g} at position {i}: expected 0 to {total:g}",
                keys=(key, i),
                hint="a position cannot be accepted more often than it was drafted",
            )
        if value > before:
            raise EvidenceError(
                f"{value:g} at position {i} is more than {before:g} at position {i - 1}",
                keys=(key, i),
                hint="the first i drafts are accepted together: conditional rates must be multiplied up first",
            )
        before = value
