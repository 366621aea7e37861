"""What engines add to the kernels of a step, from step times that others published, and how far off that was.

A step of a serving engine takes longer than its kernels, and a speculative one by more than a plain one: the scheduler,
the drafter's preparation, sampling, acceptance. `benchmarks/published_speedups.py` fits four constants per engine, its
generation and drafter to published runs, judges them on the runs that they were not fitted to, and prints what stands
here; its table is docs/price-error.md.
"""

from __future__ import annotations

import re
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
    """Published runs of this generation of the engine with this drafter."""

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
    """The constants that a step is priced with, and their error.

    `runs_of` says which published runs they are from; of typical ones, which other generations of the engine have
    published runs with this drafter; empty where there are none.
    """

    steps: EngineSteps
    basis: ConstantsFrom
    error: PriceError
    runs_of: str = ""


class EngineKey(NamedTuple):
    """What published constants belong to; `generation` as the function of that name gives it."""

    engine: str
    generation: str
    drafter: str


class PublishedSteps(NamedTuple):
    """Constants fitted to published runs, and what these were: GPU, weights, tp and date."""

    steps: EngineSteps
    conditions: str


_ENGINES: Final = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
_V1: Final = (0, 8)  # vLLM's second engine is the default since 0.8.0
_PLAIN: Final = (-0.05, 0.29)
ERRORS: Final[Mapping[ConstantsFrom, PriceError]] = MappingProxyType(
    {
        ConstantsFrom.OWN: PriceError((-0.121, 0.129), _PLAIN),
        ConstantsFrom.ENGINE: PriceError((-0.121, 0.129), _PLAIN),
        ConstantsFrom.TYPICAL: PriceError((-0.311, 0.346), _PLAIN),
    }
)
_SPECBUNDLE: Final = "SpecForge SpecBundle (MIT): SGLang, H200, EAGLE-3, eight targets at tp 1 to 8"
_SERVED_THERE: Final = (
    "llama-3.1-8b, llama-3.3-70b, qwen3-30b-a3b, qwen3-235b, qwen3-480b, qwen3-next-80b, ling-flash-2.0, kimi-k2"
)
_VLLM: Final = "vLLM issue 20780, pull requests 16937 and 32374: Llama-3.1-8B on H100"
PUBLISHED: Final[Mapping[EngineKey, PublishedSteps]] = MappingProxyType(
    {
        EngineKey("sglang", "0.5", "eagle3"): PublishedSteps(
            EngineSteps(
                step_s=0.50e-3,
                speculative_step_s=0.96e-3,
                draft_pass_s=0.18e-3,
                verified_token_s=10e-6,
                evidence=StepsEvidence(
                    model=_SERVED_THERE,
                    drafter="eagle3",
                    source=_SPECBUNDLE,
                    rows=370,
                    max_tokens=64,
                    median=0.07,
                    p90=0.17,
                ),
            ),
            conditions="H200, bf16 and fp8_block, tp 1 to 8, December 2025",
        ),
        EngineKey("vllm", "V1", "eagle"): PublishedSteps(
            EngineSteps(
                step_s=0.51e-3,
                speculative_step_s=0.65e-3,
                draft_pass_s=0.14e-3,
                verified_token_s=4e-6,
                evidence=StepsEvidence(
                    model="llama-3.1-8b", drafter="eagle", source=_VLLM, rows=28, max_tokens=384, median=0.07, p90=0.13
                ),
            ),
            conditions="H100, bf16, tp 1, April 2025 to January 2026",
        ),
        EngineKey("vllm", "V1", "eagle3"): PublishedSteps(
            EngineSteps(
                step_s=0.48e-3,
                speculative_step_s=1.55e-3,
                draft_pass_s=0.38e-3,
                verified_token_s=10e-6,
                evidence=StepsEvidence(
                    model="llama-3.1-8b", drafter="eagle3", source=_VLLM, rows=7, max_tokens=8, median=0.17, p90=0.24
                ),
            ),
            conditions="H100, bf16, tp 1, April to July 2025",
        ),
    }
)
TYPICAL: Final = EngineSteps(step_s=0.52e-3, speculative_step_s=1.72e-3, draft_pass_s=0.14e-3, verified_token_s=16e-6)


def served_constants(hardware: Hardware, drafter: str) -> ServedConstants:
    """The constants for a drafter kind on a GPU: the profile's own, published ones of its engine, or typical ones.

    A profile that was timed without a serving engine has what its own rows hold and nothing is added.
    """
    own = hardware.engine_steps
    if own is not None and (own.evidence is None or own.evidence.drafter == drafter):
        return ServedConstants(own, ConstantsFrom.OWN, ERRORS[ConstantsFrom.OWN])
    engine = engine_of(hardware)
    key = EngineKey(engine or "", generation(engine or "", hardware.engine_release), drafter)
    published, typical = PUBLISHED.get(key), ERRORS[ConstantsFrom.TYPICAL]
    if published is not None:
        steps, runs_of = _with_captures_of(own, published.steps), f"{in_words(key)}, {published.conditions}"
        return ServedConstants(steps, ConstantsFrom.ENGINE, ERRORS[ConstantsFrom.ENGINE], runs_of)
    others = " and ".join(in_words(k) for k in PUBLISHED if (k.engine, k.drafter) == (key.engine, drafter))
    if own is not None:
        return ServedConstants(own, ConstantsFrom.TYPICAL, typical, others)
    steps = TYPICAL if engine is not None or hardware.source == "datasheet" else EngineSteps()
    return ServedConstants(steps, ConstantsFrom.TYPICAL, typical, others)


def engine_of(hardware: Hardware) -> str | None:
    """`vllm` of a profile of vLLM 0.24's kernels; None for data sheets and for kernels that no engine ran."""
    return hardware.engine_name if hardware.engine_name in _ENGINES else None


def generation(engine: str, release: str) -> str:
    """Releases whose steps are alike: `V0` or `V1` of vLLM, `0.5` of SGLang 0.5.14; empty where nothing is known."""
    found = re.match(r"v?(\d+)\.(\d+)", release)
    if found is None or engine not in ("vllm", "sglang"):
        return ""
    major, minor = int(found[1]), int(found[2])
    return f"{major}.{minor}" if engine == "sglang" else "V1" if (major, minor) >= _V1 else "V0"


def in_words(key: EngineKey) -> str:
    """`vLLM V1`, `SGLang 0.5`."""
    return f"{_ENGINES[key.engine]} {key.generation}"


def _with_captures_of(own: EngineSteps | None, published: EngineSteps) -> EngineSteps:
    """Published constants in graphs that the profile's engine captured."""
    if own is None:
        return published
    return replace(published, capture_tokens=own.capture_tokens, capture_limit=own.capture_limit, eager_s=own.eager_s)
