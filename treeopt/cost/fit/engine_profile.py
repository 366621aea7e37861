"""Engine constants for a hardware profile, from served steps of one model and drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.drafter import Drafter
from treeopt.cost.drafter_file import parse_drafter
from treeopt.cost.engine import EngineSteps, StepsEvidence
from treeopt.cost.fit.engine_steps import CONSTANTS, EngineFit, fit_engine_steps
from treeopt.cost.fit.sample import Seen
from treeopt.cost.hardware import Hardware, load_hardware
from treeopt.cost.model import ModelShape
from treeopt.cost.model_file import load_model
from treeopt.cost.served.reading import read_steps
from treeopt.cost.served.step import Payoff, StepArrays, payoffs
from treeopt.cost.step import ModelStep
from treeopt.files.shipped import locate


@dataclass(frozen=True, kw_only=True)
class Served:
    """What the engine served while its steps were timed, and on what."""

    hardware: Hardware
    model: ModelShape
    drafter: Drafter
    dtype: str | None = None
    tp: int = 1
    context: int = 2048
    capture_tokens: tuple[int, ...] = ()

    @classmethod
    def named(cls, hardware: str, model: str, drafter: str, **given: Any) -> Served:
        """The same with hardware, target and drafter by shipped names or files.

        Raises:
            InputError: a name that is not known.
        """

        def find(name: str) -> ModelShape:
            return load_model(locate("models", name).path)

        return cls(
            hardware=load_hardware(locate("hardware", hardware).path),
            model=find(model),
            drafter=parse_drafter(drafter, load_model=find),
            **given,
        )

    @property
    def step(self) -> ModelStep:
        """The price of such a step, with the engine's constants that the profile has."""
        return _kernels(self, self.hardware.engine())


@dataclass(frozen=True, kw_only=True)
class FittedSteps:
    """A hardware profile with the engine's constants, how good they are, and what was found odd in the rows.

    `seen` is every fitted step beside its price with these constants.
    """

    FORMAT: ClassVar = "treeopt.steps-fit/2"
    WRITTEN: ClassVar = ("name", "engine_steps", "rows", "fit", "payoffs", "warnings")

    hardware: Hardware
    fit: EngineFit
    payoffs: tuple[Payoff, ...]
    warnings: tuple[str, ...]
    seen: Seen = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """The profile's."""
        return self.hardware.name

    @property
    def engine_steps(self) -> EngineSteps | None:
        """The constants, as the profile has them."""
        return self.hardware.engine_steps

    @property
    def rows(self) -> int:
        """How many step times were fitted."""
        return len(self.fit.rows)


def fit_served(paths: Sequence[Path], served: Served, *, name: str) -> FittedSteps:
    """Fit the constants to the step times in the files; constants that the profile has already are replaced.

    Raises:
        InputError: a file that cannot be read, too few rows, or a model that the GPU cannot serve so.
        FileFormatError: a row that cannot be right, with its line.
    """
    read = read_steps(paths)
    for row in read.rows:
        if row.by_rate:
            raise row.place.error("tokens/s without the accepted length", hint="add a column accept_len, or step_ms")
    kernels = _kernels(served, EngineSteps(capture_tokens=served.capture_tokens))
    fit = fit_engine_steps(read.rows, kernels, context=served.context, passes=lambda steps: _passes(steps, served))
    engine = _engine(fit, served, source=", ".join(path.name for path in paths))
    eager = fit.eager.findings() if fit.eager else []
    steps = StepArrays(fit.rows)
    return FittedSteps(
        hardware=replace(served.hardware, name=name, engine_steps=engine),
        fit=fit,
        payoffs=tuple(payoffs(read.rows)),
        warnings=(*read.findings, *eager, *fit.notes),
        seen=Seen("steps", steps.step_time_s, steps.priced(_kernels(served, engine), served.context)),
    )


def _passes(steps: StepArrays, served: Served) -> FloatArray:
    """`[R]` passes for which the step model charges `draft_pass_s`: what one second per pass adds."""
    free, charged = (_kernels(served, EngineSteps(draft_pass_s=second)) for second in (0.0, 1.0))
    return np.rint(steps.priced(charged, served.context) - steps.priced(free, served.context))


def _kernels(served: Served, engine: EngineSteps) -> ModelStep:
    return ModelStep(
        model=served.model,
        times=served.hardware.kernel_times(),
        drafter=served.drafter,
        dtype=served.dtype,
        tp=served.tp,
        engine=engine,
    )


def _engine(fit: EngineFit, served: Served, *, source: str) -> EngineSteps:
    # Between the last step inside and the first one outside nothing was measured: the limit that is known to hold.
    limit = fit.eager.captured_tokens if fit.eager else None
    return EngineSteps(
        **dict(zip(CONSTANTS, fit.values, strict=True)),
        capture_tokens=tuple(size for size in served.capture_tokens if limit is None or size <= limit),
        capture_limit=limit,
        eager_s=fit.eager_s,
        evidence=StepsEvidence(
            model=served.model.name,
            drafter=served.drafter.kind,
            source=source,
            rows=len(fit.rows),
            max_tokens=max(row.tokens for row in fit.rows),
            median=fit.held_out.median,
            p90=fit.held_out.p90,
            judged=fit.judged,
            misjudged=fit.misjudged,
        ),
    )
