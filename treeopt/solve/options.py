"""Drafts with their prices, and what a bucket says of them: losses, sensitivity, optimality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from treeopt.answer import Estimate
from treeopt.draft_family import Draft
from treeopt.files.typed import Count, NotNegative, Positive, Share
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class Option:
    """A draft priced where its own drafts start: E, the time of a step, and tokens/s of the whole batch."""

    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("num_speculative_tokens", "nodes", "depth", "acceptance_length", "tokens_per_s", "step_time_s", "draft"),
    )
    draft: Draft
    acceptance_length: Estimate
    step_time_s: Positive
    tokens_per_s: Estimate

    @property
    def nodes(self) -> int:
        """N, tokens that a request verifies per step, the root included."""
        return nodes_of(self.draft)

    @property
    def depth(self) -> int:
        """D, drafter passes."""
        return depth_of(self.draft)

    @property
    def num_speculative_tokens(self) -> int:
        """K = N - 1, as vLLM counts: of 9 nodes 8."""
        return self.nodes - 1


@dataclass(frozen=True, kw_only=True)
class Category:
    """What a bucket's tree does for one kind of traffic: its E, and the share it loses against its own best tree."""

    name: str
    weight: Share
    acceptance_length: NotNegative
    loss: Share


@dataclass(frozen=True, kw_only=True)
class TermSensitivity:
    """One term of the step time, in the step of the choice and in a plain one, and what its error would change.

    `error_p90` is the 90th percentile of the term's measured error as a share, None where it was not measured.
    `flip_...` is the factor on the term at which that rival is as fast as the choice; None where no factor above 0 is,
    where the rival is the choice itself, or where it already is as fast. `regret` is the share of tokens/s that the
    choice loses more than now against the best draft if the term is off by that error, the worse of both directions.
    """

    name: str
    step_s: NotNegative
    plain_s: NotNegative
    error_p90: NotNegative | None = None
    flip_runner_up: NotNegative | None = None
    flip_best_chain: NotNegative | None = None
    flip_plain: NotNegative | None = None
    regret: NotNegative | None = None


@dataclass(frozen=True, kw_only=True)
class CostFlip:
    """The error of one term that costs most: if it took `factor` times as long, `nodes` would be the best choice."""

    term: str
    factor: NotNegative
    regret: Share
    nodes: Count


@dataclass(frozen=True, kw_only=True)
class CostSensitivity:
    """Which terms make the step, and which errors of them matter, at the bucket's largest batch and context.

    `largest_term` takes most of the step, `growing_term` grows most over plain decoding (None for plain decoding);
    `worst` is None where no error was measured or none changes the answer.
    """

    largest_term: str
    growing_term: str | None
    worst: CostFlip | None = None
    terms: tuple[TermSensitivity, ...]


class WorstLoss(NamedTuple):
    """The largest loss at any listed batch size, and where."""

    batch: Count
    share: float


@dataclass(frozen=True, kw_only=True)
class EngineLoss:
    """What an engine's limits cost: the share of the objective lost at the bucket's largest batch, against the plan
    without them, whose draft there is `unrestricted` (its loss is below 0 where it is better), and the largest share
    at any listed batch size of the bucket. All None where the evidence has no widths: nobody knows.
    """

    share: Estimate | None
    unrestricted: Option | None
    worst: WorstLoss | None


class PaysIf(NamedTuple):
    """Where the price cannot tell: speculation pays if the engine adds less than this to a speculative step, in ms."""

    extra_ms_below: float


class AtBatch(NamedTuple):
    """A bucket's draft at one listed batch size: `loss` is the share of tokens/s below the best draft for it alone.

    1,900 tokens/s where another draft reaches 2,000 lose 0.05.
    """

    batch: Count
    tokens_per_s: Positive
    speedup: Positive | None
    loss: Share


class Minimax(NamedTuple):
    """The one draft whose largest loss at any listed batch size is smallest, priced at the largest, beside the one that
    gives most over the weights: that loss, and its mean tokens/s over the weights.
    """

    option: Option
    loss: Share
    mean_tokens_per_s: Positive


class Optimality(NamedTuple):
    """Whether the best draft is known, and the share by which any draft could at most beat the best one found.

    Where acceptance depends on draft starts trees are listed under the starts of the best ones, and the gap is to those
    that were (`listed_only`): exact is said of chains only, which are all priced at their own.

    Both are said of the draft before ties and neighbours were considered: where 12 nodes reach 1,004 tokens/s, and no
    draft more, the answer may be 9 nodes at 1,000, and is exact with a gap of 0.
    """

    exact: bool
    gap: NotNegative
    listed_only: bool = False


def nodes_of(draft: Draft) -> int:
    """N of a draft, the root included: of a chain of 4 tokens 5."""
    return len(draft) if isinstance(draft, DraftTree) else draft.num_draft_tokens


def depth_of(draft: Draft) -> int:
    """D of a draft, its drafter passes."""
    return draft.depth if isinstance(draft, DraftTree) else draft.num_steps
