"""Steps of shipped models for tests: by the datasheet, and by kernel times that fall and rise with every size."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost import (
    Drafter,
    DraftModel,
    Dtype,
    Eagle,
    Eagle3,
    EngineSteps,
    Experts,
    KernelTimes,
    Medusa,
    ModelStep,
    Mtp,
    Ngram,
    load_hardware,
    load_model,
)
from treeopt.cost.kernels.attention import Attention
from treeopt.cost.kernels.family import Family, FitError, Use
from treeopt.cost.kernels.gemm import Gemm

PROFILES = Path(__file__).parents[1] / "profiles"

StepKey = tuple[str, str, int]
STEPS: list[StepKey] = [
    ("llama-3.1-8b", "eagle", 1),
    ("llama-3.3-70b", "model", 8),
    ("llama-3.1-8b", "eagle3", 2),
    ("llama-3.1-8b", "medusa", 2),
    ("qwen3-30b-a3b", "mtp", 1),
    ("qwen3-30b-a3b", "ngram", 2),
    ("deepseek-v3", "mtp", 8),
]


@cache
def step_of(model: str, drafter: str, tp: int) -> ModelStep:
    """By the datasheet."""
    kinds: dict[str, Drafter] = {
        "eagle": Eagle(),
        "eagle3": Eagle3(),
        "medusa": Medusa(),
        "mtp": Mtp(),
        "ngram": Ngram(),
        "model": DraftModel(model=load_model(PROFILES / "models" / "qwen3-0.6b.yaml")),
    }
    return ModelStep(
        model=load_model(PROFILES / "models" / f"{model}.yaml"),
        times=load_hardware(PROFILES / "hardware" / "h100-sxm.yaml").kernel_times(),
        drafter=kinds[drafter],
        tp=tp,
    )


@cache
def jagged_step_of(model: str, drafter: str, tp: int) -> ModelStep:
    """By jagged times, in an engine that pads to captured sizes."""
    step = step_of(model, drafter, tp)
    engine = EngineSteps(step_s=1e-3, draft_pass_s=1e-5, capture_tokens=(1, 8, 64, 256), eager_s=0.05)
    given = {field.name: getattr(step.times, field.name) for field in fields(step.times)}
    return replace(step, times=JaggedTimes(**given, smooth=step.times), engine=engine)


def coarse(size: FloatArray) -> FloatArray:
    """The next of a few sizes far apart: what takes as long as it is a staircase that never falls."""
    return 1.7 ** np.ceil(np.log(np.maximum(np.asarray(size, dtype=np.float64), 1.0)) / np.log(1.7))


@dataclass(frozen=True, kw_only=True)
class JaggedTimes(KernelTimes):
    """Times as rough as measured ones: each family's error is its place among the families, in percent."""

    smooth: KernelTimes

    def gemm_s(self, tokens: FloatArray, weight: Gemm, dtype: Dtype) -> FloatArray:
        return self.smooth.gemm_s(coarse(tokens), weight, dtype)

    def experts_s(
        self, tokens: FloatArray, experts: Experts, hidden: int, dtype: Dtype, independent: FloatArray | None = None
    ) -> FloatArray:
        return self.smooth.experts_s(coarse(tokens), experts, hidden, dtype, independent)

    def attention_s(
        self,
        requests: FloatArray,
        queries: FloatArray,
        keys: FloatArray,
        shape: Attention,
        kv_dtype: Dtype = Dtype.BF16,
    ) -> FloatArray:
        return self.smooth.attention_s(requests, coarse(queries), coarse(keys), shape, kv_dtype)

    def all_reduce_s(self, message_bytes: FloatArray, tp: int) -> FloatArray:
        return self.smooth.all_reduce_s(coarse(message_bytes), tp)

    def stream_s(self, traffic_bytes: FloatArray) -> FloatArray:
        return self.smooth.stream_s(coarse(traffic_bytes))

    def ridge_tokens(self, dtype: Dtype) -> float:
        return self.smooth.ridge_tokens(dtype)

    def error(self, family: Family, dtype: Dtype) -> FitError | None:
        place = (1 + list(Family).index(family)) / 100
        return FitError(median=place / 2, p90=place)

    def beyond(self, family: Family, dtype: Dtype, use: Use) -> str | None:
        return f"{family} {dtype} {use.tokens} {use.requests}x{use.queries} over {use.keys}, {use.message_bytes} B"
