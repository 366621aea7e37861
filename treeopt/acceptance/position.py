"""What serving counters tell: how far a chain of first guesses got, or only how far it got on average.

Both kinds see rank 0 alone. They support chains of any length up to the one that ran, and never a second guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.conversions import (
    accepted_from_survival,
    conditional_from_survival,
    mean_from_survival,
    nodes_from_draft_tokens,
    survival_from_accepted,
    survival_from_conditional,
)
from treeopt.acceptance.dynamic_tree import DynamicTreeCaps, ModelValues
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.table import DepthRankModel
from treeopt.arrays import FloatArray
from treeopt.draft_family import DynamicTree

MAX_DRAFT_TOKENS: Final = 1024  # far above what any engine drafts, far below what an absurd number would allocate
_LOG_ODDS: Final = 36.0  # beyond, a probability is 0 or 1 in double precision
_HALVINGS: Final = 44


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


class Guess(NamedTuple):
    """How acceptances relate to each other where only their mean was measured.

    `fall` is the slope of a first guess's log-odds over the logarithm of its position; the r-th further guess is right
    in `share` / (r + 1) of the first one's share of what the guesses before it left.
    """

    fall: float
    share: float = 1.0


# The median of 34 published tables with three positions or more, and the range that holds 95 % of them; shares of
# further guesses as the project's own traces have them (docs/acceptance.md).
LIKELY: Final = Guess(fall=-0.25)
FALLS: Final = (-1.2, -0.25, 0.2)
SHARES: Final = (0.5, 1.0, 1.2)


@dataclass(frozen=True, kw_only=True)
class MeanLength:
    """One mean accepted length (bonus token counted) of chains of K drafts, or of a tree that the engine shapes.

    The mean is measured; how it is spread over positions is a guess: single acceptances fall as they do in published
    tables (`LIKELY`), from as high as gives the mean. A mean of 2.46 over three drafts is 0.70, 0.66 and 0.64.

    Raises:
        EvidenceError: K out of range, or a mean that what was drafted cannot have.
    """

    mean_accepted_length: float
    draft_tokens: int
    drafts: float | None = None
    tree: DynamicTree | None = None

    def __post_init__(self) -> None:
        K, longest = self.draft_tokens, nodes_from_draft_tokens(self.depth)
        if not 1 <= K <= MAX_DRAFT_TOKENS:
            raise EvidenceError(
                f"{K} draft tokens: expected 1 to {MAX_DRAFT_TOKENS}",
                keys=("draft_tokens",),
                hint="draft tokens are the drafts per step, without the root",
            )
        if not 1.0 <= self.mean_accepted_length <= longest:
            raise EvidenceError(
                f"mean accepted length {self.mean_accepted_length:g}: {self.depth} drafts give 1 to {longest}",
                keys=("mean_accepted_length",),
                hint="it counts the bonus token; if yours does not, say `bonus_counted: false`",
            )

    @property
    def depth(self) -> int:
        """The longest path: K of a chain, the drafter's steps of a tree."""
        return self.draft_tokens if self.tree is None else self.tree.num_steps

    @property
    def trials(self) -> float | None:
        """Drafts behind the evidence, where they were counted."""
        return self.drafts

    @property
    def survival(self) -> FloatArray:
        """`[depth]` probability that the first i first guesses are all accepted, under the guess."""
        return survival_from_conditional(self.model().rates[:, 0])

    def model(self, guess: Guess = LIKELY) -> DepthRankModel:
        """A path model with the measured mean, for acceptances that relate to each other like this."""
        if guess not in self._calibrated:
            self._calibrated[guess] = self._calibrate(guess)
        return self._calibrated[guess]

    @cached_property
    def _calibrated(self) -> dict[Guess, DepthRankModel]:
        return {}

    def _calibrate(self, guess: Guess) -> DepthRankModel:
        """By bisection of the first position's log-odds: the mean rises with them."""
        low, high = -_LOG_ODDS, _LOG_ODDS
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self._tokens(self._rates(middle, guess)) < self.mean_accepted_length:
                low = middle
            else:
                high = middle
        return DepthRankModel(self._rates((low + high) / 2, guess))

    def _rates(self, log_odds: float, guess: Guess) -> FloatArray:
        """`[depth, ranks]` acceptance of each guess."""
        log_odds_at = log_odds + guess.fall * np.log(np.arange(1, self.depth + 1))
        first = 1.0 / (1.0 + np.exp(-log_odds_at))
        ranks = 1 if self.tree is None else self.tree.topk
        rates, left = np.zeros((self.depth, ranks)), np.ones(self.depth)
        for rank in range(ranks):
            rates[:, rank] = left * first * (guess.share / (rank + 1) if rank else 1.0)
            left = left - rates[:, rank]
        return rates

    def _tokens(self, rates: FloatArray) -> float:
        if self.tree is None:
            return mean_from_survival(survival_from_conditional(rates[:, 0]))
        steps, topk, nodes = self.tree
        caps = DynamicTreeCaps(num_steps=steps, topk=topk, num_draft_tokens=nodes)
        return float(ModelValues.of(DepthRankModel(rates), caps).tokens(steps, topk)[nodes])


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
