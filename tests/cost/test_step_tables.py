"""Tables of prices: what one kernel after the other gives, asked for once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from model_steps import jagged_step_of

from treeopt.arrays import FloatArray
from treeopt.cost import Dtype, KernelTimes, ModelStep, Term
from treeopt.cost.kernels.gemm import Gemm


@dataclass(eq=False)
class Counted:
    """Kernel times of `of`, and how often a GEMM was asked for."""

    of: KernelTimes
    asked: list[int] = field(default_factory=list)

    def gemm_s(self, tokens: FloatArray, weight: Gemm, dtype: Dtype) -> FloatArray:
        self.asked.append(np.size(tokens))
        return self.of.gemm_s(tokens, weight, dtype)

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self.of, name)


@pytest.fixture
def step() -> ModelStep:
    jagged = jagged_step_of("qwen3-30b-a3b", "mtp", 1)
    return replace(jagged, times=Counted(jagged.times))


def plain_s(step: ModelStep, nodes: int) -> float:
    return float(step.step_time_s(8, nodes, 0, np.zeros(1, dtype=np.int64), 1000))


def test_trees_of_other_sizes_and_scaled_terms_ask_for_no_kernel_again(step: ModelStep) -> None:
    asked = step.times.asked  # type: ignore[attr-defined]
    first = plain_s(step, 5)
    once = len(asked)
    assert once > 0
    assert plain_s(step, 60) != first
    longer = step.scaled(Term.LM_HEAD, 2.0)
    lm_head_s = step.terms(batch=8, nodes=5, depth=0, widths=[0], context=1000).lm_head_s
    assert plain_s(longer, 5) == pytest.approx(first + lm_head_s, rel=1e-12)
    assert len(asked) == once


def test_a_table_is_what_the_kernels_take(step: ModelStep) -> None:
    target = step._tables.target
    table = step._tables.of_target((2, 8), 70, (100, 1000))
    for at, batch in enumerate((2, 8)):
        for nodes in (1, 7, 70):
            tokens = step.engine.padded(np.array(float(batch * nodes)))
            assert float(table[Term.LAYERS][at, nodes - 1, 0]) == pytest.approx(
                float(target.layers_s(tokens)), rel=1e-12
            )
            attention_s = target.attention_s(np.array(float(batch)), np.array(float(nodes)), np.array(1000.0 + nodes))
            assert float(table[Term.ATTENTION][at, nodes - 1, 1]) == pytest.approx(float(attention_s), rel=1e-12)
