"""The experts of a mixture-of-experts network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.kernels.gemm import GatedFfn, Gemm, gated_ffn
from treeopt.cost.kernels.roofline import WIDE_BYTES, Work

# Beyond it the most popular experts take all tokens.
MAX_SKEW: Final = 8.0
# What meets the published growth of GLM-4.7's steps within 8 %, where balanced routing is 14 to 18 % off.
DEFAULT_SKEW: Final = 0.8
# With that skew, 128 experts and 8 for each token, it puts 42 % of a token's experts among its predecessor's and lets
# four tokens in a row visit 2.6 times the experts of one. Cohere, "Why MoE models get more from speculative decoding"
# (2026-04-21), measured 38 % and 2.5 times.
DEFAULT_CORRELATION: Final = 0.25
# The far end of what is seen: NVIDIA's most skewed rows, and half of the experts kept.
MOST_SKEW: Final = 1.2
MOST_CORRELATION: Final = 0.5
_HALVINGS: Final = 60
# What tells a layer of balanced experts from one with skewed routing: far beyond any reach.
_ROUTING_APART: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class Experts:
    """`count` gated feed-forward blocks of which every token visits `per_token`, in all but `dense_layers` layers.

    `shared_intermediate` is the width of what every token visits besides, all shared experts together; 0 for none.
    `skew` says how much more popular some experts are: the r-th most popular one's share falls as `r^-skew`; 0 is
    balanced routing. `correlation` is the share of its experts that a token takes over from the one before it in its
    request, beyond what popularity makes them share; 0 is independent choices.
    """

    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int
    dense_layers: int
    skew: float = DEFAULT_SKEW
    correlation: float = DEFAULT_CORRELATION

    def independent(self, requests: FloatArray, tokens: FloatArray) -> FloatArray:
        """`[...]` tokens that choose on their own would visit as many experts as `tokens` of so many requests do.

        8 tokens of one request with a correlation of 0.5 choose as 1 + 7 * 0.5 = 4.5 do.
        """
        return np.asarray(requests + (tokens - requests) * (1.0 - self.correlation))

    def visited(self, tokens: FloatArray) -> FloatArray:
        """`[...]` distinct experts of one layer that tokens are expected to visit, each choosing on its own."""
        return visited_experts(tokens, self.count, self.per_token, self.skew)

    def router(self, hidden: int) -> Gemm:
        """The GEMM that scores the experts."""
        return Gemm(self.count, hidden)

    def routed(self, hidden: int) -> GatedFfn:
        """One routed expert."""
        return gated_ffn(hidden, self.intermediate)

    def shared(self, hidden: int) -> GatedFfn:
        """All shared experts as the one block that they are computed as."""
        return gated_ffn(hidden, self.shared_intermediate)

    def weights(self, hidden: int, visited: int) -> int:
        """Values in one layer's router, shared experts, and `visited` routed experts."""
        routed = visited * self.routed(hidden).weights
        return self.router(hidden).weights + self.shared(hidden).weights + routed

    def shard(self, tp: int) -> Experts:
        """One GPU's part of `tp`: a slice of every expert (tensor, not expert parallelism), the whole router."""
        return replace(
            self, intermediate=-(-self.intermediate // tp), shared_intermediate=-(-self.shared_intermediate // tp)
        )


def visited_experts(tokens: FloatArray, count: int, per_token: int, skew: float = 0.0) -> FloatArray:
    """`[...]` expected distinct experts of `tokens` independent choices of `per_token` among `count`.

    The r-th most popular expert is chosen with a probability that falls as `r^-skew`, capped at 1 so that the
    probabilities sum to `per_token`. `skew` 0 is balanced: E (1 - (1 - k/E)^T), balls in bins.
    Source: MoESD, arXiv 2505.19645 (balanced); the power law is a model of popularity, fitted here.
    """
    if skew == 0.0:
        balanced: FloatArray = count * (1.0 - (1.0 - per_token / count) ** tokens)
        return balanced
    chosen = popularity(count, per_token, skew)
    visited: FloatArray = np.sum(1.0 - (1.0 - chosen) ** np.asarray(tokens)[..., None], axis=-1)
    return visited


def popularity(count: int, per_token: int, skew: float) -> FloatArray:
    """`[count]` probability that a token visits each expert, falling; they sum to `per_token`."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    low, high = 0.0, count / weights[-1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if np.minimum(1.0, middle * weights).sum() < per_token:
            low = middle
        else:
            high = middle
    chosen: FloatArray = np.minimum(1.0, high * weights)
    return chosen


def experts_work(
    tokens: FloatArray,
    hidden: int,
    intermediate: int,
    count: int,
    per_token: int,
    skew: float,
    bytes_per_value: float,
    independent: FloatArray | None = None,
) -> Work:
    """`[...]` tokens through the gated blocks of their experts, two grouped GEMMs that stream the visited ones only.

    `independent` is how many of the tokens choose on their own; all, if it is None.
    """
    visited = visited_experts(tokens if independent is None else independent, count, per_token, skew)
    pairs = tokens * per_token
    weights = 3.0 * hidden * intermediate
    return Work(
        traffic_bytes=bytes_per_value * weights * visited + WIDE_BYTES * pairs * (2.0 * hidden + 3.0 * intermediate),
        flops=2.0 * pairs * weights,
        units=visited,
    )


def experts_point(
    hidden: FloatArray, intermediate: FloatArray, count: FloatArray, per_token: FloatArray, skewed: FloatArray
) -> FloatArray:
    """`[..., 5]` what tells layers of experts apart; balanced and skewed routing never mix."""
    routing = _ROUTING_APART * (np.asarray(skewed) > 0)
    parts = (np.log(hidden), np.log(intermediate), np.log(count), np.log(per_token), routing)
    return np.stack(np.broadcast_arrays(*parts), axis=-1)
