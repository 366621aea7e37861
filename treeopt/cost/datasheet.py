"""Kernel times by the rates of a GPU: the roofline, for what nobody has measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost import operators
from treeopt.cost.attention import Attention
from treeopt.cost.dtype import Dtype
from treeopt.cost.experts import Experts
from treeopt.cost.gemm import Gemm
from treeopt.cost.hardware import Hardware
from treeopt.cost.timing import Family, FitError, Use


@dataclass(frozen=True, kw_only=True)
class DatasheetTimes:
    """`OperatorTimes` in which a kernel takes as long as its memory traffic or its arithmetic, and its launch.

    Source: Williams et al. 2009, "Roofline".
    """

    hardware: Hardware

    def gemm_s(self, tokens: FloatArray, weight: Gemm, dtype: Dtype) -> FloatArray:
        """`[...]` seconds of tokens through one weight.

        Raises:
            InputError: a dtype that the GPU has no arithmetic for.
        """
        return self._time_s(operators.gemm(tokens, weight, dtype), dtype.arithmetic)

    def experts_s(self, tokens: FloatArray, experts: Experts, hidden: int, dtype: Dtype) -> FloatArray:
        """`[...]` seconds of tokens through the routed experts of one layer; raises as `gemm_s`."""
        return self._time_s(operators.expert_ffn(tokens, experts, hidden, dtype), dtype.arithmetic)

    def attention_s(self, requests: FloatArray, queries: FloatArray, keys: FloatArray, shape: Attention) -> FloatArray:
        """`[...]` seconds of one layer's attention."""
        wide = Dtype.BF16 if Dtype.BF16 in self.hardware.peak_flops else Dtype.FP16
        return self._time_s(operators.attention(requests, queries, keys, shape), wide)

    def all_reduce_s(self, message_bytes: FloatArray, tp: int) -> FloatArray:
        """`[...]` seconds to sum a message around a ring: each GPU sends 2 (tp - 1) / tp of it; 0 for one GPU.

        Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms".
        """
        if tp == 1:
            return np.zeros_like(message_bytes)
        sent_bytes = 2 * (tp - 1) / tp * message_bytes
        return sent_bytes / self.hardware.link_bandwidth_bytes_per_s + self.hardware.launch_s

    def stream_s(self, traffic_bytes: FloatArray) -> FloatArray:
        """`[...]` seconds of one kernel that only moves bytes."""
        return traffic_bytes / self.hardware.bandwidth_bytes_per_s + self.hardware.launch_s

    def ridge_tokens(self, dtype: Dtype) -> float:
        """Tokens per step at which streaming a weight takes as long as its arithmetic, two operations per token.

        H100 BF16: 989e12 * 2 / (2 * 3.35e12) = 295.2.

        Raises:
            InputError: a dtype that the GPU has no arithmetic for.
        """
        flops_per_s = self.hardware.flops_per_s(dtype.arithmetic)
        return flops_per_s * dtype.bytes_per_value / (2 * self.hardware.bandwidth_bytes_per_s)

    def error(self, family: Family, dtype: Dtype) -> FitError | None:
        """None: nothing was measured."""
        return None

    def beyond(self, family: Family, dtype: Dtype, use: Use) -> str | None:
        """That the times are a roofline, where the rates are those of a data sheet."""
        if self.hardware.source != "datasheet":
            return None
        return "step times are a datasheet roofline, not measured: trust the shape more than the number"

    def _time_s(self, work: operators.Operator, dtype: Dtype) -> FloatArray:
        memory_s = work.traffic_bytes / self.hardware.bandwidth_bytes_per_s
        busy_s = np.maximum(memory_s, work.flops / self.hardware.flops_per_s(dtype))
        return busy_s + work.launches * self.hardware.launch_s
