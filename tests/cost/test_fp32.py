"""A step in 32 bit, as a processor decodes: activations, KV and logits are 32 bit too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
from toy_device import MODEL

from treeopt.arrays import FloatArray
from treeopt.cost import Dtype, KernelTimes, ModelStep, Ngram
from treeopt.cost.formats import WeightFormats
from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.kernels.gemm import gemm_work


@dataclass(eq=False)
class Recorded:
    """Kernels that take no time, and the bytes that copies were asked for."""

    streams: list[FloatArray] = field(default_factory=list)

    def stream_s(self, traffic_bytes: FloatArray) -> FloatArray:
        self.streams.append(np.asarray(traffic_bytes, dtype=np.float64))
        return np.zeros(np.shape(traffic_bytes))

    def ridge_tokens(self, dtype: Dtype) -> float:
        return 1.0


def streams(dtype: Dtype) -> list[float]:
    times = Recorded()
    forward = ForwardPass(
        network=MODEL, times=cast(KernelTimes, times), formats=WeightFormats(dtype, dtype), kv_dtype=dtype.wide, tp=1
    )
    forward.elementwise_s(np.array(3.0))
    forward.top_guesses_s(np.array(3.0))
    forward.compaction_s(np.array(2.0), np.array(4.0))
    return [float(traffic) for traffic in times.streams]


def test_copies_move_twice_the_bytes() -> None:
    assert streams(Dtype.FP32) == [2 * traffic for traffic in streams(Dtype.BF16)]
    assert streams(Dtype.FP8) == streams(Dtype.BF16)
    # by hand, the last: K and V of 2 layers, 2 heads of 32, 2 x 4 tokens, read and written in 4 bytes
    assert streams(Dtype.FP32)[-1] == 2 * 4 * (2 * 2 * 32) * 2 * (2 * 4)


@pytest.mark.parametrize(("dtype", "moved"), [(Dtype.BF16, [4, 6]), (Dtype.FP8, [4, 6]), (Dtype.FP32, [4])])
def test_only_16_bit_logits_are_widened_before_sampling(dtype: Dtype, moved: list[int]) -> None:
    times = Recorded()
    ForwardPass(
        network=MODEL, times=cast(KernelTimes, times), formats=WeightFormats(dtype, dtype), kv_dtype=dtype.wide, tp=1
    ).sampling_s(np.array(3.0))
    assert [float(traffic) for traffic in times.streams] == [3 * MODEL.vocab * size for size in moved]


def test_weights_and_activations_of_a_gemm() -> None:
    fitted = gemm_work(np.array(5.0), np.array(30.0), np.array(10.0), 4)
    assert fitted.traffic_bytes == 4 * 300 + 4 * 5 * 40
    assert gemm_work(np.array(5.0), np.array(30.0), np.array(10.0), 1).traffic_bytes == 300 + 2 * 5 * 40


@pytest.mark.parametrize(("dtype", "size"), [("bf16", 2), ("fp8", 2), ("fp32", 4)])
def test_the_kv_cache(dtype: str, size: int) -> None:
    step = ModelStep(model=MODEL, times=cast(KernelTimes, Recorded()), drafter=Ngram(), dtype=dtype)
    assert step.kv_bytes(100) == 100 * 2 * 2 * 2 * 32 * size
