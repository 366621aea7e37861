"""The kinds of kernels, how far a fit of one is off, and how far a question reaches into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from treeopt.files.typed import NotNegative


class Family(StrEnum):
    """The kinds of kernels that are timed and fitted apart.

    `SCALES` is the part of an 8-bit GEMM that finds the scales of its activations, which fixed scales save.
    """

    GEMM = "gemm"
    ATTENTION = "attention"
    LATENT = "latent_attention"
    EXPERTS = "experts"
    ALL_REDUCE = "all_reduce"
    STREAM = "stream"
    SCALES = "activation_scales"


@dataclass(frozen=True, kw_only=True)
class FitError:
    """How far a fit is from measured times that it was not fitted to: absolute shares, median and 90th percentile."""

    median: NotNegative
    p90: NotNegative


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
        heads: one GPU's in attention.
        hidden: channels of a layer of experts.
        intermediate: width of one expert, on one GPU.
        experts: of a layer.
        per_token: experts that a token visits.
    """

    tokens: int = 0
    keys: int = 0
    requests: int = 0
    queries: int = 0
    message_bytes: int = 0
    tp: int = 1
    heads: int = 0
    hidden: int = 0
    intermediate: int = 0
    experts: int = 0
    per_token: int = 0


# The sizes that rows of each family have; the swept one first.
SIZES: Final[Mapping[Family, tuple[str, ...]]] = {
    Family.GEMM: ("tokens", "outputs", "inputs"),
    Family.ATTENTION: ("keys", "requests", "queries", "heads", "kv_heads", "head_dim", "causal"),
    Family.LATENT: ("keys", "requests", "queries", "heads", "module"),
    Family.EXPERTS: ("tokens", "hidden", "intermediate", "experts", "per_token", "skewed"),
    Family.ALL_REDUCE: ("message_bytes", "tp"),
    Family.STREAM: ("traffic_bytes",),
    Family.SCALES: ("tokens", "inputs"),
}
# Of these 0 says something, and none has a range.
FLAGS: Final = ("causal", "skewed", "module")
