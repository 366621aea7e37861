"""The parts of a step's price, by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import NamedTuple

from treeopt.arrays import FloatArray
from treeopt.cost.kernels.family import Family


class Term(StrEnum):
    """A part of a step's price; `StepTerms` holds its seconds as `<term>_s`."""

    LAYERS = "layers"
    EXPERTS = "experts"
    ATTENTION = "attention"
    LM_HEAD = "lm_head"
    ELEMENTWISE = "elementwise"
    ALL_REDUCE = "all_reduce"
    SAMPLING = "sampling"
    DRAFTER = "drafter"
    COMPACTION = "compaction"
    ENGINE = "engine"

    @property
    def family(self) -> Family | None:
        """The kind of kernel that the term is made of; None for the drafter (several) and the engine (none)."""
        return _FAMILIES.get(self)


_FAMILIES = {
    Term.LAYERS: Family.GEMM,
    Term.EXPERTS: Family.EXPERTS,
    Term.ATTENTION: Family.ATTENTION,
    Term.LM_HEAD: Family.GEMM,
    Term.ELEMENTWISE: Family.STREAM,
    Term.ALL_REDUCE: Family.ALL_REDUCE,
    Term.SAMPLING: Family.STREAM,
    Term.COMPACTION: Family.STREAM,
}


@dataclass(frozen=True, kw_only=True)
class StepTerms:
    """Where the seconds of one step go; the terms add up to the step time.

    Attributes:
        layers_s: the target's GEMMs, routers and shared experts included, without the LM head.
        experts_s: its routed experts.
        attention_s: its attention.
        lm_head_s: the logits of all B x N tokens.
        elementwise_s: its embedding, norms, rotary positions, KV writes and activations.
        all_reduce_s: its messages between GPUs, logits included; the drafter's are in `drafter_s`.
        sampling_s: reading the logits of all B x N tokens.
        drafter_s: everything the drafter runs.
        compaction_s: moving the KV of accepted tokens next to the prefix.
        engine_s: what the engine takes beyond kernels (`EngineSteps`).
    """

    layers_s: float
    experts_s: float
    attention_s: float
    lm_head_s: float
    elementwise_s: float
    all_reduce_s: float
    sampling_s: float
    drafter_s: float
    compaction_s: float
    engine_s: float

    @property
    def total_s(self) -> float:
        """The step time."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def of(self, term: Term) -> float:
        """The seconds of one term."""
        seconds: float = getattr(self, f"{term}_s")
        return seconds


class TermError(NamedTuple):
    """How far off a term may be: the 90th percentile of held-out absolute errors, as a share; None if unmeasured."""

    term: Term
    p90: float | None


class TermFactor(NamedTuple):
    """A term that counts `factor` times."""

    term: Term
    factor: float


def scaled(term: Term, seconds: FloatArray, factors: Iterable[TermFactor]) -> FloatArray:
    """`[...]` seconds of a term times all factors on it."""
    for on, factor in factors:
        if on is term:
            seconds = factor * seconds
    return seconds


class ExpertVisits(NamedTuple):
    """Distinct experts that a layer's tokens are expected to visit, of all `experts` of it."""

    visited: float
    experts: int
