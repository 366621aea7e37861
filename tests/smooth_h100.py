"""Llama-3.1-8B with EAGLE on an H100 by hand, apart from the package's kernels, and the published vLLM steps on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import shared

from treeopt.cost.fit.engine_steps import EngineFit, fit_engine_steps
from treeopt.cost.served.reading import read_steps
from treeopt.cost.served.step import ServedStep
from treeopt.cost.step_cost import StepCost

CONTEXT: Final = 300  # MT-Bench; the source does not say
_LAYER: Final = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
_VOCAB: Final = 128256


@dataclass(frozen=True)
class SmoothH100:
    """Smooth rooflines with the constants fitted to the BF16 GEMM and decode attention tables of vLLM on an H100.

    2.83 TB/s, 800 TFLOP/s, 3.7 us per GEMM, exponent 3.3; attention 11.5 us, 3.1 TB/s of KV and 20 ns per request and
    KV head. Norms, activations, sampling and the CPU are left out.
    """

    ridge_tokens = 283.0

    def step_time_s(self, batch, nodes, depth, widths, context):
        return self._pass_s(batch * nodes, 32, batch, context) + depth * (
            self._pass_s(batch, 1, batch, context) + _gemm_s(batch, 4096, 8192)
        )

    def _pass_s(self, tokens, layers, batch, context):
        layer = sum(_gemm_s(tokens, *shape) for shape in _LAYER)
        attention = 11.5e-6 + batch * context * 4096 / 3.1e12 + 0.16e-6 * batch
        return layers * (layer + attention) + _gemm_s(tokens, _VOCAB, 4096)


def _gemm_s(tokens, outputs, inputs):
    memory_s = 2 * (outputs * inputs + tokens * (outputs + inputs)) / 2.83e12
    return 3.7e-6 + (memory_s**3.3 + (2 * tokens * outputs * inputs / 800e12) ** 3.3) ** (1 / 3.3)


def vllm_rows() -> tuple[ServedStep, ...]:
    """The published rows without the batch size that repeats another."""
    return read_steps([shared.DATA / "measured" / "vllm_step_ms_by_batch_k.csv"]).rows


@dataclass(frozen=True)
class Fitted:
    """Kernels and the engine constants on top."""

    kernels: StepCost
    fit: EngineFit

    @property
    def ridge_tokens(self) -> float:
        return self.kernels.ridge_tokens

    def step_time_s(self, batch, nodes, depth, widths, context):
        fit = self.fit
        engine = fit.step_s + fit.verified_token_s * batch * nodes + fit.speculative_step_s * (nodes > 1)
        return self.kernels.step_time_s(batch, nodes, depth, widths, context) + engine + fit.draft_pass_s * depth


def fitted_without(batch: int | None, kernels: StepCost) -> Fitted:
    """The published steps fitted without one batch size."""
    rows = [row for row in vllm_rows() if row.batch != batch]
    return Fitted(kernels, fit_engine_steps(rows, kernels, context=CONTEXT))
