"""What drafting one tree costs: pass by pass, by parallel heads, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from treeopt.cost.base import FloatArray
from treeopt.cost.forward import Forward
from treeopt.cost.gemm import Gemm


class Drafting(Protocol):
    """The price of a drafter beside one target."""

    def time_s(
        self, batch: FloatArray, depth: FloatArray, widths: npt.NDArray[np.int64], context: FloatArray
    ) -> FloatArray:
        """`[...]` seconds per step; the arguments are those of `StepCost.step_time_s` and broadcast as there."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """One pass per depth: pass d runs the `widths[d]` nodes that get children through `network`, after `fusion`.

    A pass attends to the prefix and to all that was drafted up to and including it.
    """

    network: Forward
    fusion: tuple[Gemm, ...] = ()

    def time_s(
        self, batch: FloatArray, depth: FloatArray, widths: npt.NDArray[np.int64], context: FloatArray
    ) -> FloatArray:
        """`[...]` seconds of all passes."""
        return self._tokens_s(batch, widths) + batch * self._attention_s(widths, context)

    def _tokens_s(self, batch: FloatArray, widths: npt.NDArray[np.int64]) -> FloatArray:
        # This part of a pass depends on B and its width only: price each pair once, then look it up.
        batches, row = np.unique(batch, return_inverse=True)
        columns = int(widths.max(initial=0)) + 1
        table = self._pass_s(batches[:, None] * np.arange(columns))
        table[:, 0] = 0.0  # width 0: no pass
        cell = row.reshape(batch.shape)[..., None] * columns + widths
        total: FloatArray = table.ravel()[cell].sum(axis=-1)
        return total

    def _pass_s(self, tokens: FloatArray) -> FloatArray:
        net = self.network
        launches_s = net.network.layers * net.hardware.launch_s  # of the attention kernels
        gemms_s = net.gemms_s(tokens, self.fusion, net.dtype) + net.layers_s(tokens) + net.lm_head_s(tokens)
        return gemms_s + net.all_reduce_s(tokens) + launches_s

    def _attention_s(self, widths: npt.NDArray[np.int64], context: FloatArray) -> FloatArray:
        """`[...]` seconds per request: attention is linear in B, so B stays out of the `[..., D]` arrays."""
        queries = widths.astype(np.float64)
        keys = (context[..., None] + np.cumsum(queries, axis=-1)) * (queries > 0)
        work = self.network.attention(np.ones(()), queries, keys)
        total: FloatArray = work.busy_s(self.network.hardware, self.network.dtype.wide).sum(axis=-1)
        return total


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Parallel heads on the target's last hidden state: a residual block and an own LM head per depth.

    They see one token per request. The block is copied to every GPU, the LM head shares out (vLLM's `medusa.py`).
    """

    target: Forward

    def time_s(
        self, batch: FloatArray, depth: FloatArray, widths: npt.NDArray[np.int64], context: FloatArray
    ) -> FloatArray:
        """`[...]` seconds of `depth` heads."""
        target, hidden = self.target, self.target.network.hidden
        block_s = target.gemms_s(batch, (Gemm(hidden, hidden),), target.dtype)
        return depth * (block_s + target.lm_head_s(batch))


@dataclass(frozen=True, kw_only=True)
class Free:
    """Guesses that cost the GPU nothing."""

    def time_s(
        self, batch: FloatArray, depth: FloatArray, widths: npt.NDArray[np.int64], context: FloatArray
    ) -> FloatArray:
        """Zero."""
        return np.zeros(())
