"""The price of one serving step as a sum of rooflines, one per kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treeopt.cost.base import FloatArray, IntLike
from treeopt.cost.drafter import Drafter
from treeopt.cost.drafting import Drafting
from treeopt.cost.dtype import Dtype
from treeopt.cost.forward import Forward
from treeopt.cost.hardware import Hardware
from treeopt.cost.model import ModelShape
from treeopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class StepTerms:
    """Where the seconds of one step go; the terms add up to the step time.

    Attributes:
        layers_s: the target's GEMMs, experts included, without the LM head.
        attention_s: the target's attention.
        lm_head_s: the logits of all B x N tokens.
        all_reduce_s: the target's messages between GPUs; the drafter's are in `drafter_s`.
        drafter_s: everything the drafter runs.
        compaction_s: moving the KV of accepted tokens next to the prefix.
    """

    layers_s: float
    attention_s: float
    lm_head_s: float
    all_reduce_s: float
    drafter_s: float
    compaction_s: float

    @property
    def total_s(self) -> float:
        """The step time."""
        return (
            self.layers_s + self.attention_s + self.lm_head_s + self.all_reduce_s + self.drafter_s + self.compaction_s
        )


@dataclass(frozen=True, kw_only=True)
class RooflineStep:
    """`StepCost` from the sizes of the models and the rates of the GPU; `Forward` says what is left out.

    At fixed batch, nodes and context the time never falls as depth or widths grow, with one exception: a chain
    (nodes = depth + 1) needs no compaction, so it can cost less than a shallower tree of as many nodes.

    Raises:
        InputError: a dtype that the GPU lacks, or a tp below 1 or that the heads do not divide by.
    """

    model: ModelShape
    hardware: Hardware
    drafter: Drafter
    dtype: str = "bf16"
    tp: int = 1

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise InputError(f"tp={self.tp}", hint="give the number of GPUs that share the model, 1 or more")
        self.hardware.flops_per_s(self.dtype)
        self.hardware.flops_per_s(Dtype(self.dtype).wide)
        _ = self._target  # shares out, or says why that cannot be
        try:
            _ = self._drafting
        except InputError as error:
            raise InputError(f"drafter {self.drafter.kind}: {error}", hint=error.hint) from None

    @property
    def ridge_tokens(self) -> float:
        """Tokens per step at which streaming the weights takes as long as the arithmetic."""
        return self.hardware.ridge_tokens(self.dtype)

    @property
    def memory_bytes(self) -> int:
        """Memory that the target's weights take on each GPU; KV cache and drafter come on top."""
        return self._target.network.weight_bytes(self.dtype)

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache of one token per GPU, in 16 bit."""
        return self.model.shard(self.tp).kv_bytes_per_token(Dtype(self.dtype).wide)

    def step_time_s(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: npt.NDArray[np.int64], context: IntLike
    ) -> FloatArray:
        """Seconds per step for every element of the broadcast inputs; see `StepCost`."""
        shape = np.broadcast_shapes(*map(np.shape, (batch, nodes, depth, context)), widths.shape[:-1])
        total = np.zeros(shape)
        for term in self._terms(batch, nodes, depth, widths, context).values():
            total += term
        return total

    def terms(self, *, batch: int, nodes: int, depth: int, widths: Sequence[int], context: int) -> StepTerms:
        """One step in parts; the arguments are those of `step_time_s` at one point."""
        terms = self._terms(batch, nodes, depth, np.array(widths, dtype=np.int64), context)
        return StepTerms(**{name: float(seconds) for name, seconds in terms.items()})

    def _terms(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: npt.NDArray[np.int64], context: IntLike
    ) -> dict[str, FloatArray]:
        B, N, D, L = (np.asarray(value, dtype=np.float64) for value in (batch, nodes, depth, context))
        tokens = B * N
        target, hardware, wide = self._target, self.hardware, self._target.dtype.wide
        # The accepted tokens of a chain already stand where they belong.
        is_tree = N != D + 1
        return {
            "layers_s": target.layers_s(tokens),
            "attention_s": target.attention(B, N, L + N).time_s(hardware, wide),
            "lm_head_s": target.lm_head_s(tokens),
            "all_reduce_s": target.all_reduce_s(tokens),
            "drafter_s": self._drafting.time_s(B, D, widths, L),
            "compaction_s": target.compaction(B, D).time_s(hardware, wide) * is_tree,
        }

    @cached_property
    def _target(self) -> Forward:
        return Forward(network=self.model.shard(self.tp), hardware=self.hardware, dtype=Dtype(self.dtype), tp=self.tp)

    @cached_property
    def _drafting(self) -> Drafting:
        return self.drafter.drafting(self._target)
