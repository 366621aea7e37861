"""What an engine takes beyond its kernels, fitted to served steps and judged on batch sizes that were left out.

    step = kernels + step_s + verified_token_s B N + draft_pass_s D
         + [N > 1] (speculative_step_s + speculative_request_s B)

Least squares of the relative error with constants >= 0. Constants would absorb the errors of the kernel model, so how
many of them are used is chosen by leaving out one batch size at a time: none, the first, the first two, ... in the
order above, which is that of their weight in the published steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.cost.fit.eager import Eager, find_eager
from treeopt.cost.served.checks import refuse_other_unit
from treeopt.cost.served.step import ServedStep, StepArrays
from treeopt.cost.step_cost import StepCost
from treeopt.errors import InputError

CONSTANTS: Final = ("step_s", "verified_token_s", "speculative_step_s", "draft_pass_s", "speculative_request_s")
MIN_ROWS: Final = 8
MIN_BATCHES: Final = 2
ENOUGH_ROWS: Final = 12
_ROUGH: Final = 0.1  # published steps on fitted kernels are predicted to 3 %, on a datasheet to 5 %
# A speedup this close to 1 is a run's noise.
_NOISE: Final = 0.02
# A larger set must be better by more than this share: leaving out a handful of batch sizes is itself a noisy judge.
_WORTH: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Absolute errors, as shares of the measured time, of steps at batch sizes that were not fitted to."""

    median: float
    mean: float
    p90: float
    max: float

    @classmethod
    def of(cls, errors: FloatArray) -> HeldOut:
        """The summary of `[R]` relative errors."""
        size = np.abs(errors)
        p90 = float(np.quantile(size, 0.9))
        return cls(median=float(np.median(size)), mean=float(size.mean()), p90=p90, max=float(size.max()))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A set of constants, and how it does on batch sizes that were left out."""

    constants: tuple[str, ...]
    held_out: HeldOut


@dataclass(frozen=True, kw_only=True)
class EngineFit:
    """The constants of an engine, and how far to trust them.

    Attributes:
        step_s: seconds of every step.
        verified_token_s: seconds per token that is verified, B x N of them.
        speculative_step_s: seconds more of a step that drafts.
        draft_pass_s: seconds per drafter pass.
        speculative_request_s: seconds more per request of a step that drafts.
        candidates: the sets that were tried, by size.
        chosen: which of them.
        judged: the fitted rows whose speedup was measured, beside a plain row of their batch size.
        misjudged: those of which the fitted steps say the opposite: that they pay where they do not, or the reverse.
        reselected: the held-out error when the set, too, is chosen without the batch size that it is judged on.
        in_sample: mean absolute error of the rows that were fitted.
        rows: what was fitted.
        eager: the steps out of graph capture, where there are any.
        eager_s: what such a step takes beyond the fitted ones.
        notes: what the reader must know, one sentence each.
    """

    step_s: float
    verified_token_s: float
    speculative_step_s: float
    draft_pass_s: float
    speculative_request_s: float
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    judged: int
    misjudged: int
    reselected: HeldOut
    in_sample: float
    rows: tuple[ServedStep, ...]
    eager: Eager | None
    eager_s: float
    notes: tuple[str, ...]

    WRITTEN: ClassVar = ("in_sample", "held_out", "reselected", "candidates")

    @property
    def held_out(self) -> HeldOut:
        """The leave-one-batch-out error of the chosen set."""
        return self.chosen.held_out

    @property
    def kernels_only(self) -> HeldOut:
        """The error without any constant."""
        return self.candidates[0].held_out

    @property
    def values(self) -> tuple[float, ...]:
        """The constants in the order of `CONSTANTS`."""
        return tuple(getattr(self, name) for name in CONSTANTS)


def one_per_depth(steps: StepArrays) -> FloatArray:
    """`[R]` passes of a drafter that guesses one depth at a time."""
    return steps.depth.astype(np.float64)


def fit_engine_steps(
    rows: Sequence[ServedStep],
    kernels: StepCost,
    *,
    context: int,
    passes: Callable[[StepArrays], FloatArray] = one_per_depth,
) -> EngineFit:
    """Fit the constants on top of a kernel model.

    Args:
        rows: checked rows.
        kernels: the model, without engine constants.
        context: L of the rows.
        passes: `[R]` passes of the drafter in each step.

    Raises:
        InputError: fewer than `MIN_ROWS` rows or `MIN_BATCHES` batch sizes.
        FileFormatError: all rows are in another unit than their column says.
    """
    rows = list(rows)
    _refuse_few(rows)
    kernels_s = StepArrays(rows).priced(kernels, context)
    refuse_other_unit(rows, kernels_s)
    eager = find_eager(rows, kernels_s)
    inside = np.array([eager is None or row not in eager.rows for row in rows])
    kept = [row for row, is_in in zip(rows, inside, strict=True) if is_in]
    _refuse_few(kept)
    problem = _Problem(kept, kernels_s[inside], passes)
    sets, notes = problem.sets()
    candidates = tuple(
        Candidate(constants=tuple(CONSTANTS[i] for i in columns), held_out=HeldOut.of(problem.left_out(columns)))
        for columns in sets
    )
    every = np.ones(len(kept), dtype=np.bool_)
    wrong = [problem.misjudged(problem.solve(columns, every)) for columns in sets]
    # Whether a draft pays is what the constants are for: no set that turns it around while another does not.
    able = [at for at, count in enumerate(wrong) if count == min(wrong)]
    chosen = able[_smallest_good([candidates[at].held_out.mean for at in able])]
    values = problem.solve(sets[chosen], every)
    judged = len(problem.payoffs)
    return EngineFit(
        **dict(zip(CONSTANTS, map(float, values), strict=True)),
        candidates=candidates,
        chosen=candidates[chosen],
        judged=judged,
        misjudged=wrong[chosen],
        reselected=HeldOut.of(problem.reselected(sets)),
        in_sample=float(np.abs(problem.errors(values)).mean()),
        rows=tuple(kept),
        eager=eager,
        eager_s=0.0 if eager is None else _Problem(eager.rows, kernels_s[~inside], passes).beyond_s(values),
        notes=(*notes, *_few(kept), *_rough(candidates[chosen].held_out), *_turned(wrong[chosen], judged)),
    )


class _Problem:
    """The rows as a linear problem: `[R]` measured, `[R]` kernels, `[R, C]` what each constant is charged for."""

    def __init__(
        self, rows: Sequence[ServedStep], kernels_s: FloatArray, passes: Callable[[StepArrays], FloatArray]
    ) -> None:
        steps = StepArrays(rows)
        self.measured_s, self.kernels_s, self.batch = steps.step_time_s, kernels_s, steps.batch
        drafts = steps.nodes > 1
        columns = (np.ones(len(rows)), steps.tokens, drafts, passes(steps), drafts * steps.batch)
        self.charges = np.stack(columns, axis=1).astype(np.float64)
        self.payoffs = [*_payoffs(rows)]

    def sets(self) -> tuple[list[list[int]], list[str]]:
        """Nested sets of columns that the rows can tell apart, and what they cannot."""
        sets: list[list[int]] = [[]]
        notes = []
        for column, name in enumerate(CONSTANTS):
            columns = [*sets[-1], column]
            scaled = self.charges[:, columns] / self.charges[:, columns].max(axis=0).clip(1.0)
            if np.linalg.matrix_rank(scaled) == len(columns):
                sets.append(columns)
            else:
                notes.append(f"{name} stays 0: these rows do not tell it from the other constants")
        return sets, notes

    def solve(self, columns: Sequence[int], rows: npt.NDArray[np.bool_]) -> FloatArray:
        """`[C]` the constants by non-negative least squares of the relative error; 0 outside the set."""
        from scipy.optimize import nnls

        values = np.zeros(len(CONSTANTS))
        if columns:
            measured_s = self.measured_s[rows]
            charged = self.charges[rows][:, list(columns)] / measured_s[:, None]
            values[list(columns)] = nnls(charged, 1.0 - self.kernels_s[rows] / measured_s)[0]
        return values

    def errors(self, values: FloatArray) -> FloatArray:
        """`[R]` relative errors of the predicted times."""
        errors: FloatArray = (self.kernels_s + self.charges @ values) / self.measured_s - 1.0
        return errors

    def misjudged(self, values: FloatArray) -> int:
        """How many measured speedups, beyond a run's noise, the predicted times have on the other side of 1."""
        predicted_s = self.kernels_s + self.charges @ values
        found = 0
        for row, plain, tokens in self.payoffs:
            measured = tokens * self.measured_s[plain] / self.measured_s[row]
            expected = tokens * predicted_s[plain] / predicted_s[row]
            found += bool(abs(measured - 1.0) > _NOISE and (measured > 1.0) != (expected > 1.0))
        return found

    def beyond_s(self, values: FloatArray) -> float:
        """The median of what the rows take beyond kernels and constants."""
        return float(np.median(self.measured_s - self.kernels_s - self.charges @ values))

    def left_out(self, columns: Sequence[int], within: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """`[R]` errors, each from a fit without the row's batch size; of the rows `within` only."""
        within = np.ones(len(self.batch), dtype=np.bool_) if within is None else within
        errors = np.zeros(len(self.batch))
        for batch in np.unique(self.batch[within]):
            out = within & (self.batch == batch)
            errors[out] = self.errors(self.solve(columns, within & ~out))[out]
        return errors[within]

    def reselected(self, sets: Sequence[Sequence[int]]) -> FloatArray:
        """`[R]` errors with the set chosen anew without the row's batch size."""
        errors = np.zeros(len(self.batch))
        for batch in np.unique(self.batch):
            others = self.batch != batch
            if len(np.unique(self.batch[others])) < MIN_BATCHES:
                chosen = len(sets) - 1  # nothing is left to choose by
            else:
                chosen = _smallest_good([float(np.abs(self.left_out(s, others)).mean()) for s in sets])
            errors[~others] = self.errors(self.solve(sets[chosen], others))[~others]
        return errors


class _Payoff(NamedTuple):
    """A row that drafts, the plain row of its batch size, and the accepted length that was measured."""

    row: int
    plain: int
    tokens: float


def _payoffs(rows: Sequence[ServedStep]) -> Iterator[_Payoff]:
    plain = {row.batch: at for at, row in enumerate(rows) if row.nodes == 1}
    for at, row in enumerate(rows):
        if row.nodes > 1 and row.tokens_per_step is not None and row.batch in plain:
            yield _Payoff(at, plain[row.batch], row.tokens_per_step)


def _smallest_good(means: Sequence[float]) -> int:
    best = min(means)
    return next(i for i, mean in enumerate(means) if mean <= best * (1.0 + _WORTH))


def _refuse_few(rows: Sequence[ServedStep]) -> None:
    batches = {row.batch for row in rows}
    if len(rows) < MIN_ROWS:
        raise InputError(
            f"{len(rows)} step times are too few to fit engine constants",
            hint=f"measure at least {MIN_ROWS}, better {ENOUGH_ROWS}: several batch sizes, each plain and with drafts",
        )
    if len(batches) < MIN_BATCHES:
        raise InputError(
            f"all steps are of batch {min(batches)}: how the time grows with the batch cannot be told or checked",
            hint="measure at least two batch sizes, better four",
        )


def _few(rows: Sequence[ServedStep]) -> list[str]:
    if len(rows) >= ENOUGH_ROWS:
        return []
    return [f"{len(rows)} step times are few: the held-out error is a rough one below {ENOUGH_ROWS}"]


def _turned(misjudged: int, judged: int) -> list[str]:
    if not misjudged:
        return []
    return [f"no set of constants says of all {judged} measured drafts whether they pay: of {misjudged} the opposite"]


def _rough(held_out: HeldOut) -> list[str]:
    if held_out.mean <= _ROUGH:
        return []
    return [
        f"steps at batch sizes that were left out are missed by {held_out.mean:.0%} on average: too few rows, or rows "
        "of another model, drafter, context or GPU than the kernels"
    ]
