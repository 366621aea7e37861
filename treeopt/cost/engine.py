"""What a serving engine takes beyond the kernels of a step: constants, and the sizes that it captured graphs for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.errors import InputError
from treeopt.files.typed import Between, Count, NotNegative, Whole

# What one step took more past the largest captured graph: 120.6 ms for 512 tokens of Llama-3.1-8B, where the steps of
# 4 and 5 guesses before it (15.7, 17.5 ms) lead to 21.2 ms. Posted with vLLM pull request 32374.
PUBLISHED_EAGER_S: Final = 0.0994

_SECONDS: Final = (
    *("step_s", "speculative_step_s", "speculative_request_s", "draft_pass_s", "verified_token_s"),
    "eager_s",
)
Seconds = Annotated[float, Between(0.0, 10.0)]
Tokens = Annotated[int, Between(1, 1 << 24)]


@dataclass(frozen=True, kw_only=True)
class StepsEvidence:
    """The served steps that the constants were fitted to, and how far off steps were that were left out of the fit.

    Attributes:
        model: the target that was served; several with commas between.
        drafter: its drafter.
        source: where the step times are from.
        rows: how many step times.
        max_tokens: largest B x N among them.
        median: median absolute error of left-out steps, as a share.
        p90: 90th percentile of the same.
        judged: drafts among them whose speedup was measured.
        misjudged: those that the constants say the opposite of: that they pay where they do not, or the reverse.
    """

    model: str
    drafter: str
    source: str
    rows: Count
    max_tokens: Count
    median: NotNegative
    p90: NotNegative
    judged: Whole = 0
    misjudged: Whole = 0


@dataclass(frozen=True, kw_only=True)
class EngineSteps:
    """Seconds that an engine adds to the kernels of a step.

    Attributes:
        step_s: per step.
        speculative_step_s: per step that verifies more than the last token.
        speculative_request_s: per request of such a step: looking guesses up, accepting and moving one by one.
        draft_pass_s: per pass of the drafter.
        verified_token_s: per token of B x N.
        capture_tokens: rising sizes, in tokens per step, that graphs were captured for: a step is padded to the next.
        capture_limit: largest captured size where it is known without the others; None is the last of
            `capture_tokens`, or no limit if there are none.
        eager_s: per step past the largest captured size, whose kernels are launched one by one.
        evidence: what the constants were fitted to; None if they were given.

    Raises:
        InputError: a negative time, or sizes that do not rise or exceed the limit.
    """

    SPARSE: ClassVar[bool] = True

    step_s: Seconds = 0.0
    speculative_step_s: Seconds = 0.0
    speculative_request_s: Seconds = 0.0
    draft_pass_s: Seconds = 0.0
    verified_token_s: Seconds = 0.0
    capture_tokens: tuple[Tokens, ...] = ()
    capture_limit: Tokens | None = None
    eager_s: Seconds = 0.0
    evidence: StepsEvidence | None = None

    def __post_init__(self) -> None:
        for name in _SECONDS:
            if not getattr(self, name) >= 0.0:  # NaN too
                raise InputError(f"{name}={getattr(self, name):g}", hint="an engine takes 0 seconds or more")
        sizes = self.capture_tokens
        if list(sizes) != sorted(set(sizes)) or any(size < 1 for size in sizes):
            raise InputError(
                f"capture sizes {_listed(sizes)}", hint="list each size once, smallest first, in tokens per step"
            )
        if self.capture_limit is not None and self.capture_limit < 1:
            raise InputError(f"a capture limit of {self.capture_limit} tokens", hint="give 1 token or more")
        if self.capture_limit is not None and self.capture_limit < max(sizes, default=1):
            raise InputError(
                f"a capture limit of {self.capture_limit} tokens below the captured sizes {_listed(sizes)}",
                hint="the limit is the largest captured size",
            )

    @property
    def largest_captured(self) -> int | None:
        """The most tokens per step that a graph holds; None without a limit."""
        return self.capture_limit or max(self.capture_tokens, default=None)

    def with_captures(self, sizes: tuple[int, ...] | None, limit: int | None) -> EngineSteps:
        """The same engine with other captured graphs; what is None stays, and sizes past a new limit go.

        Without a measured `eager_s` the published one is taken (`PUBLISHED_EAGER_S`).

        Raises:
            InputError: as the class.
        """
        if sizes is None and limit is None:
            return self
        kept = self.capture_tokens if sizes is None else sizes
        return replace(
            self,
            capture_tokens=tuple(size for size in kept if limit is None or size <= limit),
            capture_limit=limit,
            eager_s=self.eager_s or PUBLISHED_EAGER_S,
        )

    def padded(self, tokens: FloatArray) -> FloatArray:
        """`[...]` tokens that the kernels run for `tokens`: the next captured size, `tokens` past the largest."""
        if not self.capture_tokens:
            return tokens
        sizes = np.array((*self.capture_tokens, np.inf))
        at = np.searchsorted(sizes, tokens)
        return np.where(np.isinf(sizes[at]), tokens, sizes[at])

    def time_s(
        self, batch: npt.NDArray[np.int64], nodes: npt.NDArray[np.int64], *, passes: npt.NDArray[np.int64]
    ) -> FloatArray:
        """`[...]` seconds beyond the kernels.

        Args:
            batch: `[...]` running requests B.
            nodes: `[...]` tokens N that each verifies; 1 is plain decoding.
            passes: `[...]` passes of the drafter.
        """
        drafts = nodes > 1
        beyond_s = self.tokens_s(batch * nodes, looked_up=batch * drafts, drafted=drafts)
        return np.asarray(beyond_s + self.draft_pass_s * passes, dtype=np.float64)

    def tokens_s(
        self, tokens: npt.NDArray[Any], *, looked_up: npt.NDArray[np.int64] | int, drafted: npt.NDArray[np.bool_]
    ) -> FloatArray:
        """`[...]` seconds beyond the kernels of a step that verifies `tokens`, passes of the drafter not counted.

        Args:
            tokens: `[...]` tokens of all requests.
            looked_up: `[...]` requests that the drafter was asked for.
            drafted: `[...]` whether it gave anything.
        """
        taken = self.step_s + self.speculative_step_s * drafted + self.speculative_request_s * looked_up
        if self.largest_captured is not None:
            taken = taken + self.eager_s * (tokens > self.largest_captured)
        return np.asarray(taken + self.verified_token_s * tokens, dtype=np.float64)

    def notes(self, *, model: str, tokens: int) -> list[str]:
        """Sentences on where the constants are used beyond what they were fitted to."""
        found = []
        served = self.evidence
        if served and model not in served.model.split(", "):
            found.append(f"engine constants were fitted to served steps of {served.model}, not of {model}")
        if served and tokens > served.max_tokens:
            found.append(f"engine constants were fitted to {served.max_tokens} tokens per step, asked for {tokens}")
        if served and served.misjudged:
            found.append(
                f"implausible: of {served.misjudged} of {served.judged} served drafts the engine constants say the "
                "opposite of what was measured: whether they pay"
            )
        limit = self.largest_captured
        if self.eager_s == PUBLISHED_EAGER_S and limit is not None and tokens > limit:
            found.append(
                f"past {limit} tokens a step leaves the captured graphs: {self.eager_s * 1e3:.0f} ms are taken for it, "
                "as published once for an 8B model; measure yours with treeopt profile fit --steps"
            )
        return found


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes)) or "none"
