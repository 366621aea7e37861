"""What a report says of its drafts, and the counted chains that follow from it.

One law holds for all of them: tokens per step = 1 + accepted tokens / request-steps. A request-step is one request in
one step of the engine; where a drafter found nothing to propose (n-gram, suffix), the step had no draft, and counters
that engines keep per draft do not have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from treeopt.acceptance.conversions import with_bonus
from treeopt.acceptance.draft_lengths import DraftLengths
from treeopt.acceptance.importers.reading import SERVED, Tally
from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.profile import Conditions, RankEvidence
from treeopt.files.evidence_lines import Place, Printed

CONTRADICTION: Final = "these cannot both be right: check how the file was made, or leave this part out"
_FULL: Final = 0.95  # of K: below, a mean over drafts of several lengths is that of no chain


@dataclass(frozen=True, kw_only=True)
class DraftCounts:
    """One report on drafts of up to K tokens as it stands in a file; None for what it does not say.

    Args:
        place: where errors point.
        draft_tokens: K, as it is stated.
        drafts: how many drafts were verified.
        drafted: draft tokens in all of them.
        accepted: draft tokens that were accepted.
        steps: request-steps, those without a draft included.
        length: mean accepted length, the bonus token counted.
        rate: accepted over drafted tokens, a fraction.
        counts: `[K]` drafts accepted up to each position.
        rates: `[K]` the same as fractions of all drafts.
        histogram: `[K + 1]` drafts with exactly 0, 1, ... tokens accepted.
        places: where each position stands, if not all at one place.
        pads: positions that were drafted but never accepted may be missing from the end of the list.
        by_mean: K is what drafts had on average, rounded up, however many positions are listed.
        cut: the file ends in it: what contradicts itself was cut off.
        topk: guesses for each node of a tree; 1 for a chain.
        assumed_chain: the engine drafts trees too, and the report does not say which it was.
        output: tokens that the text has, where tokens past its end would be counted as accepted.
        at: where `length` and `rate` stand, if not at `place`.
        label: what tells it from other reports of the file.
    """

    place: Place
    draft_tokens: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    steps: int | None = None
    length: Printed | None = None
    rate: Printed | None = None
    counts: tuple[float, ...] = ()
    rates: tuple[Printed, ...] = ()
    histogram: tuple[int, ...] | None = None
    places: tuple[Place, ...] = ()
    pads: bool = False
    by_mean: bool = False
    cut: bool = False
    topk: int | None = None
    assumed_chain: bool = False
    output: int | None = None
    at: Mapping[str, Place] = field(default_factory=dict)
    label: str = ""
    conditions: Conditions = SERVED


@dataclass(frozen=True, kw_only=True)
class CountedChains:
    """Drafts of up to K tokens and what became of them; `accepted [K]` is empty where only totals were counted.

    `unsure` is by how much the number of drafts may be off where it was restored from printed digits.
    """

    draft_tokens: int
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    accepted: tuple[int, ...] = ()
    steps: int
    unsure: int = 0

    def __add__(self, other: CountedChains) -> CountedChains:
        return CountedChains(
            draft_tokens=self.draft_tokens,
            drafts=self.drafts + other.drafts,
            drafted_tokens=self.drafted_tokens + other.drafted_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            accepted=tuple(a + b for a, b in zip(self.accepted, other.accepted, strict=True)),
            steps=self.steps + other.steps,
            unsure=self.unsure + other.unsure,
        )

    @property
    def mean_accepted_length(self) -> float:
        """Tokens per request-step, the bonus token counted: 62 tokens accepted in 683 steps give 1.0908."""
        return with_bonus(self.accepted_tokens / self.steps)

    @property
    def drafted_per_draft(self) -> float:
        """Tokens of a draft on average: 1,384 tokens in 475 drafts give 2.914."""
        return self.drafted_tokens / self.drafts

    @property
    def evidence(self) -> RankEvidence:
        """Survival per position and request-step, or the mean where only totals were counted."""
        if self.accepted:
            return PositionSurvival.from_counts(drafts=self.steps, accepted=np.array(self.accepted, dtype=np.float64))
        return MeanLength(
            mean_accepted_length=self.mean_accepted_length, draft_tokens=self.draft_tokens, drafts=self.steps
        )

    @property
    def lengths(self) -> DraftLengths | None:
        """How often drafts have 1, 2, ... tokens by their mean; None where every step had one.

        Worked: 475 drafts with 1,384 tokens of 3 at most in 683 steps are 0.695, and 0.665 for two and three tokens.
        """
        if self.steps <= self.drafts:
            return None
        some = self.drafts / self.steps
        longer = (self.drafted_tokens / self.steps - some) / max(self.draft_tokens - 1, 1)
        return DraftLengths((some, *(longer,) * (self.draft_tokens - 1)))

    @property
    def tally(self) -> Tally:
        """The totals."""
        return Tally(
            draft_tokens=self.draft_tokens,
            drafts=self.drafts,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            steps=self.steps if self.steps > self.drafts else None,
            mean_accepted_length=self.mean_accepted_length,
        )

    @property
    def is_mixed(self) -> bool:
        """Whether these are totals over drafts of several lengths, so that their mean is that of no chain."""
        return not self.accepted and self.drafted_per_draft < _FULL * self.draft_tokens

    def as_long_as(self, draft_tokens: int) -> CountedChains:
        """The same as drafts of up to so many tokens, of which none went further."""
        more = (0,) * (draft_tokens - self.draft_tokens) if self.accepted else ()
        return replace(self, draft_tokens=draft_tokens, accepted=self.accepted + more)

    def trimmed(self) -> CountedChains:
        """The same without last positions that were not drafted: none was accepted there, and drafts are shorter."""
        accepted = max((i for i, n in enumerate(self.accepted, start=1) if n), default=0)
        K = max(math.ceil(self.drafted_per_draft), accepted, 1)
        return replace(self, draft_tokens=K, accepted=self.accepted[:K]) if self.draft_tokens > K else self
