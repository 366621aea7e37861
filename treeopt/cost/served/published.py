"""What engines add to the kernels of a step, from step times that others published, and how far off that was.

A step of a serving engine takes longer than its kernels, and a speculative one by more than a plain one: the scheduler,
the drafter's preparation, sampling, acceptance. `benchmarks/published_speedups.py` fits four constants per engine and
drafter to published runs, judges them on the runs that they were not fitted to, and prints what stands here; its table
is docs/price-error.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from treeopt.cost.engine import EngineSteps, StepsEvidence
from treeopt.cost.hardware import Hardware


class ConstantsFrom(StrEnum):
    """Where an engine's constants are from."""

    OWN = "own"
    """The hardware profile has them, for this drafter."""

    ENGINE = "engine"
    """Published runs of this engine with this drafter."""

    TYPICAL = "typical"
    """Nothing of this engine and drafter is published: the middle of those that are."""


class PriceError(NamedTuple):
    """How far served steps lay from priced ones: logarithms of measured over priced, an 80 % interval.

    `ratio` is of the speculative step in plain steps, `plain` of the plain step itself. With 0.2 at the upper end a
    speedup of 2 may be 2 exp(-0.2) = 1.64.
    """

    ratio: tuple[float, float]
    plain: tuple[float, float]


class ServedConstants(NamedTuple):
    """The constants that a step is priced with, and their error."""

    steps: EngineSteps
    basis: ConstantsFrom
    error: PriceError


_ENGINES: Final = ("vllm", "sglang", "trtllm")
_PLAIN: Final = (-0.05, 0.29)
ERRORS: Final[Mapping[ConstantsFrom, PriceError]] = MappingProxyType(
    {
        ConstantsFrom.OWN: PriceError((-0.20, 0.26), _PLAIN),
        ConstantsFrom.ENGINE: PriceError((-0.20, 0.26), _PLAIN),
        ConstantsFrom.TYPICAL: PriceError((-0.26, 0.40), _PLAIN),
    }
)
_SPECBUNDLE: Final = "SpecForge SpecBundle (MIT): SGLang, H200, EAGLE-3, six targets at tp 1 to 8"
_20780: Final = "vLLM issue 20780: Llama-3.1-8B with EAGLE-3 at batch 1"
PUBLISHED: Final[Mapping[tuple[str, str], EngineSteps]] = MappingProxyType(
    {
        ("sglang", "eagle3"): EngineSteps(
            step_s=0.50e-3,
            speculative_step_s=0.90e-3,
            draft_pass_s=0.18e-3,
            verified_token_s=10e-6,
            evidence=StepsEvidence(
                model="llama-3.1-8b",
                drafter="eagle3",
                source=_SPECBUNDLE,
                rows=265,
                max_tokens=64,
                median=0.05,
                p90=0.14,
            ),
        ),
        ("vllm", "eagle3"): EngineSteps(
            step_s=0.48e-3,
            speculative_step_s=1.72e-3,
            draft_pass_s=0.37e-3,
            verified_token_s=10e-6,
            evidence=StepsEvidence(
                model="llama-3.1-8b", drafter="eagle3", source=_20780, rows=6, max_tokens=8, median=0.03, p90=0.06
            ),
        ),
    }
)
TYPICAL: Final = EngineSteps(step_s=0.51e-3, speculative_step_s=1.64e-3, draft_pass_s=0.17e-3, verified_token_s=14e-6)


def served_constants(hardware: Hardware, drafter: str) -> ServedConstants:
    """The constants for a drafter kind on a GPU: the profile's own, the engine's published ones, or typical ones.

    A profile that was timed without a serving engine has what its own rows hold and nothing is added.
    """
    own = hardware.engine_steps
    if own is not None and (own.evidence is None or own.evidence.drafter == drafter):
        return ServedConstants(own, ConstantsFrom.OWN, ERRORS[ConstantsFrom.OWN])
    engine = engine_of(hardware)
    published = PUBLISHED.get((engine or "", drafter))
    if published is not None:
        return ServedConstants(_with_captures_of(own, published), ConstantsFrom.ENGINE, ERRORS[ConstantsFrom.ENGINE])
    if own is not None:
        return ServedConstants(own, ConstantsFrom.TYPICAL, ERRORS[ConstantsFrom.TYPICAL])
    steps = TYPICAL if engine is not None or hardware.source == "datasheet" else EngineSteps()
    return ServedConstants(steps, ConstantsFrom.TYPICAL, ERRORS[ConstantsFrom.TYPICAL])


def engine_of(hardware: Hardware) -> str | None:
    """`vllm` of a profile of vLLM 0.24's kernels; None for data sheets and for kernels that no engine ran."""
    return hardware.engine_name if hardware.engine_name in _ENGINES else None


def _with_captures_of(own: EngineSteps | None, published: EngineSteps) -> EngineSteps:
    """Published constants in graphs that the profile's engine captured."""
    if own is None:
        return published
    return replace(published, capture_tokens=own.capture_tokens, capture_limit=own.capture_limit, eager_s=own.eager_s)
