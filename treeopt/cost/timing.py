"""What the step asks about single kernels on one GPU; datasheet rates or fits through measured rows stand behind it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from treeopt.arrays import FloatArray
from treeopt.cost.attention import Attention
from treeopt.cost.dtype import Dtype
from treeopt.cost.experts import Experts
from treeopt.cost.gemm import Gemm


class Family(StrEnum):
    """The kinds of kernels that are timed and fitted apart."""

    GEMM = "gemm"
    ATTENTION = "attention"
    EXPERTS = "experts"
    ALL_REDUCE = "all_reduce"
    STREAM = "stream"


@dataclass(frozen=True, kw_only=True)
class FitError:
    """How far a fit is from measured times that it was not fitted to: absolute shares, median and 90th percentile."""

    median: float
    p90: float


@dataclass(frozen=True, kw_only=True)
class Use:
    """How far a question reaches into one family: the largest of each size it asks about, 0 where it does not apply.

    Attributes:
        tokens: tokens through one GEMM or one layer of experts.
        keys: keys per request in attention.
        requests: requests in attention.
        queries: query tokens per request in attention.
        message_bytes: bytes of one all-reduce.
        tp: GPUs that share the model.
    """

    tokens: int = 0
    keys: int = 0
    requests: int = 0
    queries: int = 0
    message_bytes: int = 0
    tp: int = 1


class OperatorTimes(Protocol):
    """Seconds of single kernels on one GPU, launches included, for every element of the broadcast inputs.

    A network given here is one GPU's part already (`ModelShape.shard`). Times may fall as tokens grow, where the
    measured ones do.
    """

    def gemm_s(self, tokens: FloatArray, weight: Gemm, dtype: Dtype) -> FloatArray:
        """`[...]` seconds of tokens through one weight."""

    def experts_s(self, tokens: FloatArray, experts: Experts, hidden: int, dtype: Dtype) -> FloatArray:
        """`[...]` seconds of tokens through the routed experts of one layer, without router and shared experts."""

    def attention_s(self, requests: FloatArray, queries: FloatArray, keys: FloatArray, shape: Attention) -> FloatArray:
        """`[...]` seconds of one layer's attention: each request's queries over its keys, KV in 16 bit."""

    def all_reduce_s(self, message_bytes: FloatArray, tp: int) -> FloatArray:
        """`[...]` seconds to sum a message over `tp` GPUs; 0 for one."""

    def stream_s(self, traffic_bytes: FloatArray) -> FloatArray:
        """`[...]` seconds of one kernel that only moves bytes: norms, activations, copies."""

    def ridge_tokens(self, dtype: Dtype) -> float:
        """Tokens per step at which streaming a weight takes as long as its arithmetic."""

    def error(self, family: Family, dtype: Dtype) -> FitError | None:
        """The held-out error of a family's fit; None for a datasheet."""

    def beyond(self, family: Family, dtype: Dtype, use: Use) -> str | None:
        """A sentence for the reader where `use` leaves the measured range or no measurement stands behind a family."""
